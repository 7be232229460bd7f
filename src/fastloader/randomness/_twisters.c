/* Saves, seeds and puts back the words of two Mersenne Twisters, as a module of Python: see _global_generators.py.

   The words belong to the generators of `random` and of NumPy. Seeds make the states that the libraries make of them
   (init_genrand and init_by_array of M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8, 1998, in their
   version of 2002), but with one call for both, and without Python's objects in between: a batch of one small sample
   is isolated in a third of the time. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { NUM_WORDS = 624, NUM_AHEAD = 8, MOST_PLACES = 8, MOST_MARK_BYTES = 512 };

typedef struct {
    uint32_t place;
    uint32_t words[NUM_WORDS];
} PythonState; /* struct RandomObject of Modules/_randommodule.c */

typedef struct {
    uint32_t words[NUM_WORDS];
    uint32_t place;
} NumPyState; /* struct s_mt19937_state of NumPy, whose place is an int */

typedef struct {
    PyObject_HEAD
    Py_buffer draws[MOST_PLACES];
    int num_draws;
    Py_buffer python, numpy;
    PythonState saved_python;
    NumPyState saved_numpy;
    char saved_mark[MOST_MARK_BYTES], watched_mark[MOST_MARK_BYTES];
    int is_saved;
    uint32_t python_ahead[NUM_WORDS][NUM_AHEAD], numpy_ahead[NUM_WORDS][NUM_AHEAD];
} Twisters;

/* Return which words come after those at i: after the last, which count as the first, come the second. */
static uint32_t follow(uint32_t (*words)[NUM_AHEAD], uint32_t i) {
    if (++i < NUM_WORDS) return i;
    memcpy(words[0], words[NUM_WORDS - 1], sizeof(words[0]));
    return 1;
}

/* As `numpy.random.seed` does with a number of at most 32 bits. */
static void spread(uint32_t (*words)[NUM_AHEAD], const uint32_t *seeds) {
    uint32_t last[NUM_AHEAD];
    memcpy(last, seeds, sizeof(last));
    for (uint32_t i = 0; i < NUM_WORDS; i++) {
        for (int one = 0; one < NUM_AHEAD; one++) {
            words[i][one] = last[one];
            last[one] = UINT32_C(1812433253) * (last[one] ^ last[one] >> 30) + i + 1;
        }
    }
}

/* As `random.seed` does with a number of at most 64 bits: a key of one word, or of two. */
static void spread_by_array(uint32_t (*words)[NUM_AHEAD], const uint64_t *seeds) {
    uint32_t last[NUM_AHEAD], added[2][NUM_AHEAD];
    uint32_t i = 1;
    for (int one = 0; one < NUM_AHEAD; one++) {
        const uint32_t low = (uint32_t)seeds[one], high = (uint32_t)(seeds[one] >> 32);
        last[one] = UINT32_C(19650218);
        added[0][one] = low;
        added[1][one] = high ? high + 1 : low;
    }
    spread(words, last);
    for (int step = 0; step < NUM_WORDS; step++) {
        for (int one = 0; one < NUM_AHEAD; one++) {
            const uint32_t mixed = (last[one] ^ last[one] >> 30) * UINT32_C(1664525);
            words[i][one] = last[one] = (words[i][one] ^ mixed) + added[step % 2][one];
        }
        i = follow(words, i);
    }
    for (int step = 0; step < NUM_WORDS - 1; step++) {
        for (int one = 0; one < NUM_AHEAD; one++) {
            const uint32_t mixed = (last[one] ^ last[one] >> 30) * UINT32_C(1566083941);
            words[i][one] = last[one] = (words[i][one] ^ mixed) - i;
        }
        i = follow(words, i);
    }
    for (int one = 0; one < NUM_AHEAD; one++) words[0][one] = UINT32_C(0x80000000);
}

static void read_mark(const Twisters *twisters, char *mark) {
    for (int i = 0; i < twisters->num_draws; i++) {
        memcpy(mark, twisters->draws[i].buf, (size_t)twisters->draws[i].len);
        mark += twisters->draws[i].len;
    }
}

static int has_mark(const Twisters *twisters, const char *mark) {
    for (int i = 0; i < twisters->num_draws; i++) {
        if (memcmp(mark, twisters->draws[i].buf, (size_t)twisters->draws[i].len)) return 0;
        mark += twisters->draws[i].len;
    }
    return 1;
}

