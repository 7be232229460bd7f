/* Normal noise: hash, quantile, product and sum in one pass; see `Draws.normal_like`. */

#include "kernels.h"

enum { CHUNK = 256 }; /* pixels, which stay in the innermost cache */

#define STEP UINT64_C(0x9E3779B97F4A7C15)

typedef uint16_t sixteen_bits __attribute__((may_alias));

static inline uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

/* Each 16 bits choose a quantile. */
FOR_EACH_CPU static void draw_normal(float *restrict numbers, uint64_t first,
                                     const float *restrict quantiles) {
    uint64_t words[CHUNK / 4];
    for (uint64_t i = 0; i < CHUNK / 4; i++) words[i] = mix(first + i * STEP);
    const sixteen_bits *sixteens = (const sixteen_bits *)words;
    for (size_t i = 0; i < CHUNK; i++) numbers[i] = quantiles[sixteens[i]];
}

#define NOISE(real)                                                                             \
    typedef real any_##real __attribute__((aligned(1), may_alias)); /* wherever it lies */      \
                                                                                                \
    FOR_EACH_CPU static void add_##real(any_##real *out, const any_##real *values,              \
                                        const float *restrict numbers, size_t count,            \
                                        real factor, real low, real high) {                     \
        _Pragma("GCC ivdep") /* `out` is `values` or apart from them */                         \
        for (size_t i = 0; i < count; i++) {                                                    \
            real value = (real)numbers[i] * factor + values[i];                                 \
            value = value < low ? low : value;                                                  \
            out[i] = value > high ? high : value;                                               \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static void add_noise_##real(char *out, const char *images, const PixelType *type,          \
                                 size_t count, size_t size, const uint64_t *keys,               \
                                 const real *factors, const float *quantiles, real low,         \
                                 real high) {                                                   \
        float numbers[CHUNK];                                                                   \
        real values[CHUNK];                                                                     \
        for (size_t image = 0; image < count; image++) {                                        \
            uint64_t first = keys[image];                                                       \
            for (size_t start = 0; start < size; start += CHUNK, first += CHUNK / 4 * STEP) {   \
                size_t num = size - start < CHUNK ? size - start : CHUNK;                       \
                const char *from = images + (image * size + start) * type->itemsize;            \
                char *to = out + (image * size + start) * type->itemsize;                       \
                ask_for(from, num * type->itemsize);                                            \
                ask_for(to, num * type->itemsize);                                              \
                draw_normal(numbers, first, quantiles);                                         \
                if (type->kind == 'f') {                                                        \
                    add_##real((any_##real *)to, (const any_##real *)from, numbers, num,        \
                               factors[image], low, high);                                      \
                } else {                                                                        \
                    type->load(from, values, num);                                              \
                    add_##real(values, values, numbers, num, factors[image], low, high);        \
                    type->store(values, to, num);                                               \
                }                                                                               \
            }                                                                                   \
        }                                                                                       \
    }

NOISE(float)
NOISE(double)

void add_noise(char *out, const char *images, const PixelType *type, size_t count, size_t size,
               const uint64_t *keys, const void *factors, const float *quantiles, Limits limits) {
    if (type->is_wide)
        add_noise_double(out, images, type, count, size, keys, factors, quantiles, limits.low,
                         limits.high);
    else
        add_noise_float(out, images, type, count, size, keys, factors, quantiles,
                        (float)limits.low, (float)limits.high);
}
