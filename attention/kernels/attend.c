/* Attention of query rows over keys: decoding and prompts on the CPU. Compiled once for every kind of processor, which
 * PROCESSOR names.
 *
 * Keys go in blocks. Within a block the scores, their exponentials and the weighted sums stay in the cache; between
 * blocks the usual online softmax keeps a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867). Up to
 * TILE_ROWS query rows share one pass, so in decoding each key and value byte is read once. While one block is computed
 * the next is asked for, so that memory is busy all the time. In prompts the work is what rows see: of a block a group
 * of ROWS rows attends the keys from the first to the last that it sees. */
#include "products.h"

enum { LINE_BYTES = 64 };

/* The keys of a block that any row sees. */
typedef struct {
    const char *keys[BLOCK_KEYS], *values[BLOCK_KEYS];
    int64_t positions[BLOCK_KEYS], first_position, last_position;
    int64_t count;
} Block;

/* One tile of query rows of one key head. `groups` of ROWS rows; rows that only fill up a group are like the last. */
typedef struct {
    const Attention *call;
    int64_t entry, head, first_row, rows, groups, width, width_v;
    int64_t low[TILE_ROWS], high[TILE_ROWS], own[TILE_ROWS];
    int64_t from, to;                                             /* positions that some row sees */
    int64_t any_from[TILE_ROWS / ROWS], any_to[TILE_ROWS / ROWS]; /* that some row of a group sees */
    int64_t all_from[TILE_ROWS / ROWS], all_to[TILE_ROWS / ROWS]; /* that all rows of a group see */
    int64_t first[TILE_ROWS / ROWS], last[TILE_ROWS / ROWS];      /* which keys of a block a group attends */
    float slopes[TILE_ROWS];
    float *queries, *scores, *sums; /* [rows, width], [groups, BLOCK_KEYS, ROWS], [rows, width_v] */
    Floats tops[TILE_ROWS / ROWS], totals[TILE_ROWS / ROWS]; /* lane i: row i % ROWS; totals are spread over lanes */
} Tile;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

/* Load the rows of the tile times the scale, and zeros up to whole groups and vectors. */
static void take_queries(Tile *tile) {
    const Attention *call = tile->call;
    const Tensor *q = &call->q;
    int64_t q_len = q->sizes[2], d = q->sizes[3], heads_per_key = call->rows / q_len, bytes = item_bytes(q->dtype);
    memset(tile->queries, 0, (size_t)(tile->groups * ROWS * tile->width) * sizeof(float));
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t row = tile->first_row + i, head = tile->head * heads_per_key + row / q_len;
        int64_t start = tile->entry * q->strides[0] + head * q->strides[1] + row % q_len * q->strides[2];
        const char *source = q->data + start * bytes;
        float *target = tile->queries + i * tile->width;
        int64_t whole = q->strides[3] == 1 ? d / LANES * LANES : 0;
        for (int64_t j = 0; j < whole; j += LANES)
            store_floats(target + j, load(source + j * bytes, q->dtype) * call->scale);
        for (int64_t j = whole; j < d; j++)
            target[j] = load_first(source + j * q->strides[3] * bytes, q->dtype, 1)[0] * call->scale;
    }
}

/* What holds for each row of the tile. */
static void describe_rows(Tile *tile) {
    const Attention *call = tile->call;
    int64_t q_len = call->q.sizes[2];
    tile->from = INT64_MAX, tile->to = INT64_MIN;
    for (int64_t i = 0; i < tile->groups * ROWS; i++) {
        int64_t row = least(tile->first_row + i, call->rows - 1), group = i / ROWS;
        int64_t low = tile->low[i] = table_at(&call->low, tile->entry, row % q_len);
        int64_t high = tile->high[i] = table_at(&call->high, tile->entry, row % q_len);
        tile->own[i] = table_at(&call->queries, tile->entry, row % q_len);
        tile->from = least(tile->from, low), tile->to = greatest(tile->to, high);
        tile->any_from[group] = i % ROWS == 0 ? low : least(tile->any_from[group], low);
        tile->any_to[group] = i % ROWS == 0 ? high : greatest(tile->any_to[group], high);
        tile->all_from[group] = i % ROWS == 0 ? low : greatest(tile->all_from[group], low);
        tile->all_to[group] = i % ROWS == 0 ? high : least(tile->all_to[group], high);
        if (call->slopes != NULL)
            tile->slopes[i] = call->slopes[tile->head * (call->rows / q_len) + row / q_len];
    }
}

/* Whether no row sees a key from `start` to `stop`: asked of all at once, since in a long prompt with a window that is
 * so for most. */