PyDoc_STRVAR(save_doc, "save()\n--\n\nRemember the words, and what draws would change.");

static PyObject *twisters_save(PyObject *self, PyObject *Py_UNUSED(none)) {
    Twisters *twisters = (Twisters *)self;
    memcpy(&twisters->saved_python, twisters->python.buf, sizeof(PythonState));
    memcpy(&twisters->saved_numpy, twisters->numpy.buf, sizeof(NumPyState));
    read_mark(twisters, twisters->saved_mark);
    twisters->is_saved = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_as_saved_doc, "is_as_saved()\n--\n\nTell whether nothing was drawn since the words were saved.");

static PyObject *twisters_is_as_saved(PyObject *self, PyObject *Py_UNUSED(none)) {
    Twisters *twisters = (Twisters *)self;
    return PyBool_FromLong(twisters->is_saved && has_mark(twisters, twisters->saved_mark));
}

PyDoc_STRVAR(prepare_doc,
             "prepare(seeds)\n--\n\n"
             "Work out the words that `random.seed` and `numpy.random.seed` give the generators.\n\n"
             "Args:\n    seeds: NUM_AHEAD of 64 bits for the one, then as many of 32 bits for the other.");

static PyObject *twisters_prepare(PyObject *self, PyObject *given) {
    Twisters *twisters = (Twisters *)self;
    struct {
        uint64_t python[NUM_AHEAD];
        uint32_t numpy[NUM_AHEAD];
    } seeds;
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_SIMPLE)) return NULL;
    const int fits = view.len == sizeof(seeds);
    if (fits) memcpy(&seeds, view.buf, sizeof(seeds));
    PyBuffer_Release(&view);
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "prepare needs %zu bytes of seeds.", sizeof(seeds));
        return NULL;
    }
    spread_by_array(twisters->python_ahead, seeds.python);
    spread(twisters->numpy_ahead, seeds.numpy);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(seed_doc,
             "seed(which)\n--\n\n"
             "Give the generators words that were prepared, and remember what draws would change.\n\n"
             "Args:\n    which: Of the seeds.");

static PyObject *twisters_seed(PyObject *self, PyObject *given) {
    Twisters *twisters = (Twisters *)self;
    const Py_ssize_t which = PyLong_AsSsize_t(given);
    if (PyErr_Occurred()) return NULL;
    if (which < 0 || which >= NUM_AHEAD) {
        PyErr_Format(PyExc_IndexError, "seed needs a number from 0 to %d, not %zd.", NUM_AHEAD - 1, which);
        return NULL;
    }
    PythonState *python = twisters->python.buf;
    NumPyState *numpy = twisters->numpy.buf;
    for (int i = 0; i < NUM_WORDS; i++) {
        python->words[i] = twisters->python_ahead[i][which];
        numpy->words[i] = twisters->numpy_ahead[i][which];
    }
    python->place = numpy->place = NUM_WORDS;
    read_mark(twisters, twisters->watched_mark);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(watch_doc, "watch()\n--\n\nRemember what draws would change.");

static PyObject *twisters_watch(PyObject *self, PyObject *Py_UNUSED(none)) {
    Twisters *twisters = (Twisters *)self;
    read_mark(twisters, twisters->watched_mark);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(has_drawn_doc, "has_drawn()\n--\n\nTell whether something was drawn since `watch`.");

static PyObject *twisters_has_drawn(PyObject *self, PyObject *Py_UNUSED(none)) {
    Twisters *twisters = (Twisters *)self;
    return PyBool_FromLong(!has_mark(twisters, twisters->watched_mark));
}

PyDoc_STRVAR(restore_doc, "restore()\n--\n\nPut back the words that were saved.");

static PyObject *twisters_restore(PyObject *self, PyObject *Py_UNUSED(none)) {
    Twisters *twisters = (Twisters *)self;
    if (!twisters->is_saved) {
        PyErr_SetString(PyExc_RuntimeError, "Nothing was saved.");
        return NULL;
    }
    memcpy(twisters->python.buf, &twisters->saved_python, sizeof(PythonState));
    memcpy(twisters->numpy.buf, &twisters->saved_numpy, sizeof(NumPyState));
    Py_RETURN_NONE;
}

static void twisters_dealloc(PyObject *self) {
    Twisters *twisters = (Twisters *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < twisters->num_draws; i++) PyBuffer_Release(&twisters->draws[i]);
    if (twisters->python.obj) PyBuffer_Release(&twisters->python);
    if (twisters->numpy.obj) PyBuffer_Release(&twisters->numpy);
    type->tp_free(self);
    Py_DECREF(type);
}

static int take_words(PyObject *given, Py_buffer *words, size_t num_bytes) {
    if (PyObject_GetBuffer(given, words, PyBUF_WRITABLE)) return -1;
    if ((size_t)words->len == num_bytes && (uintptr_t)words->buf % sizeof(uint32_t) == 0) return 0;
    PyErr_Format(PyExc_ValueError, "Twisters needs words of 4 bytes, %zu bytes in all, not %zd.", num_bytes, words->len);
    return -1;
}

static int take_draws(Twisters *twisters, PyObject *given) {
    Py_ssize_t num_bytes = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        if (i == MOST_PLACES) break;
        Py_buffer *place = &twisters->draws[i];
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(given, i), place, PyBUF_SIMPLE)) return -1;
        twisters->num_draws++;
        num_bytes += place->len;
    }
    if (PyTuple_GET_SIZE(given) <= MOST_PLACES && num_bytes <= MOST_MARK_BYTES) return 0;
    PyErr_Format(PyExc_ValueError, "Twisters watches %d places of %d bytes at most.", MOST_PLACES, MOST_MARK_BYTES);
    return -1;
}

