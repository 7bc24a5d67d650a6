/* Attention of query rows over keys: decoding, and prompts of few queries, on the CPU. Compiled once for every kind of
 * processor, which PROCESSOR names.
 *
 * Keys go in blocks. Within a block the scores, their exponentials and the weighted sums stay in the cache; between
 * blocks the usual online softmax keeps a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867). Up to
 * TILE_ROWS query rows share one pass, so in decoding each key and value byte is read once. While one block is computed
 * the next is asked for, so that memory is busy all the time. */
#include "kernels.h"

#include "vectors.h"

enum {
    VECTOR_KEYS = LANES / ROWS,   /* keys whose scores for ROWS rows fill a vector */
    KEYS = LANES == 8 ? 2 : 4,    /* keys of one step of the scores: KEYS x ROWS vectors stay in registers */
    STRIP = LANES == 8 ? 2 : 4,   /* vectors of a value row that are added at once: STRIP x ROWS likewise */
    LINE_BYTES = 64,
};

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
    const Table *positions = &tile->call->positions;
    int64_t from = tile->from, to = tile->to, seen = 0;
    if (positions->data == NULL || positions->column_step != sizeof(int64_t) || tile->call->order.data != NULL)
        return 0;
    const char *row = positions->data + (positions->rows > 1 ? tile->entry : 0) * positions->row_step;
    for (int64_t i = start; i < stop; i++) {
        int64_t position;
        memcpy(&position, row + i * (int64_t)sizeof position, sizeof position);
        seen |= (position >= from) & (position <= to);
    }
    return !seen;
}

/* List the keys from `start` on, up to `stop`, that any row sees. What the others hold is never read. */
static void list_block(const Tile *tile, int64_t start, int64_t stop, Block *block) {
    const Attention *call = tile->call;
    const Tensor *k = &call->k, *v = &call->v;
    int64_t bytes = item_bytes(k->dtype), page_size = k->sizes[2], count = 0;
    block->first_position = INT64_MAX, block->last_position = INT64_MIN;
    stop = least(start + BLOCK_KEYS, stop);
    if (all_hidden(tile, start, stop))
        stop = start;
    for (int64_t i = start; i < stop; i++) {
        int64_t key = i, outer = tile->entry;
        if (call->order.data != NULL) {
            key = table_at(&call->order, tile->entry, i);
            if (key < 0 || key >= call->n) {
                atomic_store_explicit(call->fault, BAD_ORDER, memory_order_relaxed);
                continue;
            }
        }
        if (call->positions.data != NULL) {
            int64_t position = table_at(&call->positions, tile->entry, key);
            if (position < tile->from || position > tile->to)
                continue;
            block->positions[count] = position;
            block->first_position = least(block->first_position, position);
            block->last_position = greatest(block->last_position, position);
        }
        if (call->pages.data != NULL) {
            outer = table_at(&call->pages, tile->entry, key / page_size);
            key %= page_size;
            if (outer < 0 || outer >= k->sizes[0]) {
                atomic_store_explicit(call->fault, BAD_PAGE, memory_order_relaxed);
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
        if (vectors > 1 && next != NULL && key < next->count)
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
    float *scores = tile->scores + group * ROWS * BLOCK_KEYS, *attended = scores + first * ROWS;
    for (int64_t i = first; i < last; i += KEYS) {
        if (group == 0)
            for (int64_t at = 0; at < bytes; at += LINE_BYTES)
                for (int key = 0; key < KEYS; key++)
                    prefetch(block->values[i + key] + at, LINE_BYTES);
        multiply(tile->queries + group * ROWS * tile->width, tile->width, block->keys + i, dtype, call->q.sizes[3],
                 scores + i * ROWS);
    }
    if (first == last)
        return;
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
            add_weighted(tile, group, block, dtype, group == 0 ? next : NULL);
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
    int64_t segment = item % call->segments, number = item / call->segments / call->tiles;
    int64_t kv_heads = call->k.sizes[1], first = item / call->segments % call->tiles * TILE_ROWS;
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
    int64_t start = call->bounds[segment][0], stop = call->bounds[segment][1];
    switch (call->k.dtype) { /* one copy of the loops for each */
    case FLOAT32: attend_keys(&tile, start, stop, FLOAT32); break;
    case BFLOAT16: attend_keys(&tile, start, stop, BFLOAT16); break;
    default: attend_keys(&tile, start, stop, FLOAT16);
    }
    int64_t heads = call->q.sizes[0] * kv_heads;
    for (int64_t i = 0; i < tile.rows; i++)
        normalise(&tile, i, (segment * heads + number) * call->rows + first + i);
}
