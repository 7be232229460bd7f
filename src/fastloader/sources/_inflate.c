/* Decompresses zlib streams (RFC 1950, RFC 1951).

   zlib takes a quarter longer for images, as it takes its input and gives its output in pieces, and would have
   to be there to build with. Here all input is there, and the size of the output known. Bits are taken from a
   register of 64, filled once for several symbols; a code of up to 11 bits is found by one look into a
   table, a longer one by two. Streams that zlib would refuse are refused; who calls then asks zlib why. */

#include "_inflate.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_CODE_BITS = 15,
    LITERAL_BITS = 11, /* looked up at once */
    DISTANCE_BITS = 8,
    LENGTH_BITS = 7,
    NUM_LITERALS = 288,
    NUM_DISTANCES = 32,
    NUM_LENGTHS = 19,
    END_OF_BLOCK = 256,
    /* Each longer code could have a second table of its own. */
    LITERAL_SLOTS = (1 << LITERAL_BITS) + (NUM_LITERALS << (MOST_CODE_BITS - LITERAL_BITS)),
    DISTANCE_SLOTS = (1 << DISTANCE_BITS) + (NUM_DISTANCES << (MOST_CODE_BITS - DISTANCE_BITS)),
    MOST_MATCH = 258,
    COPIED_AT_ONCE = 32,
};

/* A slot of a table: bits of the code and its extra bits in 0 to 5, of the code alone (of a second table: by
   which it is looked up) in 8 to 12, what it is in 13 to 15, value or first slot of the second table from 16
   on. A slot of 0 has no code. */
enum { LITERAL = 1 << 13, MATCH = 2 << 13, SECOND = 3 << 13, END = 4 << 13, WHAT = 7 << 13 };

struct Inflater {
    uint32_t literals[LITERAL_SLOTS], distances[DISTANCE_SLOTS], lengths[1 << LENGTH_BITS];
    int is_fixed; /* the tables are those of fixed codes */
};

typedef struct {
    const uint8_t *next, *end;
    uint64_t bits;    /* the next ones, lowest first */
    unsigned count;   /* how many of them are sure */
    unsigned missing; /* bytes after the end that were taken as zeros */
} Input;

