/* Attention of query rows over keys: decoding and prompts on the CPU. Compiled once for every kind of processor, which
 * PROCESSOR names.
 *
 * Keys go in blocks. Within a block the scores, their exponentials and the weighted sums stay in the cache; between
 * blocks the usual online softmax keeps a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867). Up to
 * TILE_ROWS query rows share one pass, so in decoding each key and value byte is read once. While scores of a block
 * are computed its values are asked for, then the next keys, evenly, so that memory is busy all the time. Where memory
 * limits, the next block's keys and values are asked for in turns, each in PARTS: memory answers several streams faster
 * than one. Where products do, several streams would keep the loads of the cache waiting.
 *
 * A group is of 1, 2 or 4 rows, whose scores are sums over the lanes of vectors along a head; or of WIDE rows, side by
 * side in vectors, to which keys and values of 16 bits are widened once: dearer to begin, cheaper for each key. */
#include "key_blocks.h"
#include "products.h"

enum {
    PARTS = 3,       /* of keys and of values that are asked for in turns */
    TURN_KEYS = 4,   /* values added before more of the next keys are asked for */
    WIDE_KEYS = 256, /* from so many on groups of WIDE rows pay */
};

/* The vectors of a row, every `span`-th of an array, from the order of numbers to that of pairs, or back. */
static void swap_fours(float *row, int64_t span, int64_t d) {
    for (; d >= 2 * LANES; d -= 2 * LANES, row += 2 * LANES * span) {
        Floats first = load_floats(row), second = load_floats(row + LANES * span);
        memcpy(row + LANES / 2, &second, sizeof second / 2);
        memcpy(row + LANES * span, (float *)&first + LANES / 2, sizeof first / 2);
    }
}

/* Load the rows of the tile times the scale, and zeros up to whole groups and vectors. */
static void take_queries(Tile *tile) {
    const Attention *call = tile->call;
    const Tensor *q = &call->q;
    int64_t q_len = q->sizes[2], d = q->sizes[3], heads_per_key = call->rows / q_len, bytes = item_bytes(q->dtype);
    int64_t span = tile->span;
    memset(tile->queries, 0, (size_t)(tile->groups * tile->span * tile->width) * sizeof(float));
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t row = tile->first_row + i, head = tile->head * heads_per_key + row / q_len;
        int64_t start = tile->entry * q->strides[0] + head * q->strides[1] + row % q_len * q->strides[2];
        const char *source = q->data + start * bytes;
        float *target = tile->queries + i / span * span * tile->width + i % span * (span > 4 ? 1 : LANES);
        int64_t whole = q->strides[3] == 1 ? d / LANES * LANES : 0;
        for (int64_t j = 0; j < whole; j += LANES) {
            Floats x = load(source + j * bytes, q->dtype) * call->scale;
            if (span <= 4)
                store_floats(target + j * span, x);
            else
                for (int lane = 0; lane < LANES; lane++)
                    target[(j + lane) * span] = x[lane];
        }
        for (int64_t j = whole; j < d; j++)
            target[span > 4 ? j * span : j / LANES * LANES * span + j % LANES] =
                load_first(source + j * q->strides[3] * bytes, q->dtype, 1)[0] * call->scale;
        if (is_paired(call->k.dtype) && span <= 4)
            swap_fours(target, span, d);
    }
}

/* What holds for each row of the tile. */
static void describe_rows(Tile *tile) {
    const Attention *call = tile->call;
    int64_t q_len = call->q.sizes[2];
    tile->from = INT64_MAX, tile->to = INT64_MIN;
    for (int64_t i = 0; i < tile->groups * tile->span; i++) {
        int64_t row = least(tile->first_row + i, call->rows - 1), quad = i / 4;
        int64_t low = tile->low[i] = table_at(&call->low, tile->entry, row % q_len);
        int64_t high = tile->high[i] = table_at(&call->high, tile->entry, row % q_len);
        tile->own[i] = table_at(&call->queries, tile->entry, row % q_len);
        tile->from = least(tile->from, low), tile->to = greatest(tile->to, high);
        tile->any_from[quad] = i % 4 == 0 ? low : least(tile->any_from[quad], low);
        tile->any_to[quad] = i % 4 == 0 ? high : greatest(tile->any_to[quad], high);
        tile->all_from[quad] = i % 4 == 0 ? low : greatest(tile->all_from[quad], low);
        tile->all_to[quad] = i % 4 == 0 ? high : least(tile->all_to[quad], high);
        if (call->slopes != NULL)
            tile->slopes[i] = call->slopes[tile->head * (call->rows / q_len) + row / q_len];
    }
}

