/* What the functions of this module have in common. */

#ifndef FASTLOADER_RAW_FILES_H
#define FASTLOADER_RAW_FILES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <sys/stat.h>

typedef struct {
    char *block;
    int64_t bytes;
} Room; /* memory that is used again; freed by who has it */

/* At least as many bytes, grown as needed; NULL if there are none to be had. */
char *room(Room *room, int64_t bytes);

static inline int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

/* Turns the bytes of each item around. */
void swap_bytes(char *bytes, int64_t count, int64_t item_bytes);

/* zlib's function of this name, which is 0 if all went well: so its header need not be there to build with. */
typedef int Uncompress(unsigned char *target, unsigned long *target_bytes,
                       const unsigned char *source, unsigned long source_bytes);

/* 0 unless all went well and the size is as it must be. */
static inline int inflate_whole(Uncompress *uncompress, const char *source, int64_t source_bytes,
                                char *target, int64_t bytes) {
    unsigned long made = (unsigned long)bytes;
    return uncompress((unsigned char *)target, &made, (const unsigned char *)source,
                      (unsigned long)source_bytes) == 0 &&
           made == (unsigned long)bytes;
}

/* When a file was last changed, in nanoseconds. */
int64_t changed_ns(const struct stat *state);

/* Whether a file is as it was when it was looked at. */
int is_unchanged(const char *path, int64_t size, int64_t time_ns);

/* Of the last change of a file that was looked at; opens it, and is -1 if it cannot be or was changed. */
int open_unchanged(const char *path, int64_t size, int64_t time_ns);

/* 0 unless all of it was read, or written. */
int read_whole(int file, char *target, int64_t bytes, int64_t offset);
int write_whole(int file, const char *source, int64_t bytes, int64_t offset);

PyObject *read_segments(PyObject *module, PyObject *arguments);
extern const char READ_SEGMENTS_DOC[];
PyObject *read_arrays(PyObject *module, PyObject *arguments);
extern const char READ_ARRAYS_DOC[];
PyObject *decompress_blocks(PyObject *module, PyObject *arguments);
extern const char DECOMPRESS_BLOCKS_DOC[];

#endif