static PyObject *twisters_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"draws", "python_words", "numpy_words", NULL};
    PyObject *draws, *python, *numpy;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!OO", names, &PyTuple_Type, &draws, &python, &numpy))
        return NULL;
    Twisters *twisters = (Twisters *)type->tp_alloc(type, 0); /* all of it is 0 */
    if (!twisters) return NULL;
    if (take_draws(twisters, draws) || take_words(python, &twisters->python, sizeof(PythonState)) ||
        take_words(numpy, &twisters->numpy, sizeof(NumPyState))) {
        Py_DECREF(twisters);
        return NULL;
    }
    return (PyObject *)twisters;
}

static PyMethodDef TWISTERS_METHODS[] = {
    {"save", twisters_save, METH_NOARGS, save_doc},
    {"is_as_saved", twisters_is_as_saved, METH_NOARGS, is_as_saved_doc},
    {"prepare", twisters_prepare, METH_O, prepare_doc},
    {"seed", twisters_seed, METH_O, seed_doc},
    {"watch", twisters_watch, METH_NOARGS, watch_doc},
    {"has_drawn", twisters_has_drawn, METH_NOARGS, has_drawn_doc},
    {"restore", twisters_restore, METH_NOARGS, restore_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(twisters_doc,
             "Twisters(draws, python_words, numpy_words)\n--\n\n"
             "The words of two generators, and what tells whether these or others have drawn.\n\n"
             "Args:\n"
             "    draws: A tuple of buffers, whose bytes each draw changes.\n"
             "    python_words: Buffer of the place and the words of one of `random`'s.\n"
             "    numpy_words: Buffer of the words and the place of one of NumPy's, whose lock whoever calls has to hold.");

static PyType_Slot TWISTERS_SLOTS[] = {
    {Py_tp_doc, (void *)twisters_doc},
    {Py_tp_new, twisters_new},
    {Py_tp_dealloc, twisters_dealloc},
    {Py_tp_methods, TWISTERS_METHODS},
    {0, NULL},
};

static PyType_Spec TWISTERS_SPEC = {
    .name = "fastloader.randomness._twisters.Twisters",
    .basicsize = sizeof(Twisters),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = TWISTERS_SLOTS,
};

static int fill(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &TWISTERS_SPEC, NULL);
    if (!type) return -1;
    int failed = PyModule_AddObjectRef(module, "Twisters", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill},
    {0, NULL}, /* it is used where the interpreter has its lock */
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_twisters",
    .m_doc = "Saves, seeds and puts back words of generators; see `fastloader.randomness._global_generators`.",
    .m_size = 0,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__twisters(void) { return PyModuleDef_Init(&DEFINITION); }
