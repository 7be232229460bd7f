/* Reads Zarr arrays in chunks and shards, as a function of Python: see _raw_pixels.py. */

#include "_raw_files.h"

#ifndef _WIN32

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { AXES = 5, INDEX_PAIR_BYTES = 16, CHECKSUM_BYTES = 4, BLOSC_HEADER_BYTES = 16 };

typedef struct {
    int64_t size, time_ns; /* of the array's metadata, as they were when they were looked at */
    int64_t target;        /* address, or position in the file that is written to */
    int64_t shape[AXES], file[AXES], chunk[AXES]; /* of the array, of what a file holds, of a chunk */
    int64_t num_axes;                             /* the last ones, which names of files have */
    int64_t separator;                            /* between them */
    int64_t item_bytes, is_swapped;
    int64_t fill; /* its first bytes are a pixel of a chunk that is not there */
    int64_t codec;
    int64_t shards; /* a file is a chunk, or has an index of chunks at its end, or at its start */
    int64_t has_index_checksum;
    int64_t newest_ns; /* when the last of all files of all arrays was changed */
} Image;

enum { STORED, ZLIB, BLOSC, LZ4, ZSTD };
enum { NO_SHARDS, INDEX_LAST, INDEX_FIRST };

/* Of the libraries that numcodecs has: c-blosc 1, lz4 and zstd, whose headers need not be there. */
typedef int BloscDecompress(const void *source, void *target, size_t target_bytes, int num_threads);
typedef int Lz4Decompress(const char *source, char *target, int source_bytes, int target_bytes);
typedef size_t ZstdDecompress(void *target, size_t target_bytes, const void *source,
                              size_t source_bytes);

typedef struct {
    Uncompress *zlib;
    BloscDecompress *blosc;
    Lz4Decompress *lz4;
    ZstdDecompress *zstd;
    Room path, stored, chunk, image, index;
    uint32_t crc_table[256];
} Tools;

static int64_t little(const char *bytes, int count) {
    uint64_t number = 0;
    while (count-- > 0) number = number << 8 | (unsigned char)bytes[count];
    return (int64_t)number;
}

/* CRC-32C, RFC 3720, B.4. */
static void fill_crc_table(uint32_t *table) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? 0x82F63B78u : 0);
        table[byte] = rest;
    }
}

static uint32_t crc32c(const uint32_t *table, const char *bytes, int64_t count) {
    uint32_t sum = 0xFFFFFFFFu;
    for (int64_t at = 0; at < count; at++)
        sum = table[(sum ^ (unsigned char)bytes[at]) & 0xFF] ^ sum >> 8;
    return ~sum;
}

/* 0 unless it gives exactly as many bytes as there must be. */
static int decompress(int64_t codec, const char *source, int64_t source_bytes, char *target,
                      int64_t bytes, const Tools *tools) {
    switch (codec) {
    case STORED:
        if (source_bytes != bytes) return 0;
        memcpy(target, source, (size_t)bytes);
        return 1;
    case ZLIB:
        return tools->zlib != NULL && inflate_whole(tools->zlib, source, source_bytes, target, bytes);
    case BLOSC: /* trusts the sizes in its header */
        return tools->blosc != NULL && source_bytes >= BLOSC_HEADER_BYTES &&
               little(source + 12, 4) == source_bytes && little(source + 4, 4) == bytes &&
               tools->blosc(source, target, (size_t)bytes, 1) == bytes;
    case LZ4: /* behind its size, as numcodecs writes it */
        return tools->lz4 != NULL && source_bytes >= 4 && source_bytes <= INT_MAX &&
               bytes <= INT_MAX && little(source, 4) == bytes &&
               tools->lz4(source + 4, target, (int)source_bytes - 4, (int)bytes) == bytes;
    default:
        return tools->zstd != NULL && tools->zstd(target, (size_t)bytes, source,
                                                  (size_t)source_bytes) == (size_t)bytes;
    }
}

static int64_t product(const int64_t *sizes) {
    int64_t number = 1;
    for (int axis = 0; axis < AXES; axis++) number *= sizes[axis];
    return number;
}

