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
 * A group is of 1, 2 or 4 rows, whose scores are sums over the lanes of vectors along a head; or, but for AVX2,
 * of WIDE rows, side by side in vectors, for which a block of 16 bits is widened first: dearer to begin, cheaper for
 * each key. */
#include "softmax.h"
#include "weighted_sums.h"

enum { WIDE_KEYS = 256 }; /* from so many on groups of WIDE rows pay */

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

/* Which keys of a block a group attends, and every four of its rows: from the first to the last that one of them sees.
 * What lies between and is hidden is masked. */
static void find_attended(Tile *tile, int64_t group, const Block *block) {
    int64_t begin = block->count, end = 0, span = tile->span, step = at_once((int)span);
    step *= step * span % LANES == 0 ? 1 : 2; /* scores up to the block's last are whole vectors */
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

/* Scores of the keys of a block with the rows of a group. */
INLINE void score(Tile *tile, int64_t group, int span, const Block *block, int dtype, Future **futures) {
    const float *queries = tile->queries + group * span * tile->width;
    float *scores = tile->scores + group * span * BLOCK_KEYS;
    int64_t d = tile->call->q.sizes[3];
    for (int64_t i = tile->begin[group]; i < tile->end[group]; i += at_once(span)) {
        if (span == WIDE)
            ask(futures[1], 2 * futures[1]->share), multiply_wide(queries, block->keys + i, d, scores + i * span);
        else
            multiply(queries, span, block->keys + i, dtype, d, scores + i * span, futures, NULL, AS_IT_LIES);
    }
}

/* The same of all groups, with one step of keys after the other, so that what is widened for the first group is near
 * when the others take it. All keys are widened, as each is seen by some row. */
INLINE void score_kept(Tile *tile, int span, const Block *block, int dtype, Future **futures) {
    int64_t d = tile->call->q.sizes[3];
    for (int64_t i = 0; i < block->count; i += at_once(span)) {
        const char *const *keys = block->keys + i;
        float *scores = tile->scores + i * span;
        multiply(tile->queries, span, keys, dtype, d, scores, futures, tile->keys, AND_KEPT);
        for (int64_t group = 1; group < tile->groups; group++) {
            const float *queries = tile->queries + group * span * tile->width;
            scores += BLOCK_KEYS * span;
            if (i >= tile->begin[group] && i < tile->end[group])
                multiply(queries, span, keys, dtype, d, scores, futures, tile->keys, KEPT);
        }
    }
}

/* Weights of the keys of a block for all rows. */
INLINE void score_and_weigh(Tile *tile, int span, const Block *block, int dtype, Future **futures) {
    int keeps = keeps_widened(tile, span, dtype);
    for (int64_t group = 0; group < tile->groups; group++)
        find_attended(tile, group, block);
    if (keeps)
        score_kept(tile, span, block, dtype, futures);
    for (int64_t group = 0; group < tile->groups; group++) {
        if (!keeps)
            score(tile, group, span, block, dtype, futures);
        weigh(tile, group, block);
    }
}

/* Sums, maxima and totals of the tile's rows over places `start` to `stop` of the order, not normalised. */
INLINE void attend_keys(Tile *tile, int64_t start, int64_t stop, int dtype, int span) {
    int64_t d = tile->call->q.sizes[3], d_v = tile->call->v.sizes[3], bytes = item_bytes(dtype);
    int64_t keys_bytes = d * bytes, values_bytes = d_v * bytes, columns = greatest(d_v, 1) * ((tile->rows + 3) / 4);
    int64_t keys_scored = at_once(span) * keys_bytes / (2 * tile->groups);
    int64_t values_scored = at_once(span) * values_bytes / (2 * tile->groups);
    int64_t keys_added = TURN_KEYS * LANES * keys_bytes / columns;
    int64_t values_added = TURN_KEYS * LANES * values_bytes / columns;
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
        Block *valued = reads ? next : block;
        Future keys = in_parts(next->keys, next->count, keys_bytes, reads, keys_scored);
        Future values = in_parts(valued->values, valued->count, values_bytes, reads, values_scored);
        Future *first[] = {reads ? &keys : &values, &values}, *second[] = {&keys, reads ? &values : &keys};
        score_and_weigh(tile, span, block, dtype, first);
        if (widens)
            widen_rows(block->values, block->count, dtype, d_v, tile->values, tile->width_v);
        keys.share = keys_added, values.share = values_added;
        add_weighted(tile, span, block, second, widens ? FLOAT32 : dtype);
    }
}

/* One copy of the loops for each dtype and number of rows of a group, each a function: in one with all of them GCC has
 * too many loops to choose registers well. */
#define COPY(DTYPE, SPAN)                                                                                              \
    static __attribute__((noinline)) void attend_##DTYPE##_##SPAN(Tile *tile, int64_t start, int64_t stop) {           \
        attend_keys(tile, start, stop, DTYPE, SPAN);                                                                   \
    }
#define COPIES(DTYPE)                                                                                                  \
    COPY(DTYPE, 1)                                                                                                     \
    COPY(DTYPE, 2)                                                                                                     \
    COPY(DTYPE, 4)                                                                                                     \
    COPY(DTYPE, WIDE)                                                                                                  \
    static void attend_##DTYPE(Tile *tile, int64_t start, int64_t stop) {                                              \
        switch (tile->span) {                                                                                          \
        case 1: attend_##DTYPE##_1(tile, start, stop); break;                                                          \
        case 2: attend_##DTYPE##_2(tile, start, stop); break;                                                          \
        case 4: attend_##DTYPE##_4(tile, start, stop); break;                                                          \
        default: attend_##DTYPE##_WIDE(tile, start, stop);                                                             \
        }                                                                                                              \
    }
COPIES(FLOAT32)
COPIES(BFLOAT16)
COPIES(FLOAT16)

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
    int wide = LANES != 8 && tile.rows > 16 && stop - start >= WIDE_KEYS;
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
    switch (call->k.dtype) {
    case FLOAT32: attend_FLOAT32(&tile, start, stop); break;
    case BFLOAT16: attend_BFLOAT16(&tile, start, stop); break;
    default: attend_FLOAT16(&tile, start, stop);
    }
    int64_t heads = call->q.sizes[0] * kv_heads;
    for (int64_t i = 0; i < tile.rows; i++)
        normalise(&tile, i, (segment * heads + number) * call->rows + first + i);
}
