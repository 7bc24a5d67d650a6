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

/* In each four lanes the sums of the four lanes of a, b, c and d. */
INLINE Floats sums_of_four(Floats a, Floats b, Floats c, Floats d) {
#if defined(__AVX512F__)
#define PAIRS_LOW 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define PAIRS_HIGH 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define HALVES_LOW 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HALVES_HIGH 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#elif defined(__AVX2__)
#define PAIRS_LOW 0, 8, 1, 9, 4, 12, 5, 13
#define PAIRS_HIGH 2, 10, 3, 11, 6, 14, 7, 15
#define HALVES_LOW 0, 1, 8, 9, 4, 5, 12, 13
#define HALVES_HIGH 2, 3, 10, 11, 6, 7, 14, 15
#else
#define PAIRS_LOW 0, 4, 1, 5
#define PAIRS_HIGH 2, 6, 3, 7
#define HALVES_LOW 0, 1, 4, 5
#define HALVES_HIGH 2, 3, 6, 7
#endif
    Floats ab = SHUFFLE(a, b, PAIRS_LOW) + SHUFFLE(a, b, PAIRS_HIGH);
    Floats cd = SHUFFLE(c, d, PAIRS_LOW) + SHUFFLE(c, d, PAIRS_HIGH);
    return SHUFFLE(ab, cd, HALVES_LOW) + SHUFFLE(ab, cd, HALVES_HIGH);
}

/* Store the scores of KEYS keys: element ROWS i + r is the sum of the lanes of sums[i][r]. */
INLINE void store_scores(Floats sums[KEYS][ROWS], float *scores) {
    Floats of_key[KEYS];
    for (int i = 0; i < KEYS; i++)
        of_key[i] = sums_of_four(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
#if defined(__AVX512F__)
    Floats low = SHUFFLE(of_key[0], of_key[1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                 SHUFFLE(of_key[0], of_key[1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    Floats high = SHUFFLE(of_key[2], of_key[3], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                  SHUFFLE(of_key[2], of_key[3], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    store_floats(scores, SHUFFLE(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                             SHUFFLE(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
#elif defined(__AVX2__)
    store_floats(scores, SHUFFLE(of_key[0], of_key[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                             SHUFFLE(of_key[0], of_key[1], 4, 5, 6, 7, 12, 13, 14, 15));
#else
    for (int i = 0; i < KEYS; i++)
        store_floats(scores + i * ROWS, of_key[i]);
#endif
}

/* The products of ROWS query rows with KEYS keys of d elements: element ROWS i + r is that of key i with row r. */
INLINE void multiply(const float *queries, int64_t width, const char *const *keys, int dtype, int64_t d,
                     float *scores) {
    Floats sums[KEYS][ROWS] = {{{0}}};
    int64_t bytes = item_bytes(dtype), whole = d / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES) {
        Floats rows[ROWS];
        for (int r = 0; r < ROWS; r++)
            rows[r] = keep(load_floats(queries + r * width + j));
        for (int i = 0; i < KEYS; i++) {
            Floats x = load(keys[i] + j * bytes, dtype);
            for (int r = 0; r < ROWS; r++)
                sums[i][r] = fma_floats(x, rows[r], sums[i][r]);
        }
    }
    if (whole < d) {
        /* Unrolled, or the sums would lie in memory. */
#pragma GCC unroll 4
        for (int i = 0; i < KEYS; i++) {
            Floats x = load_first(keys[i] + whole * bytes, dtype, d - whole);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
                sums[i][r] = fma_floats(x, load_floats(queries + r * width + whole), sums[i][r]);
        }
    }
    store_scores(sums, scores);
}

/* In every lane the greatest of those of the same row: lanes r, r + ROWS, ... */
INLINE Floats max_of_rows(Floats x) {
#if defined(__AVX512F__)
    x = max_floats(SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7), x);
    x = max_floats(SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11), x);
#elif defined(__AVX2__)
    x = max_floats(SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3), x);
#endif
    return x;
}

#endif
