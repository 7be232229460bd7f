/* What the kernels share: pixel types, and the work on raw memory that module.c gives Python.

   All arithmetic is that of the code in NumPy and torch which the kernels stand in for, operation
   by operation, so that both give the same bits. For that reason products and sums must not be
   contracted to one operation (-ffp-contract=off).

   Only module.c knows Python. The work gets sizes and addresses that were checked there, and runs
   without the interpreter's lock. */

#ifndef FASTLOADER_KERNELS_H
#define FASTLOADER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One version of a function for each of these CPUs, of which the first call takes the best. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12 && \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_EACH_CPU \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

/* Ask for memory that is needed soon, so that it comes while others are computed with. */
static inline void ask_for(const char *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(memory + i);
}

/* A pixel type. It is computed with as float or, if that would lose some values, as double. */
typedef struct {
    char kind; /* 'i' signed, 'u' unsigned, 'f' floating point */
    size_t itemsize;
    bool is_wide; /* computed with as double */
    void (*load)(const void *pixels, void *values, size_t count);
    /* Round to the nearest (halves to even), and end at the bounds of the type. */
    void (*store)(const void *values, void *pixels, size_t count);
} PixelType;

/* The type, or NULL if there is none. */
const PixelType *find_pixel_type(char kind, size_t itemsize);

/* Images of shape (count, channels, height, width), and their strides in bytes. */
typedef struct {
    char *data;
    ptrdiff_t shape[4];
    ptrdiff_t strides[4];
    size_t itemsize;
} Images;

/* copies.c: `out` is contiguous in all of these. */

enum { MIRRORED = 1, UPSIDE_DOWN = 2, TRANSPOSED = 4 };

/* Write each image another way round: rows for columns, upside down, mirrored, in this order.
   Returns false if there is no memory. */
bool reorient(const Images *out, const Images *images, const uint8_t *ways);

/* Cut a window out of each image; what lies outside of it becomes `fill`. False: no memory. */
bool cut(const Images *out, const Images *images, const int64_t *tops, const int64_t *lefts,
         const void *fill);

/* Those below take contiguous images, which may be `out`, with `size` pixels each. Limits are
   those that the result is cut off at before it is rounded; infinite: not at all. */

typedef struct {
    double low, high;
} Limits;

/* noise.c: `quantiles` are 65,536, `factors` float or double. */
void add_noise(char *out, const char *images, const PixelType *type, size_t count, size_t size,
               const uint64_t *keys, const void *factors, const float *quantiles, Limits limits);

/* A loop of NumPy: reads `count` numbers from the first address and writes to the second. */
typedef struct {
    void (*run)(char **both, const ptrdiff_t *count, const ptrdiff_t *strides, void *data);
    void *data;
} Loop;

/* gamma.c: `exponents` are float or double, at least 0. `range` has the values that stay as they
   are; NULL: the least and greatest of each image. `loops` are those of log2 and exp2, for the type
   to compute with. */
void bend(char *out, const char *images, const PixelType *type, size_t count, size_t size,
          const void *exponents, const Limits *range, Limits limits, const Loop loops[2]);

/* blur.c: `weights` are float or double, `most_taps` for each image, of which the first
   2 * radius + 1 count. `out` is other memory. Returns false if there is no memory. */
bool blur(char *out, const Images *images, const PixelType *type, const int64_t *radii,
          const void *weights, size_t most_taps);

#endif
