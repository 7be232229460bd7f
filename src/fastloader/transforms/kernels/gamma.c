/* Powers of the place in a range; see `RandomGamma`.

   The logarithm and the power of 2 are NumPy's own loops, called for as many values as the
   innermost cache holds: their last bits are those of one image alone, which NumPy computes. */

#include "kernels.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 256 }; /* values: with four times as many their addresses get into each other's way */

/* Run a loop in place. */
static void run_loop(Loop loop, void *values, size_t count, size_t itemsize) {
    char *both[] = {values, values};
    ptrdiff_t size = (ptrdiff_t)count, strides[] = {(ptrdiff_t)itemsize, (ptrdiff_t)itemsize};
    loop.run(both, &size, strides, loop.data);
}

/* `whole` has the bits of a `real`. */
#define GAMMA(real, suffix, whole)                                                              \
    typedef real any_##real __attribute__((aligned(1), may_alias)); /* wherever it lies */      \
                                                                                                \
    /* The bits of a number in an order of their own, in which NaN comes before or after all    \
       numbers; or back. */                                                                     \
    static inline whole in_order_##real(whole bits) {                                           \
        const whole MOST = (whole)(((uint64_t)1 << (8 * sizeof(whole) - 1)) - 1);               \
        return bits ^ ((bits >> (8 * sizeof(whole) - 1)) & MOST);                               \
    }                                                                                           \
                                                                                                \
    static inline whole order_of_##real(real value) {                                           \
        whole bits;                                                                             \
        memcpy(&bits, &value, sizeof bits);                                                     \
        return in_order_##real(bits);                                                           \
    }                                                                                           \
                                                                                                \
    static inline real value_of_##real(whole order) {                                           \
        real value;                                                                             \
        order = in_order_##real(order);                                                         \
        memcpy(&value, &order, sizeof value);                                                   \
        return value;                                                                           \
    }                                                                                           \
                                                                                                \
    FOR_EACH_CPU static void widen_##real(whole *least, whole *most, const any_##real *values,  \
                                          size_t count) {                                       \
        whole low = *least, high = *most;                                                       \
        for (size_t i = 0; i < count; i++) {                                                    \
            whole order = order_of_##real(values[i]);                                           \
            low = order < low ? order : low;                                                    \
            high = order > high ? order : high;                                                 \
        }                                                                                       \
        *least = low, *most = high;                                                             \
    }                                                                                           \
                                                                                                \
    static const any_##real *loaded_##real(const char *pixels, const PixelType *type,           \
                                           size_t count, real *room) {                          \
        if (type->kind == 'f') return (const any_##real *)pixels;                               \
        type->load(pixels, room, count);                                                        \
        return room;                                                                            \
    }                                                                                           \
                                                                                                \
    /* The least and the greatest value of an image; at least one is NaN if any pixel is. */    \
    static void range_of_##real(const char *image, const PixelType *type, size_t size,          \
                                real *low, real *high) {                                        \
        real room[CHUNK];                                                                       \
        whole least = order_of_##real((real)INFINITY), most = order_of_##real(-(real)INFINITY); \
        for (size_t start = 0; start < size; start += CHUNK) {                                  \
            size_t num = size - start < CHUNK ? size - start : CHUNK;                           \
            const char *pixels = image + start * type->itemsize;                                \
            widen_##real(&least, &most, loaded_##real(pixels, type, num, room), num);           \
        }                                                                                       \
        *low = value_of_##real(least), *high = value_of_##real(most);                           \
    }                                                                                           \
                                                                                                \
    FOR_EACH_CPU static void place_##real(real *places, const any_##real *values,               \
                                          size_t count, real low, real extent) {                \
        _Pragma("GCC ivdep") /* `places` are `values` or apart from them */                     \
        for (size_t i = 0; i < count; i++) places[i] = (values[i] - low) / extent;              \
    }                                                                                           \
                                                                                                \
    FOR_EACH_CPU static void multiply_##real(real *values, size_t count, real factor) {         \
        for (size_t i = 0; i < count; i++) values[i] *= factor;                                 \
    }                                                                                           \
                                                                                                \
    FOR_EACH_CPU static void finish_##real(any_##real *out, const real *powers,                 \
                                           const real *restrict signs, size_t count, real low,  \
                                           real extent, real least, real most) {                \
        _Pragma("GCC ivdep") /* `out` is `powers` or apart from them */                         \
        for (size_t i = 0; i < count; i++) {                                                    \
            real power = signs == NULL ? powers[i] : copysign##suffix(powers[i], signs[i]);     \
            real value = power * extent + low;                                                  \
            value = value < least ? least : value;                                              \
            out[i] = value > most ? most : value;                                               \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static void bend_##real(char *out, const char *images, const PixelType *type, size_t count, \
                            size_t size, const real *exponents, const Limits *range,            \
                            Limits limits, const Loop loops[2]) {                                \
        real powers[CHUNK], places[CHUNK];                                                      \
        for (size_t image = 0; image < count; image++) {                                        \
            const char *from = images + image * size * type->itemsize;                          \
            char *to = out + image * size * type->itemsize;                                     \
            real low, extent;                                                                   \
            if (range == NULL) {                                                                \
                range_of_##real(from, type, size, &low, &extent);                               \
                extent -= low;                                                                  \
                if (extent == 0) extent = 1; /* all stay as they are with any one */            \
            } else {                                                                            \
                low = (real)range->low;                                                         \
                extent = (real)(range->high > range->low ? range->high - range->low : 1);       \
            }                                                                                   \
            for (size_t start = 0; start < size; start += CHUNK) {                              \
                size_t num = size - start < CHUNK ? size - start : CHUNK;                       \
                char *part = to + start * type->itemsize;                                       \
                const any_##real *values =                                                      \
                    loaded_##real(from + start * type->itemsize, type, num, powers);            \
                /* The same part of the next image, or what lies there. */                      \
                ask_for(from + (size + start) * type->itemsize, num * type->itemsize);          \
                ask_for(part + num * type->itemsize, num * type->itemsize);                     \
                if (range == NULL) {                                                            \
                    place_##real(powers, values, num, low, extent);                             \
                } else {                                                                        \
                    place_##real(places, values, num, low, extent);                             \
                    for (size_t i = 0; i < num; i++) powers[i] = fabs##suffix(places[i]);       \
                }                                                                               \
                run_loop(loops[0], powers, num, sizeof(real));                              \
                multiply_##real(powers, num, exponents[image]);                                 \
                run_loop(loops[1], powers, num, sizeof(real));                              \
                if (exponents[image] == 0)                                                      \
                    for (size_t i = 0; i < num; i++) powers[i] = 1;                             \
                bool is_float = type->kind == 'f';                                              \
                finish_##real(is_float ? (any_##real *)part : powers, powers,                   \
                              range == NULL ? NULL : places, num, low, extent,                  \
                              (real)limits.low, (real)limits.high);                             \
                if (!is_float) type->store(powers, part, num);                                  \
            }                                                                                   \
        }                                                                                       \
    }

GAMMA(float, f, int32_t)
GAMMA(double, , int64_t)

void bend(char *out, const char *images, const PixelType *type, size_t count, size_t size,
          const void *exponents, const Limits *range, Limits limits, const Loop loops[2]) {
    if (type->is_wide)
        bend_double(out, images, type, count, size, exponents, range, limits, loops);
    else
        bend_float(out, images, type, count, size, exponents, range, limits, loops);
}