/* Puts the part of a tile that is inside an image there: its pixels, or if there are none the fill. */
static void place(const Image *image, const int64_t *tile, const int64_t *sizes, const char *pixels,
                  char *target) {
    int64_t item = image->item_bytes, row_bytes = sizes[AXES - 1] * item;
    int64_t num_rows = product(sizes) / sizes[AXES - 1];
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t rest = row, from = 0, to = 0, tile_step = tile[AXES - 1] * item,
                image_step = image->shape[AXES - 1] * item;
        for (int axis = AXES - 2; axis >= 0; axis--) {
            int64_t index = rest % sizes[axis];
            rest /= sizes[axis];
            from += index * tile_step;
            to += index * image_step;
            tile_step *= tile[axis];
            image_step *= image->shape[axis];
        }
        if (pixels != NULL) memcpy(target + to, pixels + from, (size_t)row_bytes);
        else
            for (int64_t at = 0; at < row_bytes; at += item)
                memcpy(target + to + at, &image->fill, (size_t)item);
    }
}

/* The first byte of a tile in an image; sizes become those of its part inside, NULL if there is none. */
static char *part_inside(const Image *image, const int64_t *tile, const int64_t *origin,
                         int64_t *sizes, char *pixels) {
    int64_t step = image->item_bytes;
    for (int axis = AXES - 1; axis >= 0; axis--) {
        if (origin[axis] >= image->shape[axis]) return NULL;
        sizes[axis] = smaller(tile[axis], image->shape[axis] - origin[axis]);
        pixels += origin[axis] * step;
        step *= image->shape[axis];
    }
    return pixels;
}

/* Whether a tile is all inside, and its pixels lie in the image as they do in the tile. */
static int is_whole_and_plain(const Image *image, const int64_t *tile, const int64_t *sizes) {
    int is_inside_row = 0;
    for (int axis = 0; axis < AXES; axis++) {
        if (sizes[axis] != tile[axis] || (is_inside_row && sizes[axis] != image->shape[axis])) return 0;
        is_inside_row |= sizes[axis] > 1;
    }
    return 1;
}

static int place_chunk(const Image *image, const int64_t *origin, const char *stored,
                       int64_t stored_bytes, char *pixels, Tools *tools) {
    int64_t sizes[AXES], bytes = product(image->chunk) * image->item_bytes;
    char *target = part_inside(image, image->chunk, origin, sizes, pixels);
    if (target == NULL) return 0;
    int is_direct = is_whole_and_plain(image, image->chunk, sizes);
    char *chunk = is_direct ? target : room(&tools->chunk, bytes);
    if (chunk == NULL || !decompress(image->codec, stored, stored_bytes, chunk, bytes, tools)) return 0;
    if (image->is_swapped) swap_bytes(chunk, bytes, image->item_bytes);
    if (!is_direct) place(image, image->chunk, sizes, chunk, target);
    return 1;
}

static void fill(const Image *image, const int64_t *tile, const int64_t *origin, char *pixels) {
    int64_t sizes[AXES];
    char *target = part_inside(image, tile, origin, sizes, pixels);
    if (target != NULL) place(image, tile, sizes, NULL, target);
}

/* Bytes of a file at a place; NULL if they cannot be had. More than any codec makes is not read. */
static const char *read_stored(int file, int64_t offset, int64_t bytes, const Image *image,
                               Tools *tools) {
    int64_t most = 2 * product(image->chunk) * image->item_bytes + (1 << 16);
    char *stored = bytes > most ? NULL : room(&tools->stored, bytes + 1);
    return stored != NULL && read_whole(file, stored, bytes, offset) ? stored : NULL;
}

/* Goes to the next tile of a grid inside bounds; 0 behind the last. */
static int next_tile(int64_t *origin, const int64_t *tile, const int64_t *start, const int64_t *stop) {
    for (int axis = AXES - 1; axis >= 0; axis--) {
        origin[axis] += tile[axis];
        if (origin[axis] < stop[axis]) return 1;
        origin[axis] = start[axis];
    }
    return 0;
}

