/* Scores of the keys of a block become weights: capped, masked, and their exponentials. */
#ifndef ATTENTION_SOFTMAX_H
#define ATTENTION_SOFTMAX_H

#include "products.h"

/* Scores become softcap tanh(s / softcap). */
static void cap_scores(float *scores, int64_t count, float softcap) {
    for (int64_t i = 0; i < count; i += LANES)
        store_floats(scores + i, softcap * tanh_floats(load_floats(scores + i) * (1.0f / softcap)));
}

/* Scores of four rows, or fewer, lose slope times distance; those of keys that a row does not see become -inf. Every
 * `span`-th of `scores` is of the first row, from the first key of the block on. */
static void mask_scores(const Tile *tile, int64_t quad, const Block *block, int64_t begin, int64_t end,
                        float *scores) {
    int64_t span = tile->span, rows = least(span, 4), row = quad * 4;
    const int64_t *low = tile->low + row, *high = tile->high + row, *own = tile->own + row;
    const float *slopes = tile->slopes + row;
    if (tile->call->slopes != NULL)
        for (int64_t i = begin; i < end; i++)
            for (int r = 0; r < rows; r++) {
                uint64_t ahead = (uint64_t)block->positions[i] - (uint64_t)own[r];
                uint64_t distance = block->positions[i] < own[r] ? -ahead : ahead;
                scores[i * span + r] -= slopes[r] * (float)(int64_t)distance;
            }
    if (block->first_position >= tile->all_from[quad] && block->last_position <= tile->all_to[quad])
        return;
    for (int64_t i = begin; i < end; i++) {
        int64_t position = block->positions[i];
        if (position >= tile->all_from[quad] && position <= tile->all_to[quad])
            continue;
        for (int r = 0; r < rows; r++)
            if (position < low[r] || position > high[r])
                scores[i * span + r] = -INFINITY;
    }
}

/* The greatest of `top` and of `count` scores, every `step`-th of which begins a vector: in four chains, since each
 * waits for the one before. */
INLINE Floats top_of(const float *scores, int64_t count, int64_t step, Floats top) {
    Floats tops[] = {top, top, top, top};
    int64_t i = 0;
    for (; i + 3 * step < count; i += 4 * step)
        for (int chain = 0; chain < 4; chain++)
            tops[chain] = max_floats(load_floats(scores + i + chain * step), tops[chain]);
    for (; i < count; i += step)
        tops[0] = max_floats(load_floats(scores + i), tops[0]);
    return max_floats(max_floats(tops[0], tops[1]), max_floats(tops[2], tops[3]));
}

/* 0 for -inf, so that differences are numbers. */
INLINE Floats finite_floats(Floats top) { return select_floats(top == -INFINITY, spread(0.0f), top); }

/* `unit` rows from `row` on have a new maximum: return by what sums so far shrink, which those of values do. */
static __attribute__((noinline)) Floats raise_top(Tile *tile, int64_t row, int64_t vector, Floats top) {
    int64_t width = tile->width_v;
    Floats decay = exp_floats(tile->tops[vector] - finite_floats(top));
    tile->tops[vector] = top;
    for (int r = 0; r < tile->unit; r++) {
        float factor = decay[r], *sums = tile->sums + (row + r) * width;
        if (factor != 1.0f)
            for (int64_t j = 0; j < width; j += LANES)
                store_floats(sums + j, load_floats(sums + j) * factor);
    }
    return decay;
}

/* Scores become weights relative to the maximum; maximum, total and sums of `unit` rows from `row` on follow. Every
 * `step`-th of `count` scores begins a vector of these rows'. Of many blocks few raise a maximum, and a branch is
 * foreseen: exponentials then wait for no maximum. */
static void exponentiate(Tile *tile, int64_t row, int64_t vector, float *scores, int64_t count, int64_t step) {
    Floats top = tile->tops[vector], gain = spread(0.0f), decay = spread(1.0f);
    Floats raised = max_of_rows(top_of(scores, count, step, top), (int)tile->unit);
    if (any_greater(raised, top))
        decay = raise_top(tile, row, vector, raised), top = raised;
    Floats base = finite_floats(top);
    for (int64_t i = 0; i < count; i += step) {
        Floats weights = exp_floats(load_floats(scores + i) - base);
        store_floats(scores + i, weights);
        gain += weights;
    }
    tile->totals[vector] = fma_floats(tile->totals[vector], decay, gain);
}

/* Scores of the keys of a block that a group attends become weights. */
static void weigh(Tile *tile, int64_t group, const Block *block) {
    const Attention *call = tile->call;
    int64_t begin = tile->begin[group], end = tile->end[group], span = tile->span, row = group * span;
    float *scores = tile->scores + row * BLOCK_KEYS, *attended = scores + begin * span;
    if (begin >= end)
        return;
    if (call->softcap != 0)
        cap_scores(attended, (end - begin) * span, call->softcap);
    for (int64_t first = 0; call->positions.data != NULL && first < span; first += 4)
        mask_scores(tile, (row + first) / 4, block, begin, end, scores + first);
    for (int64_t i = (end - begin) * span; i % LANES != 0; i++)
        attended[i] = -INFINITY;
    int64_t vector = span > LANES ? 2 * group : group;
    for (int64_t first = 0; first < span; first += tile->unit)
        exponentiate(tile, row + first, vector++, attended + first, (end - begin) * span, greatest(span, LANES));
}

#endif
