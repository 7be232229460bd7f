/* Copies past the processor's caches, as a module of Python: see _past_cache.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __SSE2__ /* else there is nothing in the module: a plain copy is better left to torch */

#include <emmintrin.h>
#include <stdint.h>
#include <string.h>

enum { LINE_BYTES = 64, ALIGNMENT_BYTES = 16, NUM_PARTS = 4 };

static inline void copy_line(char *target, const char *source) {
    const __m128i *read = (const __m128i *)source;
    __m128i *written = (__m128i *)target;
    __m128i first = _mm_loadu_si128(read);
    __m128i second = _mm_loadu_si128(read + 1);
    __m128i third = _mm_loadu_si128(read + 2);
    __m128i fourth = _mm_loadu_si128(read + 3);
    _mm_stream_si128(written, first);
    _mm_stream_si128(written + 1, second);
    _mm_stream_si128(written + 2, third);
    _mm_stream_si128(written + 3, fourth);
}

/* `bytes` are whole lines, `target` is aligned, `source` need not be. Four parts of the row are read side by side: the
   processor reads ahead within a page of 4 kB, so that several pages at once keep the memory busier. Each is an odd
   number of lines, since places at equal distances into pages get into each other's way in the cache. */
static void copy_row(char *target, const char *source, size_t bytes) {
    size_t lines = bytes / LINE_BYTES / NUM_PARTS;
    size_t part = LINE_BYTES * (lines % 2 || !lines ? lines : lines - 1);
    for (size_t i = 0; i < part; i += LINE_BYTES)
        for (size_t start = 0; start < NUM_PARTS * part; start += part)
            copy_line(target + start + i, source + start + i);
    for (size_t i = NUM_PARTS * part; i < bytes; i += LINE_BYTES)
        copy_line(target + i, source + i);
}

PyDoc_STRVAR(copy_rows_doc,
             "copy_rows(sources, row_bytes, target)\n--\n\n"
             "Copy rows one after the other, without the interpreter's lock.\n\n"
             "Args:\n"
             "    sources: Addresses of the rows, a buffer of uint64.\n"
             "    row_bytes: Of each, whole lines of 64.\n"
             "    target: Address of the first byte, divisible by 16; there is room for all rows.\n\n"
             "Raises:\n"
             "    ValueError: If sizes or address do not fit.");

static PyObject *copy_rows(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer sources;
    Py_ssize_t row_bytes;
    unsigned long long target;
    if (!PyArg_ParseTuple(arguments, "y*nK", &sources, &row_bytes, &target)) return NULL;
    if (sources.len % (Py_ssize_t)sizeof(uint64_t) != 0 || row_bytes <= 0 ||
        row_bytes % LINE_BYTES != 0 || target % ALIGNMENT_BYTES != 0) {
        PyBuffer_Release(&sources);
        PyErr_SetString(PyExc_ValueError,
                        "copy_rows needs addresses of 8 bytes, whole lines of 64 bytes and a target "
                        "at a multiple of 16.");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    const char *end = (const char *)sources.buf + sources.len;
    char *written = (char *)(uintptr_t)target;
    for (const char *next = sources.buf; next < end; next += sizeof(uint64_t)) {
        uint64_t address; /* a buffer may begin anywhere */
        memcpy(&address, next, sizeof address);
        copy_row(written, (const char *)(uintptr_t)address, (size_t)row_bytes);
        written += row_bytes;
    }
    _mm_sfence(); /* all of it is written before anybody is told */
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&sources);
    Py_RETURN_NONE;
}

#endif

static PyMethodDef METHODS[] = {
#ifdef __SSE2__
    {"copy_rows", copy_rows, METH_VARARGS, copy_rows_doc},
#endif
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* no state */
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_streaming",
    .m_doc = "Copies past the processor's caches; see `fastloader.shm._past_cache`.",
    .m_size = 0,
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__streaming(void) { return PyModuleDef_Init(&DEFINITION); }