static int read_shard(int file, int64_t file_bytes, const Image *image, const int64_t *start,
                      char *pixels, Tools *tools) {
    int64_t counts[AXES], stop[AXES], origin[AXES];
    for (int axis = 0; axis < AXES; axis++) {
        counts[axis] = image->file[axis] / image->chunk[axis];
        stop[axis] = smaller(start[axis] + image->file[axis], image->shape[axis]);
        origin[axis] = start[axis];
    }
    int64_t index_bytes = product(counts) * INDEX_PAIR_BYTES;
    int64_t sum_bytes = image->has_index_checksum ? CHECKSUM_BYTES : 0;
    int64_t index_start = image->shards == INDEX_FIRST ? 0 : file_bytes - index_bytes - sum_bytes;
    char *index = index_start < 0 ? NULL : room(&tools->index, index_bytes + sum_bytes);
    if (index == NULL || !read_whole(file, index, index_bytes + sum_bytes, index_start) ||
        (sum_bytes && little(index + index_bytes, CHECKSUM_BYTES) !=
                          crc32c(tools->crc_table, index, index_bytes)))
        return 0;
    do {
        int64_t number = 0;
        for (int axis = 0; axis < AXES; axis++)
            number = number * counts[axis] + (origin[axis] - start[axis]) / image->chunk[axis];
        const char *pair = index + number * INDEX_PAIR_BYTES;
        int64_t offset = little(pair, 8), bytes = little(pair + 8, 8);
        if (offset == -1 && bytes == -1) {
            fill(image, image->chunk, origin, pixels);
            continue;
        }
        if (offset < 0 || bytes < 0 || bytes > file_bytes || offset > file_bytes - bytes) return 0;
        const char *stored = read_stored(file, offset, bytes, image, tools);
        if (stored == NULL || !place_chunk(image, origin, stored, bytes, pixels, tools)) return 0;
    } while (next_tile(origin, image->chunk, start, stop));
    return 1;
}

/* A file to its place in the image; 0 if that cannot be. One that is not there holds the fill. */
static int read_tile(const char *path, const Image *image, const int64_t *origin, char *pixels,
                     Tools *tools) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        if (errno != ENOENT) return 0;
        fill(image, image->file, origin, pixels);
        return 1;
    }
    struct stat state;
    int is_done = fstat(file, &state) == 0 && S_ISREG(state.st_mode) &&
                  changed_ns(&state) <= image->newest_ns;
    if (is_done && image->shards != NO_SHARDS)
        is_done = read_shard(file, (int64_t)state.st_size, image, origin, pixels, tools);
    else if (is_done) {
        const char *stored = read_stored(file, 0, (int64_t)state.st_size, image, tools);
        is_done = stored != NULL && place_chunk(image, origin, stored, (int64_t)state.st_size, pixels, tools);
    }
    close(file);
    return is_done;
}

/* The path of the file that a tile is in; NULL if there is no memory. */
static const char *tile_path(const char *start, const Image *image, const int64_t *origin,
                             Tools *tools) {
    enum { NUMBER_BYTES = 21 };
    size_t length = strlen(start);
    char *path = room(&tools->path, (int64_t)length + AXES * NUMBER_BYTES + 1);
    if (path == NULL) return NULL;
    memcpy(path, start, length + 1);
    char *end = path + length;
    for (int64_t axis = AXES - image->num_axes; axis < AXES; axis++) {
        if (axis > AXES - image->num_axes) *end++ = (char)image->separator;
        end += snprintf(end, NUMBER_BYTES, "%lld", (long long)(origin[axis] / image->file[axis]));
    }
    return path;
}

static int read_image(const char *metadata, const char *start, const Image *image, int written,
                      Tools *tools) {
    static const int64_t ZEROS[AXES];
    int64_t bytes = product(image->shape) * image->item_bytes, origin[AXES] = {0};
    char *target = (char *)(uintptr_t)image->target;
    if (written >= 0) target = room(&tools->image, bytes);
    if (target == NULL || !is_unchanged(metadata, image->size, image->time_ns)) return 0;
    do {
        const char *path = tile_path(start, image, origin, tools);
        if (path == NULL || !read_tile(path, image, origin, target, tools)) return 0;
    } while (next_tile(origin, image->file, ZEROS, image->shape));
    return written < 0 || write_whole(written, target, bytes, image->target);
}

