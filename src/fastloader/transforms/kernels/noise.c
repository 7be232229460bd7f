/* Normal noise: hash, quantile, product and sum in one pass; see `Draws.normal_like`. */

#include "kernels.h"

#include <string.h>

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

#define ADD(real)                                                                               \
    FOR_EACH_CPU static void add_##real(real *restrict values, const float *restrict numbers,   \
                                        real factor, real low, real high) {                     \
        for (size_t i = 0; i < CHUNK; i++) {                                                    \
            real value = (real)numbers[i] * factor + values[i];                                 \
            value = value < low ? low : value;                                                  \
            values[i] = value > high ? high : value;                                            \
        }                                                                                       \
    }

ADD(float)
ADD(double)

void add_noise(char *out, const char *images, const PixelType *type, size_t count, size_t size,
               const uint64_t *keys, const void *factors, const float *quantiles, Limits limits) {
    float numbers[CHUNK];
    union {
        float narrow[CHUNK];
        double wide[CHUNK];
    } values;
    memset(&values, 0, sizeof values);
    for (size_t image = 0; image < count; image++) {
        uint64_t first = keys[image];
        for (size_t start = 0; start < size; start += CHUNK, first += CHUNK / 4 * STEP) {
            size_t num = size - start < CHUNK ? size - start : CHUNK;
            size_t place = (image * size + start) * type->itemsize;
            ask_for(images + place, num * type->itemsize);
            ask_for(out + place, num * type->itemsize);
            draw_normal(numbers, first, quantiles);
            type->load(images + place, &values, num);
            if (type->is_wide)
                add_double(values.wide, numbers, ((const double *)factors)[image], limits.low,
                           limits.high);
            else
                add_float(values.narrow, numbers, ((const float *)factors)[image],
                          (float)limits.low, (float)limits.high);
            type->store(&values, out + place, num);
        }
    }
}