/* An address in a register of its own: GCC would have one for each offset, and too few. */
INLINE const char *at(const char *start, int64_t offset) {
    start += offset;
    __asm__("" : "+r"(start));
    return start;
}

/* Add some vectors of a value, of `lanes` as `load_some` takes them, times the weights of `span` rows. */
INLINE void add_value(Floats *totals, int span, int vectors, const char *value, const float *weights, int dtype,
                      int64_t lanes) {
    Floats x[MOST_AT_ONCE], zero = lanes < 0 ? new_zero() : (Floats){0};
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++)
        x[i] = load_some(value + i * step_of(lanes) * item_bytes(dtype), dtype, lanes, zero);
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
                        int64_t column, int vectors, int64_t lanes) {
    Floats totals[MOST_SUMS];
    int rows = span < 4 ? span : 4, step = step_of(lanes);
    int64_t width = tile->width_v, bytes = item_bytes(dtype);
    int64_t key = tile->first[row / 4], last = tile->last[row / 4];
    float *sums = tile->sums + row * width + column + (lanes == SECOND ? LANES : 0);
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
            add_value(totals, rows, vectors, at(values[i], column * bytes), weights + (key + i) * span, dtype, lanes);
    }
#pragma GCC unroll 1
    for (; key < last; key++)
        add_value(totals, rows, vectors, block->values[key] + column * bytes, weights + key * span, dtype, lanes);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++)
            store_floats(sums + r * width + i * step, totals[r * vectors + i]);
}

