/* Products of ROWS query rows with keys, in registers, and what is asked of vectors of their scores. */
#ifndef ATTENTION_PRODUCTS_H
#define ATTENTION_PRODUCTS_H

#include "kernels.h"
#include "vectors.h"

enum {
    KEYS = LANES == 8 ? 2 : 4,  /* keys of one step of the scores: KEYS x ROWS vectors stay in registers */
    STRIP = LANES == 8 ? 2 : 4, /* vectors of a value row that are added at once: STRIP x ROWS likewise */
};

#if defined(__clang__)
#define SHUFFLE(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define SHUFFLE(A, B, ...) __builtin_shuffle(A, B, (Ints){__VA_ARGS__})
#endif

#define FOUR(LANE) LANE, LANE + 1, LANE + 2, LANE + 3

/* These of four lanes, and the same of all others. */
#if defined(__AVX512F__)
#define QUADS(A, B, C, D)                                                                                              \
    A, B, C, D, A + 4, B + 4, C + 4, D + 4, A + 8, B + 8, C + 8, D + 8, A + 12, B + 12, C + 12, D + 12
#elif defined(__AVX2__)
#define QUADS(A, B, C, D) A, B, C, D, A + 4, B + 4, C + 4, D + 4
#else
#define QUADS(A, B, C, D) A, B, C, D
#endif

/* In each four lanes the sums of the four lanes of a, b, c and d. */
INLINE Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
    enum { B = LANES };
    Floats ab = SHUFFLE(a, b, QUADS(0, B, 1, B + 1)) + SHUFFLE(a, b, QUADS(2, B + 2, 3, B + 3));
    Floats cd = SHUFFLE(c, d, QUADS(0, B, 1, B + 1)) + SHUFFLE(c, d, QUADS(2, B + 2, 3, B + 3));
    return SHUFFLE(ab, cd, QUADS(0, 1, B, B + 1)) + SHUFFLE(ab, cd, QUADS(2, 3, B + 2, B + 3));
}

/* Sums of every four lanes and the next four, of a, then of b. */
INLINE Floats add_fours(Floats a, Floats b) {
#if defined(__AVX512F__)
    return SHUFFLE(a, b, FOUR(0), FOUR(8), FOUR(16), FOUR(24)) + SHUFFLE(a, b, FOUR(4), FOUR(12), FOUR(20), FOUR(28));
#elif defined(__AVX2__)
    return SHUFFLE(a, b, FOUR(0), FOUR(8)) + SHUFFLE(a, b, FOUR(4), FOUR(12));
#else
    return a + b;
#endif
}

/* Store the scores of KEYS keys: element ROWS i + r is the sum of the lanes of sums[i][r]. */
INLINE void store_scores(Floats sums[KEYS][ROWS], float *scores) {
    Floats of_key[KEYS];
    for (int i = 0; i < KEYS; i++)
        of_key[i] = sums_of_four(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    for (int all = LANES; all > 4; all /= 2)
        for (int i = 0; i < all / 8; i++)
            of_key[i] = add_fours(of_key[2 * i], of_key[2 * i + 1]);
    for (int i = 0; i < KEYS * ROWS / LANES; i++)
        store_floats(scores + i * LANES, of_key[i]);
}

/* Add the products of a vector of ROWS query rows with that of KEYS keys, of which `lanes` exist, 0: all. */
INLINE void add_products(Floats sums[KEYS][ROWS], const float *queries, int64_t width, const char *const *keys,
                         int dtype, int64_t column, int64_t lanes) {
    Floats rows[ROWS];
    for (int r = 0; r < ROWS; r++)
        rows[r] = keep(load_floats(queries + r * width + column));
    /* Unrolled, or the sums would lie in memory. */
#pragma GCC unroll 4
    for (int i = 0; i < KEYS; i++) {
        const char *key = keys[i] + column * item_bytes(dtype);
        Floats x = lanes == 0 ? load(key, dtype) : load_first(key, dtype, lanes);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            sums[i][r] = fma_floats(x, rows[r], sums[i][r]);
    }
}

/* The products of ROWS query rows with KEYS keys of d elements: element ROWS i + r is that of key i with row r. */
INLINE void multiply(const float *queries, int64_t width, const char *const *keys, int dtype, int64_t d,
                     float *scores) {
    Floats sums[KEYS][ROWS] = {{{0}}};
    int64_t column = 0;
    for (; column + LANES <= d; column += LANES)
        add_products(sums, queries, width, keys, dtype, column, 0);
    if (column < d)
        add_products(sums, queries, width, keys, dtype, column, d - column);
    store_scores(sums, scores);
}

/* In every lane the greatest of those of the same row: lanes r, r + ROWS, ... */
INLINE Floats max_of_rows(Floats x) {
#if defined(__AVX512F__)
    x = max_floats(SHUFFLE(x, x, FOUR(8), FOUR(12), FOUR(0), FOUR(4)), x);
    x = max_floats(SHUFFLE(x, x, FOUR(4), FOUR(0), FOUR(12), FOUR(8)), x);
#elif defined(__AVX2__)
    x = max_floats(SHUFFLE(x, x, FOUR(4), FOUR(0)), x);
#endif
    return x;
}

#endif
