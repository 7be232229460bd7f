/* What the functions of this module have in common. */

#ifndef FASTLOADER_RAW_FILES_H
#define FASTLOADER_RAW_FILES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Of the last change of a file that was looked at; opens it, and is -1 if it cannot be or was changed. */
int open_unchanged(const char *path, int64_t size, int64_t time_ns);

/* 0 unless all of it was read, or written. */
int read_whole(int file, char *target, int64_t bytes, int64_t offset);
int write_whole(int file, const char *source, int64_t bytes, int64_t offset);

PyObject *read_segments(PyObject *module, PyObject *arguments);
extern const char READ_SEGMENTS_DOC[];

#endif