/* The same for all rows; the columns after them. */
INLINE int64_t add_strip(Tile *tile, int span, const Block *block, Future **futures, int dtype, int64_t column,
                         int vectors, int64_t lanes) {
    for (int64_t row = 0; row < tile->rows; row += 4)
        if (tile->first[row / 4] < tile->last[row / 4])
            add_columns(tile, row, span, block, futures, dtype, column, vectors, lanes);
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

/* Which keys of a block a group attends, and every four of its rows: from the first to the last that one of them sees.
 * What lies between and is hidden is masked. */
static void find_attended(Tile *tile, int64_t group, const Block *block) {
    int64_t begin = block->count, end = 0, span = tile->span, step = at_once((int)span);
    for (int64_t quad = group * span / 4; quad * 4 < (group + 1) * span; quad++) {
        int64_t first = 0, last = block->count;
        if (tile->call->positions.data != NULL) {
            int64_t from = tile->any_from[quad], to = tile->any_to[quad];
            while (last > 0 && (block->positions[last - 1] < from || block->positions[last - 1] > to))
                last--;
            while (first < last && (block->positions[first] < from || block->positions[first] > to))
                first++;
        }
        tile->first[quad] = first, tile->last[quad] = last;
        if (first < last)
            begin = least(begin, first), end = greatest(end, last);
    }
    tile->begin[group] = begin / step * step, tile->end[group] = end;
}

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

/* Scores become weights relative to the new maximum; maximum, total and sums of `unit` rows from `row` on follow. Every
 * `step`-th of `count` scores begins a vector of these rows'. */
static void exponentiate(Tile *tile, int64_t row, float *scores, int64_t count, int64_t step) {
    int64_t unit = tile->unit, width = tile->width_v;
    Floats before = tile->tops[row / unit], top = before, gain = spread(0.0f);
    for (int64_t i = 0; i < count; i += step)
        top = max_floats(load_floats(scores + i), top);
    top = max_of_rows(top, (int)unit);
    Floats base = select_floats(top == -INFINITY, spread(0.0f), top), decay = exp_floats(before - base);
    for (int64_t i = 0; i < count; i += step) {
        Floats weights = exp_floats(load_floats(scores + i) - base);
        store_floats(scores + i, weights);
        gain += weights;
    }
    tile->tops[row / unit] = top;
    tile->totals[row / unit] = fma_floats(tile->totals[row / unit], decay, gain);
    for (int r = 0; r < unit; r++) {
        float factor = decay[r], *sums = tile->sums + (row + r) * width;
        if (factor != 1.0f)
            for (int64_t j = 0; j < width; j += LANES)
                store_floats(sums + j, load_floats(sums + j) * factor);
    }
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
    for (int64_t first = 0; first < span; first += tile->unit)
        exponentiate(tile, row + first, attended + first, (end - begin) * span, greatest(span, LANES));
}

/* Rows of a block in float32. */
INLINE void widen_rows(const char **rows, int64_t count, int dtype, int64_t d, float *target, int64_t width) {
    for (int64_t i = 0; i < count; i++, target += width) {
        const char *row = rows[i];
        int64_t j = 0;
        for (; j + LANES <= d; j += LANES)
            store_floats(target + j, load(row + j * item_bytes(dtype), dtype));
        if (j < d)
            store_floats(target + j, load_first(row + j * item_bytes(dtype), dtype, d - j));
        rows[i] = (const char *)target;
    }
}

/* Sums, maxima and totals of the tile's rows over places `start` to `stop` of the order, not normalised. */
INLINE void attend_keys(Tile *tile, int64_t start, int64_t stop, int dtype, int span) {
    int64_t d = tile->call->q.sizes[3], d_v = tile->call->v.sizes[3], bytes = item_bytes(dtype);
    int64_t keys_bytes = d * bytes, values_bytes = d_v * bytes, columns = greatest(d_v, 1) * ((tile->rows + 3) / 4);
    int reads = tile->rows * 4 <= LANES * bytes; /* so few products for each byte that memory is what limits */
    int widens = span == WIDE && dtype != FLOAT32;
    Block blocks[2], *block = &blocks[0], *next = &blocks[1];
    list_block(tile, start, stop, next);
    while (start < stop) {
        Block *ready = next;
        next = block, block = ready;
        start += BLOCK_KEYS;
        list_block(tile, start, stop, next);
        if (widens) {
            widen_rows(block->keys, block->count, dtype, d, tile->keys, tile->width);
            pad(block->keys, block->count); /* again, with rows of float32 */
        }
        Future keys = in_parts(next->keys, next->count, keys_bytes, reads ? PARTS : 1);
        Block *valued = reads ? next : block;
        Future values = in_parts(valued->values, valued->count, values_bytes, reads ? PARTS : 1);
        Future *first[] = {reads ? &keys : &values, &values}, *second[] = {&keys, reads ? &values : &keys};
        keys.share = at_once(span) * keys_bytes / (2 * tile->groups);
        values.share = at_once(span) * values_bytes / (2 * tile->groups);
        for (int64_t group = 0; group < tile->groups; group++) {
            const float *queries = tile->queries + group * span * tile->width;
            float *scores = tile->scores + group * span * BLOCK_KEYS;
            find_attended(tile, group, block);
            for (int64_t i = tile->begin[group]; i < tile->end[group]; i += at_once(span)) {
                if (span == WIDE)
                    ask(&values, 2 * values.share), multiply_wide(queries, block->keys + i, d, scores + i * span);
                else
                    multiply(queries, span, block->keys + i, dtype, d, scores + i * span, first);
            }
            weigh(tile, group, block);
        }
        if (widens)
            widen_rows(block->values, block->count, dtype, d_v, tile->values, tile->width_v);
        keys.share = TURN_KEYS * LANES * keys_bytes / columns;
        values.share = TURN_KEYS * LANES * values_bytes / columns;
        add_weighted(tile, span, block, second, widens ? FLOAT32 : dtype);
    }
}

/* The same, with one copy of the loops for each number of rows of a group. */
INLINE void attend_rows(Tile *tile, int64_t start, int64_t stop, int dtype) {
    switch (tile->span) {
    case 1: attend_keys(tile, start, stop, dtype, 1); break;
    case 2: attend_keys(tile, start, stop, dtype, 2); break;
    case 4: attend_keys(tile, start, stop, dtype, 4); break;
    default: attend_keys(tile, start, stop, dtype, WIDE);
    }
}

/* Write the result of row i of the tile to place `at` of out and lse. */
static void normalise(const Tile *tile, int64_t i, int64_t at) {
    int64_t d_v = tile->call->v.sizes[3];
    float *sums = tile->sums + i * tile->width_v;
    float *out = tile->call->out + at * d_v, total = 0;
    for (int64_t lane = i % tile->unit; lane < LANES; lane += tile->unit)
        total += tile->totals[i / tile->unit][lane];
    if (total == 0) {
        memset(out, 0, (size_t)d_v * sizeof *out);
        tile->call->lse[at] = -INFINITY;
        return;
    }
    if (is_paired(tile->call->k.dtype) && tile->span <= 4)
        swap_fours(sums, 1, d_v);
    for (int64_t j = 0; j < d_v; j++)
        out[j] = sums[j] / total;
    tile->call->lse[at] = (float)((double)tile->tops[i / tile->unit][i % tile->unit] + log((double)total));
}

void FOR(PROCESSOR, attend_item)(const Attention *call, int64_t item, float *memory) {
    int64_t segments = call->bounds.sizes[0], segment = item % segments, number = item / segments / call->tiles;
    int64_t start = table_at(&call->bounds, segment, 0), stop = table_at(&call->bounds, segment, 1);
    int64_t kv_heads = call->k.sizes[1], first = item / segments % call->tiles * TILE_ROWS;
    Tile tile = {.call = call, .entry = number / kv_heads, .head = number % kv_heads, .first_row = first};
    if (call->firsts != NULL)
        start = greatest(start, call->firsts[tile.entry]);
    tile.rows = least(call->rows - first, TILE_ROWS);
    int wide = tile.rows > (is_paired(call->k.dtype) ? 32 : 16) && stop - start >= WIDE_KEYS;
    wide = wide && (LANES != 8 || call->k.dtype != FLOAT32);
    tile.span = tile.rows <= 2 ? tile.rows : wide ? WIDE : 4;
    tile.unit = least(tile.span, LANES);
    tile.groups = (tile.rows + tile.span - 1) / tile.span;
    tile.width = padded(call->q.sizes[3]), tile.width_v = padded(call->v.sizes[3]);
    tile.scores = memory;
    tile.queries = tile.scores + tile.groups * tile.span * BLOCK_KEYS;
    tile.sums = tile.queries + tile.groups * tile.span * tile.width;
    tile.keys = tile.sums + tile.groups * tile.span * tile.width_v;
    tile.values = tile.keys + BLOCK_KEYS * tile.width;
    memset(tile.sums, 0, (size_t)(tile.groups * tile.span * tile.width_v) * sizeof(float));
    for (int64_t group = 0; group < tile.groups * tile.span / tile.unit; group++)
        tile.tops[group] = spread(-INFINITY), tile.totals[group] = spread(0.0f);
    take_queries(&tile);
    if (call->positions.data != NULL)
        describe_rows(&tile);
    switch (call->k.dtype) { /* one copy of the loops for each */
    case FLOAT32: attend_rows(&tile, start, stop, FLOAT32); break;
    case BFLOAT16: attend_rows(&tile, start, stop, BFLOAT16); break;
    default: attend_rows(&tile, start, stop, FLOAT16);
    }
    int64_t heads = call->q.sizes[0] * kv_heads;
    for (int64_t i = 0; i < tile.rows; i++)
        normalise(&tile, i, (segment * heads + number) * call->rows + first + i);
}