static int all_hidden(const Tile *tile, int64_t start, int64_t stop) {
    const Tensor *positions = &tile->call->positions;
    int64_t from = tile->from, to = tile->to, seen = 0;
    if (positions->data == NULL || positions->strides[1] != 1 || tile->call->order.data != NULL)
        return 0;
    const char *row = positions->data + 8 * (positions->sizes[0] > 1 ? tile->entry : 0) * positions->strides[0];
    for (int64_t i = start; i < stop; i++) {
        int64_t position;
        memcpy(&position, row + 8 * i, sizeof position);
        seen |= (position >= from) & (position <= to);
    }
    return !seen;
}

/* Whether some row sees a position. `row`, which is asked first, becomes one that does: most often that of the key
 * before, or the next. */
INLINE int is_seen(const Tile *tile, int64_t position, int64_t *row) {
    if (position < tile->from || position > tile->to)
        return 0;
    for (int64_t asked = 0; asked < tile->rows; asked++) {
        if (position >= tile->low[*row] && position <= tile->high[*row])
            return 1;
        *row = *row + 1 < tile->rows ? *row + 1 : 0;
    }
    return 0;
}

/* List the keys from `start` on, up to `stop`, that any row sees. What the others hold is never read. */
static void list_block(const Tile *tile, int64_t start, int64_t stop, Block *block) {
    const Attention *call = tile->call;
    const Tensor *k = &call->k, *v = &call->v;
    int64_t bytes = item_bytes(k->dtype), page_size = k->sizes[2], count = 0, row = 0;
    block->first_position = INT64_MAX, block->last_position = INT64_MIN;
    stop = least(start + BLOCK_KEYS, stop);
    if (all_hidden(tile, start, stop))
        stop = start;
    for (int64_t i = start; i < stop; i++) {
        int64_t key = i, outer = tile->entry;
        if (call->order.data != NULL) {
            key = table_at(&call->order, tile->entry, i);
            if (key < 0 || key >= call->n) {
                atomic_store_explicit(call->fault, 1, memory_order_relaxed);
                continue;
            }
        }
        if (call->positions.data != NULL) {
            int64_t position = table_at(&call->positions, tile->entry, key);
            if (!is_seen(tile, position, &row))
                continue;
            block->positions[count] = position;
            block->first_position = least(block->first_position, position);
            block->last_position = greatest(block->last_position, position);
        }
        if (call->pages.data != NULL) {
            outer = table_at(&call->pages, tile->entry, key / page_size);
            key %= page_size;
            if (outer < 0 || outer >= k->sizes[0]) {
                atomic_store_explicit(call->fault, 1, memory_order_relaxed);
                continue;
            }
        }
        block->keys[count] =
            k->data + (outer * k->strides[0] + tile->head * k->strides[1] + key * k->strides[2]) * bytes;
        block->values[count] =
            v->data + (outer * v->strides[0] + tile->head * v->strides[1] + key * v->strides[2]) * bytes;
        count++;
    }
    block->count = count;
    for (int64_t i = count; i < (count + KEYS - 1) / KEYS * KEYS; i++) /* whole steps */
        block->keys[i] = block->keys[count - 1], block->values[i] = block->values[count - 1];
}

/* Ask for `bytes` at an address, into the second cache. */
INLINE void prefetch(const char *address, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += LINE_BYTES)
        __builtin_prefetch((const void *)((uintptr_t)address + (uintptr_t)at), 0, 2);
}

/* Add `vectors` vectors of the values `first` to `last`, each times its weight, to the sums of ROWS rows; of the last
 * vector `lanes` exist, 0: all. Meanwhile ask for as much of the next keys. */
