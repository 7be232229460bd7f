/* Decompresses what zlib has compressed, into memory of the size that is known; see _inflate.c. */

#ifndef FASTLOADER_INFLATE_H
#define FASTLOADER_INFLATE_H

#include <stddef.h>
#include <stdint.h>

typedef struct Inflater Inflater;

/* NULL without memory; freed by free(). */
Inflater *new_inflater(void);

/* 1 if a whole zlib stream was in the first bytes of `source`, filled `target` to the last byte and has the
   checksum that it claims; else 0, with anything in `target`. */
int inflate_zlib(Inflater *inflater, const uint8_t *source, size_t source_bytes, uint8_t *target,
                 size_t target_bytes);

#endif
