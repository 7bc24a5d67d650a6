/* Scalars as they are stored and as they are computed with: for each dtype X the type in memory `stored_X`, and
 * `load_X` and `store_X`, to and from the type computed with.
 *
 * Integers are computed with as unsigned numbers where they wrap. Floats of 16 bits are converted by integer
 * arithmetic: the same on machines with and without instructions for them. */
#ifndef TOPOCOMM_SCALARS_H
#define TOPOCOMM_SCALARS_H

#include <stdint.h>

typedef union {
    float number;
    uint32_t bits;
} FloatBits;

typedef union {
    double number;
    uint64_t bits;
} DoubleBits;

static inline uint32_t bits_of(float x) { return (FloatBits){.number = x}.bits; }

static inline float float_of(uint32_t bits) { return (FloatBits){.bits = bits}.number; }

static inline uint64_t bits_of_double(double x) { return (DoubleBits){.number = x}.bits; }

static inline double double_of(uint64_t bits) { return (DoubleBits){.bits = bits}.number; }

/* `left` where the condition holds, else `right`: by masks, since loops with branches do not become vector code. */
static inline uint32_t select_bits(int condition, uint32_t left, uint32_t right) {
    uint32_t mask = condition ? ~(uint32_t)0 : 0;
    return (left & mask) | (right & ~mask);
}

static inline float select_float(int condition, float left, float right) {
    return float_of(select_bits(condition, bits_of(left), bits_of(right)));
}

static inline double select_double(int condition, double left, double right) {
    uint64_t mask = condition ? ~(uint64_t)0 : 0;
    return double_of((bits_of_double(left) & mask) | (bits_of_double(right) & ~mask));
}

#define SAME(NAME, STORED)                                                                                             \
    typedef STORED stored_##NAME;                                                                                      \
    static inline STORED load_##NAME(STORED x) { return x; }                                                           \
    static inline STORED store_##NAME(STORED x) { return x; }
SAME(f8, double)
SAME(f4, float)
SAME(i8, int64_t)
SAME(u8, uint64_t)
SAME(i4, int32_t)
SAME(u4, uint32_t)
SAME(i2, int16_t)
SAME(u2, uint16_t)
SAME(i1, int8_t)
SAME(u1, uint8_t)
SAME(b1, uint8_t)
SAME(c8, float _Complex)
SAME(c16, double _Complex)
#undef SAME

/* A product of six roundings: C's own has more to it, for infinities, and compilers fuse some. */
#define COMPLEX_PRODUCT(NAME)                                                                                          \
    static inline stored_##NAME product_##NAME(stored_##NAME a, stored_##NAME b) {                                     \
        stored_##NAME product;                                                                                         \
        __real__ product = __real__ a * __real__ b - __imag__ a * __imag__ b;                                          \
        __imag__ product = __real__ a * __imag__ b + __imag__ a * __real__ b;                                          \
        return product;                                                                                                \
    }
COMPLEX_PRODUCT(c8)
COMPLEX_PRODUCT(c16)
#undef COMPLEX_PRODUCT

#define PRODUCT(A, B)                                                                                                  \
    _Generic((A), float _Complex: product_c8(A, B), double _Complex: product_c16(A, B), default: (A) * (B))

typedef uint16_t stored_f2, stored_f2b;

static inline float load_f2b(uint16_t item) { return float_of((uint32_t)item << 16); }

/* To the nearest, ties to even, by the carry of an addition. */
static inline uint16_t store_f2b(float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16;
    return (uint16_t)select_bits(x != x, 0x7FC0, rounded);
}

/* The exponent moves from a bias of 15 to one of 127 by a product with 2^112, which also makes subnormals whole. */
static inline float load_f2(uint16_t item) {
    uint32_t sign = ((uint32_t)item & 0x8000) << 16, magnitude = ((uint32_t)item & 0x7FFF) << 13;
    uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
    uint32_t infinite = magnitude | 0x7F800000;
    return float_of(select_bits(magnitude >= 0x7C00u << 13, infinite, scaled) | sign);
}

/* To the nearest, ties to even: subnormals by adding 0.5, whose last bit is theirs; others by a carry. */
static inline uint16_t store_f2(float x) {
    uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
    uint32_t small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t usual = (magnitude + ((magnitude >> 13) & 1) + (0xFFFu - (112u << 23))) >> 13;
    uint32_t finite = select_bits(magnitude < 113u << 23, small, usual);
    uint32_t limited = select_bits(magnitude >= 143u << 23, 0x7C00, finite);
    return (uint16_t)(select_bits(magnitude > 0x7F800000, 0x7E00, limited) | sign);
}

#endif