/* Makes 56 bits or more sure; 0 if more were used than there were. */
static inline int fill(Input *in) {
    if (in->end - in->next >= 8) {
        uint64_t more;
        memcpy(&more, in->next, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        more = __builtin_bswap64(more);
#endif
        in->bits |= more << in->count;
        in->next += (63 - in->count) >> 3;
        in->count |= 56;
        return 1;
    }
    for (; in->count < 56; in->count += 8) {
        if (in->next < in->end)
            in->bits |= (uint64_t)*in->next++ << in->count;
        else
            in->missing++;
    }
    return in->missing <= 8;
}

static inline uint32_t take(Input *in, unsigned count) {
    uint32_t value = (uint32_t)(in->bits & (((uint64_t)1 << count) - 1));
    in->bits >>= count;
    in->count -= count;
    return value;
}

/* 0 if bits after the end were used. */
static int give_back_bytes(Input *in) {
    unsigned unused = in->count >> 3;
    if (in->missing > unused) return 0;
    in->next -= unused - in->missing;
    in->bits = in->count = in->missing = 0;
    return 1;
}

static uint32_t reversed(uint32_t code, unsigned bits) {
    code = (code & 0x5555) << 1 | (code >> 1 & 0x5555);
    code = (code & 0x3333) << 2 | (code >> 2 & 0x3333);
    code = (code & 0x0f0f) << 4 | (code >> 4 & 0x0f0f);
    code = (code & 0x00ff) << 8 | code >> 8;
    return code >> (16 - bits);
}

/* 0 if the lengths are those of no code. `slots` says what each symbol is, without its bits. */
static int make_table(uint32_t *table, unsigned first_bits, const uint8_t *lengths,
                      unsigned num_symbols, const uint32_t *slots) {
    unsigned counts[MOST_CODE_BITS + 1] = {0}, starts[MOST_CODE_BITS + 2] = {0}, most = 0;
    uint16_t sorted[NUM_LITERALS];
    for (unsigned symbol = 0; symbol < num_symbols; symbol++) counts[lengths[symbol]]++;
    counts[0] = 0;
    int left = 1;
    for (unsigned bits = 1; bits <= MOST_CODE_BITS; bits++) {
        left = 2 * left - (int)counts[bits];
        if (left < 0) return 0;
        if (counts[bits]) most = bits;
        starts[bits + 1] = starts[bits] + counts[bits];
    }
    if (left && most > 1) return 0; /* not all codes are used, but for a single one */
    if (left) memset(table, 0, sizeof *table << first_bits);
    unsigned num_codes = starts[MOST_CODE_BITS + 1];
    for (unsigned symbol = 0; symbol < num_symbols; symbol++)
        if (lengths[symbol]) sorted[starts[lengths[symbol]]++] = (uint16_t)symbol;

    uint32_t code = 0, mask = (1u << first_bits) - 1, prefix = UINT32_MAX;
    uint32_t second = 1u << first_bits;
    unsigned second_bits = most > first_bits ? most - first_bits : 0;
    unsigned bits = num_codes ? lengths[sorted[0]] : 0;
    for (unsigned at = 0; at < num_codes; at++, code++) {
        unsigned symbol = sorted[at];
        code <<= lengths[symbol] - bits;
        bits = lengths[symbol];
        uint32_t place = reversed(code, bits);
        if (bits <= first_bits) {
            for (; place <= mask; place += 1u << bits) table[place] = slots[symbol] + (bits << 8 | bits);
            continue;
        }
        if ((place & mask) != prefix) { /* codes that begin alike follow each other */
            if (prefix != UINT32_MAX) second += 1u << second_bits;
            prefix = place & mask;
            table[prefix] = second << 16 | SECOND | second_bits << 8 | first_bits;
        }
        place >>= first_bits;
        unsigned rest = bits - first_bits;
        for (; place < 1u << second_bits; place += 1u << rest)
            table[second + place] = slots[symbol] + (rest << 8 | rest);
    }
    return 1;
}

static void literal_slots(uint32_t *slots) {
    for (uint32_t symbol = 0; symbol < END_OF_BLOCK; symbol++)
        slots[symbol] = symbol << 16 | LITERAL;
    slots[END_OF_BLOCK] = END;
    uint32_t base = 3;
    for (unsigned symbol = 257; symbol < 285; symbol++) {
        unsigned extra = symbol < 265 ? 0 : (symbol - 261) / 4;
        slots[symbol] = base << 16 | MATCH | extra;
        base += 1u << extra;
    }
    slots[285] = (uint32_t)MOST_MATCH << 16 | MATCH;
    slots[286] = slots[287] = 0;
}

static void distance_slots(uint32_t *slots) {
    uint32_t base = 1;
    for (unsigned symbol = 0; symbol < 30; symbol++) {
        unsigned extra = symbol < 4 ? 0 : symbol / 2 - 1;
        slots[symbol] = base << 16 | MATCH | extra;
        base += 1u << extra;
    }
    slots[30] = slots[31] = 0;
}

static int make_tables(Inflater *inflater, const uint8_t *lengths, unsigned num_literals,
                       unsigned num_distances) {
    uint32_t slots[NUM_LITERALS];
    literal_slots(slots);
    if (!make_table(inflater->literals, LITERAL_BITS, lengths, num_literals, slots)) return 0;
    distance_slots(slots);
    return make_table(inflater->distances, DISTANCE_BITS, lengths + num_literals, num_distances,
                      slots);
}

static int make_fixed_tables(Inflater *inflater) {
    uint8_t lengths[NUM_LITERALS + NUM_DISTANCES];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    memset(lengths + NUM_LITERALS, 5, NUM_DISTANCES);
    return make_tables(inflater, lengths, NUM_LITERALS, NUM_DISTANCES);
}

static int read_tables(Inflater *inflater, Input *in) {
    static const uint8_t ORDER[NUM_LENGTHS] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                               11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[NUM_LITERALS + NUM_DISTANCES] = {0}, of_lengths[NUM_LENGTHS] = {0};
    uint32_t slots[NUM_LENGTHS];
    if (!fill(in)) return 0;
    unsigned num_literals = take(in, 5) + 257, num_distances = take(in, 5) + 1;
    unsigned num_lengths = take(in, 4) + 4;
    if (num_literals > 286 || num_distances > 30) return 0;
    for (unsigned at = 0; at < num_lengths; at++) {
        if (!fill(in)) return 0;
        of_lengths[ORDER[at]] = (uint8_t)take(in, 3);
    }
    for (uint32_t symbol = 0; symbol < NUM_LENGTHS; symbol++)
        slots[symbol] = symbol << 16 | LITERAL;
    if (!make_table(inflater->lengths, LENGTH_BITS, of_lengths, NUM_LENGTHS, slots)) return 0;
    for (unsigned at = 0; at < num_literals + num_distances;) {
        if (!fill(in)) return 0;
        uint32_t slot = inflater->lengths[in->bits & ((1u << LENGTH_BITS) - 1)];
        if (!slot) return 0;
        take(in, slot & 0x3f);
        unsigned symbol = slot >> 16, times = 1;
        uint8_t length = (uint8_t)symbol;
        if (symbol == 16) {
            if (!at) return 0;
            length = lengths[at - 1];
            times = 3 + take(in, 2);
        } else if (symbol > 16) {
            length = 0;
            times = symbol == 17 ? 3 + take(in, 3) : 11 + take(in, 7);
        }
        if (times > num_literals + num_distances - at) return 0;
        memset(lengths + at, length, times);
        at += times;
    }
    return lengths[END_OF_BLOCK] && make_tables(inflater, lengths, num_literals, num_distances);
}

static inline void copy_match(uint8_t *to, size_t distance, size_t length, size_t room) {
    const uint8_t *from = to - distance, *end = to + length;
    if (distance >= 8 && room >= MOST_MATCH + COPIED_AT_ONCE) {
        do { /* too many, which are written again: to know how many costs more */
            for (int at = 0; at < COPIED_AT_ONCE; at += 8) memcpy(to + at, from + at, 8);
            to += COPIED_AT_ONCE;
            from += COPIED_AT_ONCE;
        } while (to < end);
    } else if (distance == 1)
        memset(to, *from, length);
    else
        while (to < end) *to++ = *from++;
}

static inline void drop(Input *in, uint32_t slot) {
    in->bits >>= slot & 0x3f;
    in->count -= slot & 0x3f;
}

/* A code, by one look or two, and its value with the extra bits. */
static inline uint32_t take_slot(Input *in, const uint32_t *table, uint32_t slot, size_t *value) {
    if ((slot & WHAT) == SECOND) {
        drop(in, slot);
        slot = table[(slot >> 16) + (in->bits & ((1u << (slot >> 8 & 0x1f)) - 1))];
    }
    uint64_t bits = in->bits & (((uint64_t)1 << (slot & 0x3f)) - 1);
    *value = (slot >> 16) + (size_t)(bits >> (slot >> 8 & 0x1f));
    drop(in, slot);
    return slot;
}

/* The codes of a block up to its end. Moves `target`; 0 if they make no sense. */
static int read_codes(const Inflater *inflater, Input *input, const uint8_t *start,
                      uint8_t **target, const uint8_t *end) {
    const uint32_t *literals = inflater->literals, mask = (1u << LITERAL_BITS) - 1;
    Input in = *input;
    uint8_t *to = *target;
    if (!fill(&in)) return 0; /* two literals take 22, a length up to 20 */
    uint32_t slot = literals[in.bits & mask];
    for (;;) {
        if ((slot & WHAT) == LITERAL && end - to >= 3) {
            drop(&in, slot);
            *to++ = (uint8_t)(slot >> 16);
            slot = literals[in.bits & mask];
            if ((slot & WHAT) == LITERAL) {
                drop(&in, slot);
                *to++ = (uint8_t)(slot >> 16);
                slot = literals[in.bits & mask];
                if ((slot & WHAT) == LITERAL) {
                    drop(&in, slot);
                    *to++ = (uint8_t)(slot >> 16);
                    if (!fill(&in)) return 0;
                    slot = literals[in.bits & mask];
                    continue;
                }
            }
        }
        size_t length, distance, room = (size_t)(end - to);
        slot = take_slot(&in, literals, slot, &length);
        if ((slot & WHAT) == LITERAL) {
            if (to == end) return 0;
            *to++ = (uint8_t)(slot >> 16);
            if (!fill(&in)) return 0;
            slot = literals[in.bits & mask];
            continue;
        }
        if ((slot & WHAT) != MATCH) {
            *input = in;
            *target = to;
            return (slot & WHAT) == END;
        }
        if (!fill(&in)) return 0; /* a distance takes up to 28 */
        slot = inflater->distances[in.bits & ((1u << DISTANCE_BITS) - 1)];
        slot = take_slot(&in, inflater->distances, slot, &distance);
        if ((slot & WHAT) != MATCH || distance > (size_t)(to - start) || length > room) return 0;
        if (!fill(&in)) return 0;
        slot = literals[in.bits & mask];
        copy_match(to, distance, length, room);
        to += length;
    }
}

/* A block of bytes as they are. */
static int copy_stored(Input *in, uint8_t **target, const uint8_t *end) {
    if (!give_back_bytes(in) || in->end - in->next < 4) return 0;
    unsigned length = in->next[0] | in->next[1] << 8;
    unsigned inverse = in->next[2] | in->next[3] << 8;
    in->next += 4;
    if ((length ^ inverse) != 0xffff || in->end - in->next < (ptrdiff_t)length ||
        end - *target < (ptrdiff_t)length)
        return 0;
    memcpy(*target, in->next, length);
    in->next += length;
    *target += length;
    return 1;
}

static int read_block(Inflater *inflater, Input *in, const uint8_t *start, uint8_t **target,
                      const uint8_t *end, int *is_last) {
    if (!fill(in)) return 0;
    *is_last = (int)take(in, 1);
    unsigned kind = take(in, 2);
    if (kind == 0) return copy_stored(in, target, end);
    if (kind == 1) {
        if (!inflater->is_fixed && !make_fixed_tables(inflater)) return 0;
    } else if (kind != 2 || !read_tables(inflater, in))
        return 0;
    inflater->is_fixed = kind == 1;
    return read_codes(inflater, in, start, target, end);
}

/* RFC 1950, 8.2, in sixteen columns at once, which compilers make one operation of at -O2; GCC's -O3 undoes it. */
static uint32_t adler32(const uint8_t *bytes, size_t count) {
    enum { COLUMNS = 16, MOST_ROWS = 256 }; /* no sum of a column has more than 16 bits */
    const uint32_t base = 65521;
    uint64_t low = 1, high = 0;
    while (count >= COLUMNS) {
        size_t rows = count / COLUMNS < MOST_ROWS ? count / COLUMNS : MOST_ROWS;
        uint16_t sums[COLUMNS] = {0};
        uint32_t sums_of_sums[COLUMNS] = {0};
        for (size_t row = 0; row < rows; row++, bytes += COLUMNS)
            for (int column = 0; column < COLUMNS; column++) {
                sums[column] = (uint16_t)(sums[column] + bytes[column]);
                sums_of_sums[column] += sums[column];
            }
        count -= rows * COLUMNS;
        high += rows * COLUMNS * low;
        for (uint32_t column = 0; column < COLUMNS; column++) {
            low += sums[column];
            high += (uint64_t)COLUMNS * sums_of_sums[column] - (uint64_t)column * sums[column];
        }
        low %= base;
        high %= base;
    }
    for (; count; count--) {
        low += *bytes++;
        high += low;
    }
    return (uint32_t)(high % base) << 16 | (uint32_t)(low % base);
}

Inflater *new_inflater(void) { return calloc(1, sizeof(Inflater)); }

int inflate_zlib(Inflater *inflater, const uint8_t *source, size_t source_bytes, uint8_t *target,
                 size_t target_bytes) {
    if (source_bytes < 2 + 4) return 0;
    int is_deflate = (source[0] & 0x0f) == 8 && source[0] >> 4 <= 7;
    int has_dictionary = source[1] & 0x20;
    if (!is_deflate || has_dictionary || (source[0] << 8 | source[1]) % 31) return 0;
    Input in = {.next = source + 2, .end = source + source_bytes};
    uint8_t *to = target;
    const uint8_t *end = target + target_bytes;
    int is_last = 0;
    inflater->is_fixed = 0;
    while (!is_last)
        if (!read_block(inflater, &in, target, &to, end, &is_last)) return 0;
    if (to != end || !give_back_bytes(&in) || in.end - in.next < 4) return 0;
    uint32_t claimed = (uint32_t)in.next[0] << 24 | (uint32_t)in.next[1] << 16 |
                       (uint32_t)in.next[2] << 8 | in.next[3];
    return claimed == adler32(target, target_bytes);
}
