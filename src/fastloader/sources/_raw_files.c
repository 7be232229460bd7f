/* Reads pixels that lie in files as they are wanted, as a module of Python: see _raw_pixels.py. */

#include "_raw_files.h"

#ifndef _WIN32 /* else there is nothing in the module */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 18 }; /* stays in the processor's cache */

typedef struct {
    int64_t size, time_ns; /* of the file, as it was when it was looked at */
    int64_t offset, bytes; /* of the pixels in it */
    int64_t target;        /* address, or position in the file that is written to */
} Place;

int64_t changed_ns(const struct stat *state) {
#ifdef __APPLE__
    const struct timespec *time = &state->st_mtimespec;
#else
    const struct timespec *time = &state->st_mtim;
#endif
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

int read_whole(int file, char *target, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
        ssize_t count = pread(file, target, (size_t)bytes, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return 0;
        target += count;
        offset += count;
        bytes -= count;
    }
    return 1;
}

int write_whole(int file, const char *source, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
        ssize_t count = pwrite(file, source, (size_t)bytes, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return 0;
        source += count;
        offset += count;
        bytes -= count;
    }
    return 1;
}

/* By a buffer that is used again: a page of a file that is written whole needs no fault. */
static int copy_whole(int file, const Place *place, int written, char *buffer) {
    for (int64_t done = 0; done < place->bytes; done += BUFFER_BYTES) {
        int64_t left = place->bytes - done;
        int64_t bytes = left < BUFFER_BYTES ? left : BUFFER_BYTES;
        if (!read_whole(file, buffer, bytes, place->offset + done)) return 0;
        if (!write_whole(written, buffer, bytes, place->target + done)) return 0;
    }
    return 1;
}

char *room(Room *room, int64_t bytes) {
    if (room->bytes < bytes) {
        char *more = realloc(room->block, (size_t)bytes);
        if (more == NULL) return NULL;
        room->block = more;
        room->bytes = bytes;
    }
    return room->block;
}

void swap_bytes(char *bytes, int64_t count, int64_t item_bytes) {
    for (char *end = bytes + count; bytes < end; bytes += item_bytes)
        for (int64_t low = 0, high = item_bytes - 1; low < high; low++, high--) {
            char kept = bytes[low];
            bytes[low] = bytes[high];
            bytes[high] = kept;
        }
}

int is_unchanged(const char *path, int64_t size, int64_t time_ns) {
    struct stat state;
    return stat(path, &state) == 0 && (int64_t)state.st_size == size && changed_ns(&state) == time_ns;
}

int open_unchanged(const char *path, int64_t size, int64_t time_ns) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat state;
    if (file < 0 || (fstat(file, &state) == 0 && (int64_t)state.st_size == size &&
                     changed_ns(&state) == time_ns))
        return file;
    close(file);
    return -1;
}

static int read_file(const char *path, const Place *place, int written, char *buffer) {
    int file = open_unchanged(path, place->size, place->time_ns);
    if (file < 0) return 0;
    int is_done = written < 0 ? read_whole(file, (char *)(uintptr_t)place->target, place->bytes,
                                           place->offset)
                              : copy_whole(file, place, written, buffer);
    close(file);
    return is_done;
}

PyDoc_STRVAR(read_files_doc,
             "read_files(paths, places, written)\n--\n\n"
             "Read a piece of each file, without the interpreter's lock.\n\n"
             "Args:\n"
             "    paths: Of the files, each ended by a zero byte.\n"
             "    places: Of each file five int64: size and time of the last change in nanoseconds, as\n"
             "        they were; offset of the piece and its bytes; where it goes.\n"
             "    written: Descriptor of a file that pieces are written to, at positions. If it is -1\n"
             "        they go to memory, at addresses.\n\n"
             "Returns:\n"
             "    How many were read: up to the first that is not there, was changed, ends too early\n"
             "    or cannot be read or written.\n\n"
             "Raises:\n"
             "    ValueError: If there are not as many paths as places.");

static PyObject *read_files(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer paths, places;
    int written;
    if (!PyArg_ParseTuple(arguments, "y*y*i", &paths, &places, &written)) return NULL;
    const char *path = paths.buf;
    Py_ssize_t num_files = places.len / (Py_ssize_t)sizeof(Place), num_paths = 0, done = 0;
    for (Py_ssize_t at = 0; at < paths.len; at++) num_paths += path[at] == 0;
    int is_ended = paths.len == 0 || path[paths.len - 1] == 0;
    char *buffer = written < 0 ? NULL : PyMem_RawMalloc(BUFFER_BYTES);
    if (!is_ended || num_paths != num_files || places.len % (Py_ssize_t)sizeof(Place) != 0)
        PyErr_SetString(PyExc_ValueError,
                        "read_files needs five int64 for each path that ends with a zero byte.");
    else if (written >= 0 && buffer == NULL)
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (; done < num_files; done++) {
            Place place; /* a buffer may begin anywhere */
            memcpy(&place, (const char *)places.buf + (size_t)done * sizeof place, sizeof place);
            if (!read_file(path, &place, written, buffer)) break;
            path += strlen(path) + 1;
        }
        Py_END_ALLOW_THREADS
    }
    PyMem_RawFree(buffer);
    PyBuffer_Release(&paths);
    PyBuffer_Release(&places);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(done);
}

#endif

static PyMethodDef METHODS[] = {
#ifndef _WIN32
    {"read_files", read_files, METH_VARARGS, read_files_doc},
    {"read_segments", read_segments, METH_VARARGS, READ_SEGMENTS_DOC},
    {"read_arrays", read_arrays, METH_VARARGS, READ_ARRAYS_DOC},
    {"decompress_blocks", decompress_blocks, METH_VARARGS, DECOMPRESS_BLOCKS_DOC},
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
    .m_name = "_raw_files",
    .m_doc = "Reads pixels that lie in files as they are wanted; see `fastloader.sources._raw_pixels`.",
    .m_size = 0,
    .m_methods = METHODS,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__raw_files(void) { return PyModuleDef_Init(&DEFINITION); }
