/* Vectors of LANES float32, in the widest registers of the processor that a source is compiled for. */
#ifndef ATTENTION_VECTORS_H
#define ATTENTION_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

/* Dtypes of what is loaded, and of indices, as DLPack has them: 256 times the kind and the bits. */
enum { FLOAT32 = 2 << 8 | 32, FLOAT16 = 2 << 8 | 16, BFLOAT16 = 4 << 8 | 16, INT64 = 0 << 8 | 64 };

#define INLINE static inline __attribute__((always_inline))

INLINE Floats spread(float value) { return value - (Floats){0}; }

INLINE Floats select_floats(Ints mask, Floats yes, Floats no) {
    return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

/* a b + c, rounded once where the processor can. */
INLINE Floats fma_floats(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* The greater; b where one is NaN. */
INLINE Floats max_floats(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select_floats(a > b, a, b);
#endif
}

/* Whether a lane of a is greater than that of b. */
INLINE int any_greater(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)) != 0;
#else
    Ints greater = a > b;
    return (greater[0] | greater[1] | greater[2] | greater[3]) != 0;
#endif
}

INLINE Floats load_floats(const void *source) {
    Floats x;
    memcpy(&x, source, sizeof x);
    return x;
}

INLINE void store_floats(float *target, Floats x) { memcpy(target, &x, sizeof x); }

/* x, in a register from here on: for several uses GCC would load it as often. */
INLINE Floats keep(Floats x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

INLINE int64_t item_bytes(int dtype) { return dtype == FLOAT32 ? 4 : 2; }

/* 16-bit numbers as float32, exactly. */
INLINE Floats widen(Halves halves, int dtype) {
#if defined(__AVX512F__)
    if (dtype == FLOAT16)
        return (Floats)_mm512_cvtph_ps((__m256i)halves);
    Words bits = (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#elif defined(__AVX2__)
    if (dtype == FLOAT16)
        return (Floats)_mm256_cvtph_ps((__m128i)halves);
    Words bits = (Words)_mm256_cvtepu16_epi32((__m128i)halves);
#else
    Words bits = __builtin_convertvector(halves, Words);
#endif
    if (dtype == BFLOAT16)
        return (Floats)(bits << 16);
    /* A product moves the exponent, subnormals included; that of infinities and NaN is set. */
    Floats size = (Floats)((bits & 0x7FFF) << 13) * spread(0x1p112f);
    Ints special = (bits & 0x7C00) == 0x7C00;
    Words wide = (Words)size | ((Words)special & 0x7F800000);
    return (Floats)(wide | (bits & 0x8000) << 16);
}

/* LANES numbers of a dtype. */
INLINE Floats load(const char *source, int dtype) {
    if (dtype == FLOAT32)
        return load_floats(source);
    Halves halves;
    memcpy(&halves, source, sizeof halves);
    return widen(halves, dtype);
}

/* The first `count` < LANES numbers, and zeros; nothing beyond them is read. */
INLINE Floats load_first(const char *source, int dtype, int64_t count) {
#if defined(__AVX512F__)
    if (dtype == FLOAT32)
        return (Floats)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), source);
    return widen((Halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), source), dtype);
#else
    char whole[4 * LANES] = {0};
    memcpy(whole, source, (size_t)(count * item_bytes(dtype)));
    return load(whole, dtype);
#endif
}

/* Whether 2 LANES numbers are widened as a pair of vectors, in which the two middle fours change places: each vector
 * then takes one instruction, and none of the units that multiply. */
INLINE int is_paired(int dtype) { return LANES == 8 && dtype == BFLOAT16; }

/* Which numbers `load_some` loads, if not a few: LANES of them; or of a pair of vectors the first or the second. */
enum { WHOLE = 0, FIRST = -1, SECOND = -2 };

/* From one such vector to the next. */
INLINE int step_of(int64_t lanes) { return lanes < 0 ? 2 * LANES : LANES; }

/* A zero that is made here: over a loop it would take a register. */
INLINE Floats new_zero(void) {
    Floats zero = {0};
#if defined(__x86_64__)
    __asm__ volatile("" : "+v"(zero));
#endif
    return zero;
}

