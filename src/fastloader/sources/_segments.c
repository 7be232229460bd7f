/* Reads images that lie in files as strips or tiles, as a function of Python: see _raw_pixels.py. */

#include "_raw_files.h"

#ifndef _WIN32

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int64_t num_numbers;   /* of this record, with what follows it */
    int64_t size, time_ns; /* of the file, as it was when it was looked at */
    int64_t target;        /* address, or position in the file that is written to */
    int64_t planes, rows, columns, inner; /* of the image; samples of a pixel that lie together */
    int64_t segment_rows, segment_columns;
    int64_t item_bytes;
    int64_t is_deflated, is_predicted, is_swapped, is_tiled;
} Image;

enum { HEAD = sizeof(Image) / sizeof(int64_t) };

typedef struct {
    Uncompress *uncompress; /* NULL: deflated images cannot be read */
    Room stored, segment, image;
} Memory;

/* Each sample was stored as its difference from that of the pixel before (TIFF 6.0, section 14). */
#define DEFINE_SUM_ROW(TYPE)                                              \
    static void sum_row_##TYPE(char *row, int64_t count, int64_t inner) { \
        enum { BYTES = sizeof(TYPE) };                                    \
        TYPE item, sum = 0;                                               \
        for (int64_t at = inner == 1 ? 0 : inner; at < count; at++) {     \
            memcpy(&item, row + at * BYTES, BYTES); /* may begin anywhere */ \
            if (inner > 1) memcpy(&sum, row + (at - inner) * BYTES, BYTES);  \
            sum = (TYPE)(sum + item);                                     \
            memcpy(row + at * BYTES, &sum, BYTES);                        \
        }                                                                 \
    }
DEFINE_SUM_ROW(uint8_t)
DEFINE_SUM_ROW(uint16_t)
DEFINE_SUM_ROW(uint32_t)
DEFINE_SUM_ROW(uint64_t)
#undef DEFINE_SUM_ROW

static void undo_prediction(char *bytes, int64_t num_rows, int64_t row_items, const Image *image) {
    for (int64_t row = 0; row < num_rows; row++, bytes += row_items * image->item_bytes) {
        switch (image->item_bytes) {
        case 1: sum_row_uint8_t(bytes, row_items, image->inner); break;
        case 2: sum_row_uint16_t(bytes, row_items, image->inner); break;
        case 4: sum_row_uint32_t(bytes, row_items, image->inner); break;
        default: sum_row_uint64_t(bytes, row_items, image->inner);
        }
    }
}

/* A strip or tile; 0 if it is not as long as it must be. */
static int decode(int file, int64_t offset, int64_t stored_bytes, const Image *image,
                  int64_t num_rows, char *target, Memory *memory) {
    int64_t row_items = image->segment_columns * image->inner;
    int64_t bytes = num_rows * row_items * image->item_bytes;
    if (image->is_deflated) {
        if (memory->uncompress == NULL) return 0;
        char *stored = room(&memory->stored, stored_bytes);
        if (stored == NULL || !read_whole(file, stored, stored_bytes, offset) ||
            !inflate_whole(memory->uncompress, stored, stored_bytes, target, bytes))
            return 0;
    } else if (stored_bytes != bytes || !read_whole(file, target, bytes, offset))
        return 0;
    if (image->is_swapped) swap_bytes(target, bytes, image->item_bytes);
    if (image->is_predicted) undo_prediction(target, num_rows, row_items, image);
    return 1;
}

/* A segment to its place in an image; 0 if that cannot be. */
static int place(int file, const int64_t *pair, const Image *image, char *plane, int64_t row,
                 int64_t column, Memory *memory) {
    int64_t pixel_bytes = image->inner * image->item_bytes, row_bytes = image->columns * pixel_bytes;
    int64_t num_rows = smaller(image->segment_rows, image->rows - row);
    char *target = plane + row * row_bytes + column * pixel_bytes;
    if (pair[0] <= 0 || pair[1] <= 0) return 0; /* left out */
    if (!image->is_tiled) return decode(file, pair[0], pair[1], image, num_rows, target, memory);
    int64_t tile_row_bytes = image->segment_columns * pixel_bytes;
    char *tile = room(&memory->segment, image->segment_rows * tile_row_bytes);
    if (tile == NULL ||
        !decode(file, pair[0], pair[1], image, image->segment_rows, tile, memory))
        return 0;
    int64_t kept = smaller(image->segment_columns, image->columns - column) * pixel_bytes;
    for (int64_t at = 0; at < num_rows; at++)
        memcpy(target + at * row_bytes, tile + at * tile_row_bytes, (size_t)kept);
    return 1;
}

