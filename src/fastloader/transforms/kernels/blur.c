/* Blur: sums of shifted rows, then of shifted columns, with the edges repeated. */

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 }; /* of a plane at once, so that all stays in the cache */

typedef float FloatVector __attribute__((vector_size(64), aligned(1), may_alias));
typedef double DoubleVector __attribute__((vector_size(64), aligned(1), may_alias));

/* Rows are copied by whole vectors, so what comes after a row is written to as well: the next row
   mends that, and after the last one there is room. */
enum { SPARE = sizeof(FloatVector) / sizeof(float) };

#define BLUR(real, Vector)                                                                      \
    enum { LANES_##real = sizeof(Vector) / sizeof(real) };                                      \
                                                                                                \
    /* Sum pieces of memory, each `step` after the one before, by weight and in this order. */  \
    FOR_EACH_CPU static void sum_##real(real *restrict out, const real *restrict first,         \
                                        size_t step, const real *restrict weights, size_t taps, \
                                        size_t length, const char *soon) {                      \
        enum { LANES = LANES_##real };                                                          \
        size_t start = 0;                                                                       \
        for (; start + 4 * LANES <= length; start += 4 * LANES) { /* sums stay in registers */  \
            Vector a = {0}, b = {0}, c = {0}, d = {0};                                          \
            const real *part = first + start;                                                   \
            ask_for(soon + start * sizeof(real), 4 * sizeof(Vector));                           \
            for (size_t tap = 0; tap < taps; tap++, part += step) {                             \
                a += weights[tap] * *(const Vector *)part;                                      \
                b += weights[tap] * *(const Vector *)(part + LANES);                            \
                c += weights[tap] * *(const Vector *)(part + 2 * LANES);                        \
                d += weights[tap] * *(const Vector *)(part + 3 * LANES);                        \
            }                                                                                   \
            *(Vector *)(out + start) = a;                                                       \
            *(Vector *)(out + start + LANES) = b;                                               \
            *(Vector *)(out + start + 2 * LANES) = c;                                           \
            *(Vector *)(out + start + 3 * LANES) = d;                                           \
        }                                                                                       \
        for (; start < length; start++) {                                                       \
            real sum = 0;                                                                       \
            for (size_t tap = 0; tap < taps; tap++)                                             \
                sum += weights[tap] * first[start + tap * step];                                \
            out[start] = sum;                                                                   \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static inline __attribute__((always_inline)) void copy_row_##real(real *out, const real *row, size_t width) {        \
        for (size_t i = 0; i < width; i += LANES_##real)                                        \
            *(Vector *)(out + i) = *(const Vector *)(row + i);                                  \
    }                                                                                           \
                                                                                                \
    static inline __attribute__((always_inline)) void repeat_##real(real *out, real value, size_t count) {               \
        for (size_t i = 0; i < count; i += LANES_##real)                                        \
            *(Vector *)(out + i) = value - (Vector){0}; /* -0 stays what it is */               \
    }                                                                                           \
                                                                                                \
    FOR_EACH_CPU static void blur_rows_##real(char *out, const char *plane,                     \
                                              const PixelType *type, size_t height,             \
                                              size_t width, size_t radius, size_t top,          \
                                              const real *weights, real *padded, real *rows) {  \
        size_t taps = 2 * radius + 1, length = width + 2 * radius;                              \
        size_t num_rows = height - top < ROWS ? height - top : ROWS;                            \
        size_t first = top < radius ? 0 : top - radius;                                         \
        size_t end = top + num_rows + radius < height ? top + num_rows + radius : height;       \
        type->load(plane + first * width * type->itemsize, rows, (end - first) * width);        \
        for (size_t i = 0; i < num_rows + 2 * radius; i++) {                                    \
            size_t number = top + i < first + radius ? 0 : top + i - radius - first;            \
            const real *row = rows + (number < end - first ? number : end - first - 1) * width; \
            real *line = padded + i * length;                                                   \
            repeat_##real(line, row[0], radius);                                                \
            copy_row_##real(line + radius, row, width);                                         \
            repeat_##real(line + radius + width, row[width - 1], radius);                       \
        }                                                                                       \
        /* All rows as one line: sums over the pads are fewer than calls for each would be. */  \
        sum_##real(rows, padded, length, weights, taps, num_rows * length,                         \
                   plane + height * width * type->itemsize);                                    \
        sum_##real(padded, rows, 1, weights, taps, num_rows * length - 2 * radius,              \
                   out + height * width * type->itemsize);                                      \
        for (size_t row = 0; row < num_rows; row++)                                             \
            copy_row_##real(rows + row * width, padded + row * length, width);                  \
        type->store(rows, out + top * width * type->itemsize, num_rows * width);                \
    }                                                                                           \
                                                                                                \
    static bool blur_##real(char *out, const Images *images, const PixelType *type,             \
                            const int64_t *radii, const real *weights, size_t most_taps) {      \
        size_t count = (size_t)images->shape[0], channels = (size_t)images->shape[1];           \
        size_t height = (size_t)images->shape[2], width = (size_t)images->shape[3];             \
        size_t plane_bytes = height * width * type->itemsize;                                   \
        size_t num_rows = (height < ROWS ? height : ROWS) + most_taps;                          \
        size_t num_values = num_rows * (width + most_taps) + SPARE;                             \
        real *padded = calloc(num_values, sizeof(real)), *rows = calloc(num_values, sizeof(real)); \
        bool has_memory = padded != NULL && rows != NULL;                                       \
        for (size_t image = 0; has_memory && image < count; image++) {                          \
            for (size_t channel = 0; channel < channels; channel++) {                           \
                size_t place = (image * channels + channel) * plane_bytes;                      \
                if (radii[image] == 0) { /* the weight is 1 */                                  \
                    memcpy(out + place, images->data + place, plane_bytes);                     \
                    continue;                                                                   \
                }                                                                               \
                for (size_t top = 0; top < height; top += ROWS)                                 \
                    blur_rows_##real(out + place, images->data + place, type, height, width,    \
                                     (size_t)radii[image], top, weights + image * most_taps,    \
                                     padded, rows);                                             \
            }                                                                                   \
        }                                                                                       \
        free(rows);                                                                             \
        free(padded);                                                                           \
        return has_memory;                                                                      \
    }

BLUR(float, FloatVector)
BLUR(double, DoubleVector)

bool blur(char *out, const Images *images, const PixelType *type, const int64_t *radii,
          const void *weights, size_t most_taps) {
    for (int axis = 0; axis < 4; axis++) {
        if (images->shape[axis] == 0) return true;
    }
    if (type->is_wide) return blur_double(out, images, type, radii, weights, most_taps);
    return blur_float(out, images, type, radii, weights, most_taps);
}