/* A vector of numbers of a dtype: the first `lanes`, or as above. */
INLINE Floats load_some(const char *source, int dtype, int64_t lanes, Floats zero) {
#if defined(__AVX2__)
    if (lanes < 0) {
        __m256i both = _mm256_loadu_si256((const __m256i *)source), low;
        memcpy(&low, &zero, sizeof low);
        both = lanes == FIRST ? _mm256_unpacklo_epi16(low, both) : _mm256_unpackhi_epi16(low, both);
        return load_floats(&both);
    }
#endif
    (void)zero;
    return lanes > 0 ? load_first(source, dtype, lanes) : load(source, dtype);
}

/* Where numbers of 16 bits are taken from: from where they lie; from there, and they are kept in float32; or from what
 * was kept, in vectors. */
enum { AS_IT_LIES, AND_KEPT, KEPT };

INLINE Floats take(const char *from, int dtype, int64_t lanes, Floats zero, float *kept, int source) {
    if (source == KEPT)
        return load_floats(kept);
    Floats x = load_some(from, dtype, lanes, zero);
    if (source == AND_KEPT)
        store_floats(kept, x);
    return x;
}

/* terms[0] x^degree + ... + terms[degree] by Horner's rule. */
INLINE Floats polynomial_floats(Floats x, const float *terms, int degree) {
    Floats sum = spread(terms[0]);
#pragma GCC unroll 8
    for (int term = 1; term <= degree; term++)
        sum = fma_floats(sum, x, spread(terms[term]));
    return sum;
}

/* x - n ln 2. Where a product is not rounded one float of ln 2 is enough: its error, 1.9e-9 n, is an ulp where e^x
 * vanishes beside 1. Else ln 2 has two parts, the first so short that its product is exact. */
INLINE Floats less_ln2(Floats x, Floats n) {
#if defined(__FMA__) || defined(__aarch64__)
    return fma_floats(n, spread(-0.693147180559945309f), x);
#else
    return fma_floats(n, spread(2.12194440e-4f), fma_floats(n, spread(-0.693359375f), x));
#endif
}

/* e^x for x <= 0 within 1 + |x| / 20 ulp; 0 from -87 on, where e^x is close to the least normal float32; NaN for NaN.
 *
 * e^x = 2^(n - 1) 2 e^r with n = round(x / ln 2) and r = x - n ln 2. From -126 on 2^(n - 1) is 0: its bits are the low
 * ones of n + 126. 2 e^r is a polynomial that is 2 + 2 r to the first order, with the least greatest relative error of
 * these, 3e-9; found by Remez's exchange. */
INLINE Floats exp_floats(Floats x) {
    const Floats rounding = spread(0x1.8p23f + 126); /* adding it leaves n + 126 in the low bits */
    x = max_floats(spread(-87.3f), x);
    Floats shifted = fma_floats(x, spread(1.44269504088896341f), rounding);
    Floats r = less_ln2(x, shifted - rounding);
    static const float terms[] = {2 * 1.3814598787575960e-3f, 2 * 8.3687165752053261e-3f, 2 * 4.1668388992547989e-2f,
                                  2 * 0.16666521131992340f,   2 * 0.49999994039535522f,   2, 2};
    return polynomial_floats(r, terms, 6) * (Floats)((Words)shifted << 23);
}

/* tanh x within 3e-7 of its value: (1 - t) / (1 + t) with t = e^(-2 |x|); below 1/4, where that cancels, the Taylor
 * series to x^11. */
INLINE Floats tanh_floats(Floats x) {
    Words sign = (Words)x & 0x80000000u;
    Floats size = (Floats)((Words)x ^ sign);
    Floats t = exp_floats(size * -2.0f);
    Floats far = (1.0f - t) / (1.0f + t);
    static const float terms[] = {-1382.0f / 155925.0f, 62.0f / 2835.0f, -17.0f / 315.0f, 2.0f / 15.0f, -1.0f / 3.0f,
                                  1.0f};
    Floats series = polynomial_floats(size * size, terms, 5);
    return (Floats)((Words)select_floats(size < 0.25f, size * series, far) | sign);
}

#endif