static int read_image(const char *path, const Image *image, const int64_t *pairs, int written,
                      Memory *memory) {
    int64_t plane_bytes = image->rows * image->columns * image->inner * image->item_bytes;
    int64_t image_bytes = image->planes * plane_bytes;
    char *target = (char *)(uintptr_t)image->target;
    if (written >= 0) target = room(&memory->image, image_bytes);
    int file = target == NULL ? -1 : open_unchanged(path, image->size, image->time_ns);
    if (file < 0) return 0;
    int is_done = 1;
    for (int64_t plane = 0; plane < image->planes && is_done; plane++)
        for (int64_t row = 0; row < image->rows && is_done; row += image->segment_rows)
            for (int64_t column = 0; column < image->columns && is_done;
                 column += image->segment_columns, pairs += 2)
                is_done = place(file, pairs, image, target + plane * plane_bytes, row, column,
                                memory);
    close(file);
    return is_done && (written < 0 || write_whole(written, target, image_bytes, image->target));
}

/* Whether a record is as long as it says, and has a place for each strip or tile. */
static int is_whole(const Image *image, int64_t num_numbers) {
    if (image->num_numbers > num_numbers || image->planes < 1 || image->rows < 1 ||
        image->columns < 1 || image->inner < 1 || image->segment_rows < 1 ||
        image->segment_columns < 1 || image->item_bytes < 1)
        return 0;
    if (!image->is_tiled && image->segment_columns != image->columns) return 0;
    int64_t down = (image->rows - 1) / image->segment_rows + 1;
    int64_t across = (image->columns - 1) / image->segment_columns + 1;
    int64_t num_pairs = (image->num_numbers - HEAD) / 2;
    if (image->planes > num_pairs || down > num_pairs / image->planes ||
        across > num_pairs / image->planes / down)
        return 0;
    return image->num_numbers == HEAD + 2 * image->planes * down * across;
}

const char READ_SEGMENTS_DOC[] =
    "read_segments(paths, records, written, uncompress)\n--\n\n"
    "Read images in strips or tiles, each from a file, without the interpreter's lock.\n\n"
    "Args:\n"
    "    paths: Of the files, each ended by a zero byte.\n"
    "    records: Of each image int64: how many these are; size and time of the last change of\n"
    "        the file in nanoseconds, as they were; where the pixels go; planes, rows, columns and\n"
    "        samples of a pixel; rows and columns of a strip or tile; bytes of a sample; 1 or 0 for\n"
    "        being deflated, horizontally predicted, of the other byte order, and in tiles; then\n"
    "        position and length of each strip or tile.\n"
    "    written: Descriptor of a file that images are written to, at positions. If it is -1\n"
    "        they go to memory, at addresses.\n"
    "    uncompress: Address of zlib's function of that name; 0 if there is none.\n\n"
    "Returns:\n"
    "    How many were read: up to the first of which the file is not there or was changed, a strip\n"
    "    or tile is left out or damaged, or that cannot be read or written.\n\n"
    "Raises:\n"
    "    ValueError: If a record is not whole, or there are not as many as paths.";

PyObject *read_segments(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer paths, records;
    int written;
    Py_ssize_t uncompress; /* as wide as an address */
    if (!PyArg_ParseTuple(arguments, "y*y*in", &paths, &records, &written, &uncompress)) return NULL;
    const char *path = paths.buf, *end = path + paths.len;
    int64_t *numbers = PyMem_RawMalloc((size_t)records.len + 1); /* a buffer may begin anywhere */
    Py_ssize_t done = 0;
    int64_t left = records.len / (Py_ssize_t)sizeof(int64_t);
    Memory memory = {.uncompress = (Uncompress *)uncompress};
    int is_right = paths.len == 0 || end[-1] == 0;
    if (numbers == NULL) PyErr_NoMemory();
    else {
        memcpy(numbers, records.buf, (size_t)records.len);
        const int64_t *next = numbers;
        Py_BEGIN_ALLOW_THREADS
        while (is_right && (left > 0 || path < end)) {
            Image image;
            if (left < HEAD || path >= end) is_right = 0;
            else memcpy(&image, next, sizeof image);
            if (!is_right || !(is_right = is_whole(&image, left))) break;
            if (!read_image(path, &image, next + HEAD, written, &memory)) break;
            next += image.num_numbers;
            left -= image.num_numbers;
            path += strlen(path) + 1;
            done++;
        }
        Py_END_ALLOW_THREADS
        if (!is_right)
            PyErr_SetString(PyExc_ValueError,
                            "read_segments needs a whole record for each path that ends with a "
                            "zero byte.");
    }
    PyMem_RawFree(numbers);
    free(memory.stored.block);
    free(memory.segment.block);
    free(memory.image.block);
    PyBuffer_Release(&paths);
    PyBuffer_Release(&records);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(done);
}

#endif
