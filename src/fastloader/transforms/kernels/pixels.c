/* Pixel types: to floating point, and back. */

#include "kernels.h"

#include <math.h>
#include <string.h>

/* To add and take away 1.5 * 2**23 leaves no bits behind the point: rounding without a call. */
#define ROUND_SMALL(value) (((value) + 12582912.0f) - 12582912.0f)

#define INTEGER(name, type, real, round, lowest, highest)                                       \
    typedef type any_##name __attribute__((aligned(1))); /* wherever it lies */                 \
    FOR_EACH_CPU static void load_##name(const void *pixels, void *values, size_t count) {      \
        const type *restrict from = pixels;                                                     \
        real *restrict to = values;                                                             \
        for (size_t i = 0; i < count; i++) to[i] = (real)from[i];                               \
    }                                                                                           \
    FOR_EACH_CPU static void store_##name(const void *values, void *pixels, size_t count) {     \
        const real *restrict from = values;                                                     \
        any_##name *restrict to = pixels;                                                       \
        for (size_t i = 0; i < count; i++) {                                                    \
            real value = from[i] > (real)(lowest) ? from[i] : (real)(lowest); /* NaN, too */    \
            value = value < (real)(highest) ? value : (real)(highest);                          \
            to[i] = (type)round(value);                                                         \
        }                                                                                       \
    }

#define FLOATING(name, type)                                                                    \
    static void copy_##name(const void *from, void *to, size_t count) {                         \
        memmove(to, from, count * sizeof(type));                                                \
    }

INTEGER(uint8, uint8_t, float, ROUND_SMALL, 0, UINT8_MAX)
INTEGER(int8, int8_t, float, ROUND_SMALL, INT8_MIN, INT8_MAX)
INTEGER(uint16, uint16_t, float, ROUND_SMALL, 0, UINT16_MAX)
INTEGER(int16, int16_t, float, ROUND_SMALL, INT16_MIN, INT16_MAX)
INTEGER(uint32, uint32_t, double, rint, 0, UINT32_MAX)
INTEGER(int32, int32_t, double, rint, INT32_MIN, INT32_MAX)
/* The greatest double that fits. */
INTEGER(uint64, uint64_t, double, rint, 0, 18446744073709549568.0)
INTEGER(int64, int64_t, double, rint, INT64_MIN, 9223372036854774784.0)
FLOATING(float32, float)
FLOATING(float64, double)

static const PixelType TYPES[] = {
    {'u', 1, false, load_uint8, store_uint8},
    {'i', 1, false, load_int8, store_int8},
    {'u', 2, false, load_uint16, store_uint16},
    {'i', 2, false, load_int16, store_int16},
    {'u', 4, true, load_uint32, store_uint32},
    {'i', 4, true, load_int32, store_int32},
    {'u', 8, true, load_uint64, store_uint64},
    {'i', 8, true, load_int64, store_int64},
    {'f', 4, false, copy_float32, copy_float32},
    {'f', 8, true, copy_float64, copy_float64},
};

const PixelType *find_pixel_type(char kind, size_t itemsize) {
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        if (TYPES[i].kind == kind && TYPES[i].itemsize == itemsize) return &TYPES[i];
    }
    return NULL;
}