/* Whether sizes are such that no product of them is too large, and chunks divide shards. */
static int is_sound(const Image *image) {
    enum { MOST_BYTES_BITS = 56 };
    const int64_t *all[] = {image->shape, image->file, image->chunk};
    if (image->item_bytes < 1 || image->item_bytes > 8 || image->num_axes < 1 ||
        image->num_axes > AXES || image->codec < STORED || image->codec > ZSTD)
        return 0;
    for (int which = 0; which < 3; which++) {
        int64_t left = ((int64_t)1 << MOST_BYTES_BITS) / INDEX_PAIR_BYTES;
        for (int axis = 0; axis < AXES; axis++) {
            if (all[which][axis] < 1 || all[which][axis] > left) return 0;
            left /= all[which][axis];
        }
    }
    for (int axis = 0; axis < AXES; axis++)
        if (image->shards == NO_SHARDS ? image->file[axis] != image->chunk[axis]
                                       : image->file[axis] % image->chunk[axis] != 0)
            return 0;
    return 1;
}

const char READ_ARRAYS_DOC[] =
    "read_arrays(paths, records, written, functions)\n--\n\n"
    "Read Zarr arrays, each from its own folder, without the interpreter's lock.\n\n"
    "Args:\n"
    "    paths: Of each array two, each ended by a zero byte: of its metadata, and what the paths of\n"
    "        all its files begin with, up to the first number.\n"
    "    records: Of each array 27 int64: size and time of the last change of the metadata in\n"
    "        nanoseconds, as they were; where the pixels go; sizes of the array, of what a file\n"
    "        holds and of a chunk, of five axes each, the first ones 1 where there are fewer; how\n"
    "        many there are; the character between their numbers; bytes of a pixel; 1 or 0 for\n"
    "        being of the other byte order; a pixel of chunks that are not there; 0 to 4 for no\n"
    "        compression, zlib, Blosc, LZ4 and Zstandard; 0 to 2 for no shards, shards with their\n"
    "        index at the end, and at the start; 1 or 0 for a checksum of that; the time after which\n"
    "        no file was changed.\n"
    "    written: Descriptor of a file that images are written to, at positions. If it is -1\n"
    "        they go to memory, at addresses.\n"
    "    functions: Addresses of uncompress (zlib), blosc_decompress_ctx, LZ4_decompress_safe and\n"
    "        ZSTD_decompress; 0 for what is not there.\n\n"
    "Returns:\n"
    "    How many were read: up to the first of which the metadata or a chunk were changed, one is damaged,\n"
    "    or that cannot be read or written.\n\n"
    "Raises:\n"
    "    ValueError: If a record makes no sense, or there are not two paths for each.";

PyObject *read_arrays(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer paths, records;
    int written;
    Py_ssize_t zlib, blosc, lz4, zstd; /* as wide as an address */
    if (!PyArg_ParseTuple(arguments, "y*y*i(nnnn)", &paths, &records, &written, &zlib, &blosc, &lz4,
                          &zstd))
        return NULL;
    const char *path = paths.buf;
    Py_ssize_t num_images = records.len / (Py_ssize_t)sizeof(Image), num_paths = 0, done = 0;
    for (Py_ssize_t at = 0; at < paths.len; at++) num_paths += path[at] == 0;
    int is_right = (paths.len == 0 || path[paths.len - 1] == 0) && num_paths == 2 * num_images &&
                   records.len % (Py_ssize_t)sizeof(Image) == 0;
    Tools tools = {.zlib = (Uncompress *)zlib,
                   .blosc = (BloscDecompress *)blosc,
                   .lz4 = (Lz4Decompress *)lz4,
                   .zstd = (ZstdDecompress *)zstd};
    Py_BEGIN_ALLOW_THREADS
    fill_crc_table(tools.crc_table);
    for (; is_right && done < num_images; done++) {
        Image image; /* a buffer may begin anywhere */
        memcpy(&image, (const char *)records.buf + (size_t)done * sizeof image, sizeof image);
        const char *start = path + strlen(path) + 1;
        is_right = is_sound(&image);
        if (!is_right || !read_image(path, start, &image, written, &tools)) break;
        path = start + strlen(start) + 1;
    }
    Py_END_ALLOW_THREADS
    if (!is_right)
        PyErr_SetString(PyExc_ValueError,
                        "read_arrays needs 27 int64 that make sense for each two paths that end "
                        "with a zero byte.");
    free(tools.path.block);
    free(tools.stored.block);
    free(tools.chunk.block);
    free(tools.image.block);
    free(tools.index.block);
    PyBuffer_Release(&paths);
    PyBuffer_Release(&records);
    return is_right ? PyLong_FromSsize_t(done) : NULL;
}

#endif
