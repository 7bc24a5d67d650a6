/* Products of a group of query rows with keys, in registers, and what is asked of vectors of their scores. */
#ifndef ATTENTION_PRODUCTS_H
#define ATTENTION_PRODUCTS_H

#include "key_blocks.h"

enum { WIDE = 2 * LANES, MOST_AT_ONCE = 8, MOST_SUMS = 16 };

/* Keys of one step of the scores of `span` query rows: 1, 2, 4 or WIDE. So many that their sums stay in
 * registers, and that each waits for none but itself. */
INLINE int at_once(int span) {
    return span == WIDE ? 6 : span == 1 ? 8 : LANES != 8 ? 16 / span : span == 2 ? 4 : 3;
}

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

/* Store the sums of the lanes of each of `count` vectors. */
INLINE void store_sums(const Floats *sums, int count, float *target) {
    Floats parts[MOST_SUMS / 4];
    int left = count / 4;
    for (int i = 0; i < left; i++)
        parts[i] = sums_of_four(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
#pragma GCC unroll 2
    for (int all = LANES; all > 4; all /= 2) {
#pragma GCC unroll 2
        for (int i = 0; i < left; i += 2)
            parts[i / 2] = add_fours(parts[i], parts[i + 1 < left ? i + 1 : i]);
        left = (left + 1) / 2;
    }
    for (int i = 0; i < count / LANES; i++)
        store_floats(target + i * LANES, parts[i]);
    if (count % LANES != 0)
        memcpy(target + count / LANES * LANES, &parts[count / LANES], (size_t)(count % LANES) * sizeof(float));
}

/* Whether groups after the first find keys and values of 16 bits in float32, as the first keeps them: conversions take
 * time of multiply-adds, but for those of a pair, which other units do. */
INLINE int keeps_widened(const Tile *tile, int span, int dtype) {
    return span == 4 && dtype != FLOAT32 && !is_paired(dtype) && tile->rows > span;
}

/* Add the products of a vector of `span` query rows with those of some keys, of `lanes` as `load_some` takes them. What
 * is less is held in registers. */
INLINE void add_products(Floats *sums, const float *queries, int span, const char *const *keys, int dtype,
                         int64_t column, int64_t lanes, float *kept, int source) {
    int count = at_once(span);
    Floats rows[4], x[MOST_AT_ONCE], zero = lanes < 0 && source != KEPT ? new_zero() : (Floats){0};
    for (int r = 0; r < span && span <= count; r++)
        rows[r] = keep(load_floats(queries + r * LANES));
        /* Unrolled, or the sums would lie in memory. */
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        x[i] = take(keys[i] + column * item_bytes(dtype), dtype, lanes, zero, kept + i * LANES, source);
#pragma GCC unroll 4
        for (int r = 0; r < span && span <= count; r++)
            sums[i * span + r] = fma_floats(x[i], rows[r], sums[i * span + r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < span && span > count; r++) {
        Floats row = keep(load_floats(queries + r * LANES));
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            sums[i * span + r] = fma_floats(x[i], row, sums[i * span + r]);
    }
}

/* The products of `span` query rows, vectors of which take turns, with `at_once` keys of d elements: element
 * span i + r is that of key i with row r. Before either half of the work a share of one future is asked for. Vectors of
 * keys that are `kept` take turns as those of rows do. */
INLINE void multiply(const float *queries, int span, const char *const *keys, int dtype, int64_t d, float *scores,
                     Future **futures, float *kept, int source) {
    Floats sums[MOST_SUMS] = {{0}};
    int64_t column = 0;
    int paired = is_paired(dtype), count = at_once(span);
#pragma GCC unroll 2
    for (int part = 0; part < 2; part++) {
        int64_t lanes = !paired ? WHOLE : part == 0 ? FIRST : SECOND, end = paired || part == 1 ? d : d / 2;
        const float *rows = queries + (lanes == SECOND ? LANES * span : 0);
        ask(futures[part], futures[part]->share);
#pragma GCC unroll 2
        for (column = paired ? 0 : column; column + step_of(lanes) <= end; column += step_of(lanes))
            add_products(sums, rows + column * span, span, keys, dtype, column, lanes, kept + column * count, source);
    }
    for (; paired && column + LANES <= d; column += LANES)
        add_products(sums, queries + column * span, span, keys, dtype, column, WHOLE, kept + column * count, source);
    if (column < d)
        add_products(sums, queries + column * span, span, keys, dtype, column, d - column, kept + column * count,
                     source);
    store_sums(sums, count * span, scores);
}

/* The products of WIDE query rows, elements of which lie side by side, with 6 keys of float32. Not inlined:
 * among other addresses GCC keeps none of these in registers. */
static __attribute__((noinline)) void multiply_wide(const float *queries, const char *const *keys, int64_t d,
                                                    float *scores) {
    enum { COUNT = 6, VECTORS = WIDE / LANES };
    Floats sums[COUNT][VECTORS] = {{{0}}}, rows[VECTORS];
#pragma GCC unroll 2
    for (int64_t j = 0; j < d; j++) {
        for (int i = 0; i < VECTORS; i++)
            rows[i] = keep(load_floats(queries + j * WIDE + i * LANES));
#pragma GCC unroll 6
        for (int key = 0; key < COUNT; key++) {
            float x;
            memcpy(&x, keys[key] + j * (int64_t)sizeof x, sizeof x);
            for (int i = 0; i < VECTORS; i++)
                sums[key][i] = fma_floats(spread(x), rows[i], sums[key][i]);
        }
    }
    memcpy(scores, sums, sizeof sums);
}

/* In every lane the greatest of those of the same row: lanes r, r + span, ... */
INLINE Floats max_of_rows(Floats x, int span) {
#if defined(__AVX512F__)
    if (span <= 4) {
        x = max_floats(SHUFFLE(x, x, FOUR(8), FOUR(12), FOUR(0), FOUR(4)), x);
        x = max_floats(SHUFFLE(x, x, FOUR(4), FOUR(0), FOUR(12), FOUR(8)), x);
    }
#elif defined(__AVX2__)
    if (span <= 4)
        x = max_floats(SHUFFLE(x, x, FOUR(4), FOUR(0)), x);
#endif
    if (span <= 2)
        x = max_floats(SHUFFLE(x, x, QUADS(2, 3, 0, 1)), x);
    return span == 1 ? max_floats(SHUFFLE(x, x, QUADS(1, 0, 3, 2)), x) : x;
}

#endif
