/* Pixels that change place: copies of planes with other strides, and of windows. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

/* A plane to read with the strides of another way round. */
typedef struct {
    const char *first;
    ptrdiff_t row_stride, column_stride; /* bytes */
} View;

/* Elements as bits, wherever they lie, and 16 bytes of them. */
#define ELEMENTS(name, type)                                                                    \
    typedef type name __attribute__((aligned(1), may_alias));                                   \
    typedef type name##_vector __attribute__((vector_size(16), aligned(1), may_alias));

ELEMENTS(bytes1, uint8_t)
ELEMENTS(bytes2, uint16_t)
ELEMENTS(bytes4, uint32_t)
ELEMENTS(bytes8, uint64_t)

/* How the first and the second halves of two such vectors are interleaved. */
#define bytes1_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define bytes1_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define bytes2_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define bytes2_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#define bytes4_LOW 0, 4, 1, 5
#define bytes4_HIGH 2, 6, 3, 7
#define bytes8_LOW 0, 2
#define bytes8_HIGH 1, 3

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(type, one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else
#define SHUFFLED(type, one, other, ...) \
    __builtin_shuffle(one, other, (type##_vector){__VA_ARGS__})
#endif

#define MOVES(type)                                                                             \
    enum { LANES_##type = 16 / sizeof(type) };                                                  \
                                                                                                \
    FOR_EACH_CPU static void reverse_##type(type *restrict out, const type *restrict last,      \
                                            size_t count) {                                     \
        for (size_t i = 0; i < count; i++) out[i] = last[-(ptrdiff_t)i];                        \
    }                                                                                           \
                                                                                                \
    /* Turn a square of columns that lie in memory one element after the other. To interleave   \
       halves as many times as they can be halved exchanges rows and columns. */                \
    static inline void turn_##type(type *restrict out, ptrdiff_t width,                         \
                                   const char *restrict columns, ptrdiff_t stride) {            \
        enum { LANES = LANES_##type, HALF = LANES / 2 };                                        \
        type##_vector lines[LANES], mixed[LANES];                                               \
        for (int i = 0; i < LANES; i++)                                                         \
            lines[i] = *(const type##_vector *)(columns + i * stride);                          \
        for (int step = 1; step < LANES; step *= 2) {                                           \
            for (int i = 0; i < HALF; i++) {                                                    \
                mixed[2 * i] = SHUFFLED(type, lines[i], lines[i + HALF], type##_LOW);           \
                mixed[2 * i + 1] = SHUFFLED(type, lines[i], lines[i + HALF], type##_HIGH);      \
            }                                                                                   \
            for (int i = 0; i < LANES; i++) lines[i] = mixed[i];                                \
        }                                                                                       \
        for (int i = 0; i < LANES; i++) *(type##_vector *)(out + i * width) = lines[i];         \
    }                                                                                           \
                                                                                                \
    static void gather_##type(type *out, View from, ptrdiff_t height, ptrdiff_t width) {        \
        enum { LANES = LANES_##type };                                                          \
        bool is_up = from.row_stride == (ptrdiff_t)sizeof(type);                                \
        bool is_down = from.row_stride == -(ptrdiff_t)sizeof(type);                             \
        ptrdiff_t bottom = is_up || is_down ? height - height % LANES : 0;                      \
        ptrdiff_t right = width - width % LANES;                                                \
        for (ptrdiff_t row = 0; row < bottom; row += LANES) {                                   \
            ptrdiff_t lowest = is_up ? row : row + LANES - 1; /* in memory */                   \
            const char *pixels = from.first + lowest * from.row_stride;                         \
            for (ptrdiff_t column = 0; column < right; column += LANES)                         \
                turn_##type(out + lowest * width + column, is_up ? width : -width,              \
                            pixels + column * from.column_stride, from.column_stride);          \
        }                                                                                       \
        for (ptrdiff_t row = 0; row < height; row++) {                                          \
            const char *pixels = from.first + row * from.row_stride;                            \
            for (ptrdiff_t column = row < bottom ? right : 0; column < width; column++)         \
                out[row * width + column] = *(const type *)(pixels + column * from.column_stride); \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static void copy_plane_##type(char *out, View from, ptrdiff_t height, ptrdiff_t width) {    \
        if (from.column_stride != (ptrdiff_t)sizeof(type) &&                                    \
            from.column_stride != -(ptrdiff_t)sizeof(type)) {                                   \
            gather_##type((type *)out, from, height, width);                                    \
            return;                                                                             \
        }                                                                                       \
        size_t length = (size_t)width * sizeof(type);                                           \
        for (ptrdiff_t row = 0; row < height; row++, out += length) {                           \
            const char *pixels = from.first + row * from.row_stride;                            \
            if (from.column_stride > 0)                                                         \
                memcpy(out, pixels, length);                                                    \
            else                                                                                \
                reverse_##type((type *)out, (const type *)pixels, (size_t)width);               \
        }                                                                                       \
    }

MOVES(bytes1)
MOVES(bytes2)
MOVES(bytes4)
MOVES(bytes8)

static void copy_plane(char *out, View from, ptrdiff_t height, ptrdiff_t width, size_t itemsize) {
    switch (itemsize) {
    case 1: copy_plane_bytes1(out, from, height, width); break;
    case 2: copy_plane_bytes2(out, from, height, width); break;
    case 4: copy_plane_bytes4(out, from, height, width); break;
    default: copy_plane_bytes8(out, from, height, width);
    }
}

static View turned(View view, int way, ptrdiff_t height, ptrdiff_t width) {
    if (way & TRANSPOSED) { /* the plane is square */
        ptrdiff_t stride = view.row_stride;
        view.row_stride = view.column_stride;
        view.column_stride = stride;
    }
    if (way & UPSIDE_DOWN) {
        view.first += (height - 1) * view.row_stride;
        view.row_stride = -view.row_stride;
    }
    if (way & MIRRORED) {
        view.first += (width - 1) * view.column_stride;
        view.column_stride = -view.column_stride;
    }
    return view;
}

bool reorient(const Images *out, const Images *images, const uint8_t *ways) {
    ptrdiff_t count = out->shape[0], channels = out->shape[1];
    ptrdiff_t height = out->shape[2], width = out->shape[3];
    size_t plane_bytes = (size_t)height * (size_t)width * out->itemsize;
    bool is_in_place = out->data == images->data;
    if (count == 0 || channels == 0 || plane_bytes == 0) return true;
    char *aside = malloc(plane_bytes);
    if (aside == NULL) return false;
    for (ptrdiff_t image = 0; image < count; image++) {
        if (is_in_place && ways[image] == 0) continue;
        for (ptrdiff_t channel = 0; channel < channels; channel++) {
            char *plane = out->data + (size_t)(image * channels + channel) * plane_bytes;
            View view = {
                images->data + image * images->strides[0] + channel * images->strides[1],
                images->strides[2],
                images->strides[3],
            };
            /* To read and to write columns is fast where the plane was just read and written
               row by row. */
            if (is_in_place || ways[image] & TRANSPOSED) {
                if (!is_in_place) copy_plane(plane, view, height, width, out->itemsize);
                memcpy(aside, plane, plane_bytes);
                view = (View){aside, width * (ptrdiff_t)out->itemsize, (ptrdiff_t)out->itemsize};
            }
            copy_plane(plane, turned(view, ways[image], height, width), height, width,
                       out->itemsize);
        }
    }
    free(aside);
    return true;
}

static ptrdiff_t limited(int64_t value, ptrdiff_t most) {
    return value < 0 ? 0 : value < most ? (ptrdiff_t)value : most;
}

bool cut(const Images *out, const Images *images, const int64_t *tops, const int64_t *lefts,
         const void *fill) {
    ptrdiff_t height = out->shape[2], width = out->shape[3];
    size_t itemsize = out->itemsize, length = (size_t)width * itemsize;
    if (width == 0) return true;
    char *empty_line = malloc(length);
    if (empty_line == NULL) return false;
    for (size_t i = 0; i < length; i += itemsize) memcpy(empty_line + i, fill, itemsize);
    char *line = out->data;
    for (ptrdiff_t image = 0; image < out->shape[0]; image++) {
        /* The columns of the image from `first` to `end` go to `before` and the following ones. */
        ptrdiff_t first = limited(lefts[image], images->shape[3]);
        ptrdiff_t end = limited(lefts[image] + width, images->shape[3]);
        size_t before = (size_t)limited(-lefts[image], width) * itemsize;
        size_t inside = (size_t)(end - first) * itemsize;
        for (ptrdiff_t channel = 0; channel < out->shape[1]; channel++) {
            const char *plane =
                images->data + image * images->strides[0] + channel * images->strides[1];
            for (int64_t row = tops[image]; row < tops[image] + height; row++, line += length) {
                if (row < 0 || row >= images->shape[2] || inside == 0) {
                    memcpy(line, empty_line, length);
                    continue;
                }
                View view = {plane + row * images->strides[2] + first * images->strides[3], 0,
                             images->strides[3]};
                memcpy(line, empty_line, before);
                copy_plane(line + before, view, 1, end - first, itemsize);
                memcpy(line + before + inside, empty_line, length - before - inside);
            }
        }
    }
    free(empty_line);
    return true;
}
