/* Sums of the values of a block, each times its weight, for all query rows of a tile. */
#ifndef ATTENTION_WEIGHTED_SUMS_H
#define ATTENTION_WEIGHTED_SUMS_H

#include "products.h"

enum { TURN_KEYS = 4 }; /* values added before more of the next keys are asked for */

/* An address in a register of its own: GCC would have one for each offset, and too few. */
INLINE const char *at(const char *start, int64_t offset) {
    start += offset;
    __asm__("" : "+r"(start));
    return start;
}

/* Vectors of one value from an address on, of `lanes` as `load_some` takes them. */
INLINE void take_value(Floats *x, int vectors, const char *value, int dtype, int64_t lanes, float *kept, int source) {
    Floats zero = lanes < 0 && source != KEPT ? new_zero() : (Floats){0};
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++)
        x[i] = take(value + i * step_of(lanes) * item_bytes(dtype), dtype, lanes, zero, kept + i * LANES, source);
}

/* Add some vectors of a value times the weights of `span` rows. */
INLINE void add_value(Floats *totals, int span, int vectors, const char *value, const float *weights, int dtype,
                      int64_t lanes, float *kept, int source) {
    Floats x[MOST_AT_ONCE];
    take_value(x, vectors, value, dtype, lanes, kept, source);
#pragma GCC unroll 4
    for (int r = 0; r < span; r++) {
        Floats weight = keep(spread(weights[r]));
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            totals[r * vectors + i] = fma_floats(x[i], weight, totals[r * vectors + i]);
    }
}

/* Add `vectors` vectors of the values, each times its weight, to the sums of four rows from `row` on, or of all `span`.
 * Meanwhile a share of the first future is asked for, and the two change places. */
INLINE void add_columns(Tile *tile, int64_t row, int span, const Block *block, Future **futures, int dtype,
                        int64_t column, int vectors, int64_t lanes, int source) {
    Floats totals[MOST_SUMS];
    int rows = span < 4 ? span : 4, step = step_of(lanes), kept_floats = vectors * LANES;
    int64_t width = tile->width_v, bytes = item_bytes(dtype);
    int64_t key = tile->first[row / 4], last = tile->last[row / 4];
    float *sums = tile->sums + row * width + column + (lanes == SECOND ? LANES : 0), *kept = tile->values;
    const float *weights = tile->scores + row / span * span * BLOCK_KEYS + row % span;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            totals[r * vectors + i] = load_floats(sums + r * width + i * step);
    Future *future = futures[0]; /* not chosen in the loop: GCC would give its sums fewer registers */
    futures[0] = futures[1], futures[1] = future;
    for (; key + TURN_KEYS <= last; key += TURN_KEYS) {
        ask(future, vectors * future->share);
        const char *const *values = block->values + key;
#pragma GCC unroll 4
        for (int i = 0; i < TURN_KEYS; i++)
            add_value(totals, rows, vectors, at(values[i], column * bytes), weights + (key + i) * span, dtype, lanes,
                      kept + (key + i) * kept_floats, source);
    }
#pragma GCC unroll 1
    for (; key < last; key++)
        add_value(totals, rows, vectors, block->values[key] + column * bytes, weights + key * span, dtype, lanes,
                  kept + key * kept_floats, source);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            store_floats(sums + r * width + i * step, totals[r * vectors + i]);
}

/* Keep vectors of the values of keys that the first rows do not attend. */
INLINE void keep_values(Tile *tile, const Block *block, int64_t key, int64_t end, int dtype, int64_t column,
                        int vectors, int64_t lanes) {
    Floats x[MOST_AT_ONCE];
#pragma GCC unroll 1
    for (; key < end; key++)
        take_value(x, vectors, block->values[key] + column * item_bytes(dtype), dtype, lanes,
                   tile->values + key * vectors * LANES, AND_KEPT);
}

/* Add vectors of the values to the sums of all rows; return the columns after them. */
INLINE int64_t add_strip(Tile *tile, int span, const Block *block, Future **futures, int dtype, int64_t column,
                         int vectors, int64_t lanes) {
    int keeps = keeps_widened(tile, span, dtype);
    if (keeps) {
        keep_values(tile, block, 0, tile->first[0], dtype, column, vectors, lanes);
        keep_values(tile, block, tile->last[0], block->count, dtype, column, vectors, lanes);
    }
    for (int64_t row = 0; row < tile->rows; row += 4) {
        if (tile->first[row / 4] >= tile->last[row / 4])
            continue;
        if (!keeps)
            add_columns(tile, row, span, block, futures, dtype, column, vectors, lanes, AS_IT_LIES);
        else if (row == 0)
            add_columns(tile, row, span, block, futures, dtype, column, vectors, lanes, AND_KEPT);
        else
            add_columns(tile, row, span, block, futures, dtype, column, vectors, lanes, KEPT);
    }
    return column + vectors * step_of(lanes);
}

/* The same from a column on as far as vectors are whole, as many at once as sums stay in registers; four vectors as two
 * and two. */
INLINE int64_t add_strips(Tile *tile, int span, const Block *block, Future **futures, int dtype, int64_t column,
                          int64_t lanes) {
    int strip = at_once(span < 4 ? span : 4), step = step_of(lanes);
    int64_t d_v = tile->call->v.sizes[3];
    while (column + strip * step <= d_v && (strip != 3 || column + 4 * step != d_v))
        column = add_strip(tile, span, block, futures, dtype, column, strip, lanes);
    while (strip > 4 && column + 4 * step <= d_v)
        column = add_strip(tile, span, block, futures, dtype, column, 4, lanes);
    while (column + 2 * step <= d_v)
        column = add_strip(tile, span, block, futures, dtype, column, 2, lanes);
    return column + step <= d_v ? add_strip(tile, span, block, futures, dtype, column, 1, lanes) : column;
}

/* The same for all columns. */
INLINE void add_weighted(Tile *tile, int span, const Block *block, Future **futures, int dtype) {
    int64_t d_v = tile->call->v.sizes[3], column = 0;
    if (is_paired(dtype)) {
        add_strips(tile, span, block, futures, dtype, 0, FIRST);
        column = add_strips(tile, span, block, futures, dtype, 0, SECOND);
    }
    column = add_strips(tile, span, block, futures, dtype, column, WHOLE);
    if (column < d_v)
        add_strip(tile, span, block, futures, dtype, column, 1, d_v - column);
}

#endif