INLINE void add_columns(float *sums, int64_t width, const float *weights, const Block *block, int64_t first,
                        int64_t last, int dtype, int64_t column, int vectors, int64_t lanes, const Block *next) {
    Floats totals[ROWS][STRIP];
    int64_t bytes = item_bytes(dtype);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < vectors; i++)
            totals[r][i] = load_floats(sums + r * width + column + i * LANES);
    for (int64_t key = first; key < last; key++) {
        const char *value = block->values[key] + column * bytes;
        if (vectors > 1 && key < next->count)
            prefetch(next->keys[key] + column * bytes, vectors * LANES * bytes);
        for (int i = 0; i < vectors; i++) {
            Floats x = lanes == 0 ? load(value + i * LANES * bytes, dtype) : load_first(value, dtype, lanes);
            for (int r = 0; r < ROWS; r++)
                totals[r][i] = fma_floats(x, spread(weights[key * ROWS + r]), totals[r][i]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < vectors; i++)
            store_floats(sums + r * width + column + i * LANES, totals[r][i]);
}

/* Add the values of a block that a group attends, each times its weight, to the sums of its rows. */
INLINE void add_weighted(Tile *tile, int64_t group, const Block *block, int dtype, const Block *next) {
    int64_t width = tile->width_v, d_v = tile->call->v.sizes[3], column = 0;
    int64_t first = tile->first[group], last = tile->last[group];
    float *sums = tile->sums + group * ROWS * width;
    const float *weights = tile->scores + group * ROWS * BLOCK_KEYS;
    for (; column + STRIP * LANES <= d_v; column += STRIP * LANES)
        add_columns(sums, width, weights, block, first, last, dtype, column, STRIP, 0, next);
    for (; column + LANES <= d_v; column += LANES)
        add_columns(sums, width, weights, block, first, last, dtype, column, 1, 0, next);
    if (column < d_v)
        add_columns(sums, width, weights, block, first, last, dtype, column, 1, d_v - column, next);
}

/* Which keys of a block a group attends: from the first to the last that one of its rows sees, from a whole vector of
 * scores on. What lies between and is hidden is masked. */
static void find_attended(Tile *tile, int64_t group, const Block *block) {
    int64_t first = 0, last = block->count;
    if (tile->call->positions.data != NULL) {
        int64_t from = tile->any_from[group], to = tile->any_to[group];
        while (last > 0 && (block->positions[last - 1] < from || block->positions[last - 1] > to))
            last--;
        while (first < last && (block->positions[first] < from || block->positions[first] > to))
            first++;
    }
    tile->first[group] = first / KEYS * KEYS, tile->last[group] = last;
}

/* Scores become softcap tanh(s / softcap). */
static void cap_scores(float *scores, int64_t count, float softcap) {
    for (int64_t i = 0; i < count * ROWS; i += LANES)
        store_floats(scores + i, softcap * tanh_floats(load_floats(scores + i) * (1.0f / softcap)));
}

/* Scores of a group lose slope times distance; those of keys that a row does not see become -inf. `scores` are those of
 * all keys of the block. */
static void mask_scores(const Tile *tile, int64_t group, const Block *block, float *scores) {
    int64_t first = tile->first[group], last = tile->last[group];
    const int64_t *low = tile->low + group * ROWS, *high = tile->high + group * ROWS, *own = tile->own + group * ROWS;
    const float *slopes = tile->slopes + group * ROWS;
    if (tile->call->slopes != NULL)
        for (int64_t i = first; i < last; i++)
            for (int r = 0; r < ROWS; r++) {
                uint64_t ahead = (uint64_t)block->positions[i] - (uint64_t)own[r];
                uint64_t distance = block->positions[i] < own[r] ? -ahead : ahead;
                scores[i * ROWS + r] -= slopes[r] * (float)(int64_t)distance;
            }
    if (block->first_position >= tile->all_from[group] && block->last_position <= tile->all_to[group])
        return;
    for (int64_t i = first; i < last; i++) {
        int64_t position = block->positions[i];
        if (position >= tile->all_from[group] && position <= tile->all_to[group])
            continue;
        for (int r = 0; r < ROWS; r++)
            if (position < low[r] || position > high[r])
                scores[i * ROWS + r] = -INFINITY;
    }
}

/* Scores become weights relative to the new maximum; maximum, total and sums of a group's rows follow. */
static void exponentiate(Tile *tile, int64_t group, float *scores, int64_t count) {
    Floats before = tile->tops[group], top = before, gain = spread(0.0f);
    for (int64_t i = 0; i < count * ROWS; i += LANES)
        top = max_floats(load_floats(scores + i), top);
    top = max_of_rows(top);
    Floats base = select_floats(top == -INFINITY, spread(0.0f), top);
    for (int64_t i = 0; i < count * ROWS; i += LANES) {
        Floats weights = exp_floats(load_floats(scores + i) - base);
        store_floats(scores + i, weights);
        gain += weights;
    }
    Floats decay = exp_floats(before - base);
    tile->tops[group] = top;
    tile->totals[group] = fma_floats(tile->totals[group], decay, gain);
    for (int r = 0; r < ROWS; r++) {
        float factor = decay[r], *sums = tile->sums + (group * ROWS + r) * tile->width_v;
        if (factor != 1.0f)
            for (int64_t j = 0; j < tile->width_v; j += LANES)
                store_floats(sums + j, load_floats(sums + j) * factor);
    }
}

/* The weights of the keys of a block that a group attends. */
INLINE void score_group(Tile *tile, int64_t group, const Block *block, int dtype) {
    const Attention *call = tile->call;
    int64_t bytes = call->v.sizes[3] * item_bytes(dtype);
    find_attended(tile, group, block);
    int64_t first = tile->first[group], last = tile->last[group];
    if (first == last)
        return;
    float *scores = tile->scores + group * ROWS * BLOCK_KEYS, *attended = scores + first * ROWS;
    for (int64_t i = first; i < last; i += KEYS) {
        if (group == 0)
            for (int64_t at = 0; at < bytes; at += LINE_BYTES)
                for (int key = 0; key < KEYS; key++)
                    prefetch(block->values[i + key] + at, LINE_BYTES);
        multiply(tile->queries + group * ROWS * tile->width, tile->width, block->keys + i, dtype, call->q.sizes[3],
                 scores + i * ROWS);
    }
    if (call->softcap != 0)
        cap_scores(attended, last - first, call->softcap);
    if (call->positions.data != NULL)
        mask_scores(tile, group, block, scores);
    for (int64_t i = last * ROWS; i % LANES != 0; i++)
        scores[i] = -INFINITY;
    exponentiate(tile, group, attended, last - first);
}

/* Sums, maxima and totals of the tile's rows over places `start` to `stop` of the order, not normalised. */
INLINE void attend_keys(Tile *tile, int64_t start, int64_t stop, int dtype) {
    Block blocks[2], *block = &blocks[0], *next = &blocks[1];
    list_block(tile, start, stop, next);
    while (start < stop) {
        Block *ready = next;
        next = block, block = ready;
        start += BLOCK_KEYS;
        list_block(tile, start, stop, next);
        if (block->count == 0)
            continue;
        for (int64_t group = 0; group < tile->groups; group++)
            score_group(tile, group, block, dtype);
        for (int64_t group = 0; group < tile->groups; group++)
            add_weighted(tile, group, block, dtype, next);
    }
}

/* Write the result of row i of the tile to place `at` of out and lse. */
static void normalise(const Tile *tile, int64_t i, int64_t at) {
    int64_t d_v = tile->call->v.sizes[3];
    const float *sums = tile->sums + i * tile->width_v;
    float *out = tile->call->out + at * d_v, total = 0;
    for (int lane = (int)(i % ROWS); lane < LANES; lane += ROWS)
        total += tile->totals[i / ROWS][lane];
    if (total == 0) {
        memset(out, 0, (size_t)d_v * sizeof *out);
        tile->call->lse[at] = -INFINITY;
        return;
    }
    for (int64_t j = 0; j < d_v; j++)
        out[j] = sums[j] / total;
    tile->call->lse[at] = (float)((double)tile->tops[i / ROWS][i % ROWS] + log((double)total));
}

void FOR(PROCESSOR, attend_item)(const Attention *call, int64_t item, float *memory) {
    int64_t segments = call->bounds.sizes[0], segment = item % segments, number = item / segments / call->tiles;
    int64_t kv_heads = call->k.sizes[1], first = item / segments % call->tiles * TILE_ROWS;
    Tile tile = {.call = call, .entry = number / kv_heads, .head = number % kv_heads, .first_row = first};
    tile.rows = least(call->rows - first, TILE_ROWS);
    tile.groups = (tile.rows + ROWS - 1) / ROWS;
    tile.width = padded(call->q.sizes[3]), tile.width_v = padded(call->v.sizes[3]);
    tile.scores = memory;
    tile.queries = tile.scores + tile.groups * ROWS * BLOCK_KEYS;
    tile.sums = tile.queries + tile.groups * ROWS * tile.width;
    memset(tile.sums, 0, (size_t)(tile.groups * ROWS * tile.width_v) * sizeof(float));
    for (int64_t group = 0; group < tile.groups; group++)
        tile.tops[group] = spread(-INFINITY), tile.totals[group] = spread(0.0f);
    take_queries(&tile);
    if (call->positions.data != NULL)
        describe_rows(&tile);
    int64_t start = table_at(&call->bounds, segment, 0), stop = table_at(&call->bounds, segment, 1);
    switch (call->k.dtype) { /* one copy of the loops for each */
    case FLOAT32: attend_keys(&tile, start, stop, FLOAT32); break;
    case BFLOAT16: attend_keys(&tile, start, stop, BFLOAT16); break;
    default: attend_keys(&tile, start, stop, FLOAT16);
    }
    int64_t heads = call->q.sizes[0] * kv_heads;
    for (int64_t i = 0; i < tile.rows; i++)
        normalise(&tile, i, (segment * heads + number) * call->rows + first + i);
}
