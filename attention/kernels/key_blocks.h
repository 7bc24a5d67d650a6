/* Blocks of keys: which keys of a stretch any row of a tile sees, and where they lie. */
#ifndef ATTENTION_KEY_BLOCKS_H
#define ATTENTION_KEY_BLOCKS_H

#include "kernels.h"
#include "vectors.h"

enum {
    MOST_QUADS = TILE_ROWS / 4,
    LINE_BYTES = 64,
    PARTS = 3, /* of keys and of values that are asked for in turns */
};

/* The keys of a block that any row sees. */
typedef struct {
    const char *keys[BLOCK_KEYS], *values[BLOCK_KEYS];
    int64_t positions[BLOCK_KEYS], first_position, last_position;
    int64_t count;
} Block;

/* One tile of query rows of one key head. `groups` of `span` rows; rows that only fill up a group are like the last. */
typedef struct {
    const Attention *call;
    int64_t entry, head, first_row, rows, span, unit, groups, width, width_v;
    int64_t low[TILE_ROWS], high[TILE_ROWS], own[TILE_ROWS];
    int64_t from, to;                                   /* positions that some row sees */
    int64_t any_from[MOST_QUADS], any_to[MOST_QUADS];   /* that some row of four sees, or of fewer */
    int64_t all_from[MOST_QUADS], all_to[MOST_QUADS];   /* that all of them see */
    int64_t first[MOST_QUADS], last[MOST_QUADS];        /* which keys of a block they attend */
    int64_t begin[MOST_QUADS], end[MOST_QUADS];         /* and a group, in whole steps but for the end */
    float slopes[TILE_ROWS];
    /* [groups, width / LANES, span, LANES], of whole vectors [groups, width, span]; [groups, BLOCK_KEYS, span];
     * [rows, width_v]; what is widened of a block, [BLOCK_KEYS, width] and [BLOCK_KEYS, width_v] or less */
    float *queries, *scores, *sums, *keys, *values;
    Floats tops[MOST_QUADS], totals[MOST_QUADS]; /* of `unit` rows, row i in lane i % unit; totals over all lanes */
} Tile;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

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

/* The last row again, up to whole steps. */
static void pad(const char **rows, int64_t count) {
    for (int64_t i = count; count > 0 && i < BLOCK_KEYS; i++)
        rows[i] = rows[count - 1];
}

/* List the keys from `start` on, up to `stop`, that any row sees. What the others hold is never read. */
static void list_block(const Tile *tile, int64_t start, int64_t stop, Block *block) {
    const Attention *call = tile->call;
    const Tensor *k = &call->k, *v = &call->v;
    int64_t bytes = item_bytes(k->dtype), page_size = k->sizes[2], count = 0, row = 0;
    int64_t step = k->strides[2] * bytes, step_v = v->strides[2] * bytes;
    block->first_position = INT64_MAX, block->last_position = INT64_MIN;
    stop = least(start + BLOCK_KEYS, stop);
    if (all_hidden(tile, start, stop))
        stop = start;
    if (call->order.data == NULL && call->positions.data == NULL && call->pages.data == NULL) {
        const char *keys = k->data + (tile->entry * k->strides[0] + tile->head * k->strides[1]) * bytes;
        const char *values = v->data + (tile->entry * v->strides[0] + tile->head * v->strides[1]) * bytes;
        for (; start < stop; start++, count++)
            block->keys[count] = keys + start * step, block->values[count] = values + start * step_v;
    }
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
        block->keys[count] = k->data + (outer * k->strides[0] + tile->head * k->strides[1]) * bytes + key * step;
        block->values[count] = v->data + (outer * v->strides[0] + tile->head * v->strides[1]) * bytes + key * step_v;
        count++;
    }
    block->count = count;
    pad(block->keys, count), pad(block->values, count);
}

/* Keys or values of the near future, in parts that are asked for in turns; each time `share` bytes of them are to be
 * asked for. */
typedef struct {
    const char *const *rows;
    int64_t part, end; /* rows of a part, and of all */
    int64_t bytes, share, row, start, offset, due;
} Future;

/* `count` rows of `bytes` bytes each, padded, in PARTS or in one; `share` bytes are to be asked for each time. */
INLINE Future in_parts(const char *const *rows, int64_t count, int64_t bytes, int is_split, int64_t share) {
    int64_t part = is_split ? (count + PARTS - 1) / PARTS : count;
    return (Future){rows, part, is_split ? part * PARTS : count, bytes, share, 0, 0, 0, 0};
}

/* Ask for so many bytes more, into the second cache: four lines of a part at a time, as if rows that have fewer lay one
 * after the other. Of all orders of the four this one is the fastest. */
INLINE void ask(Future *future, int64_t bytes) {
    for (future->due += bytes; future->due > 0 && future->row < future->part; future->due -= 4 * LINE_BYTES) {
        const char *at = future->rows[future->start + future->row] + future->offset;
        __builtin_prefetch(at, 0, 2);
        __builtin_prefetch(at + 2 * LINE_BYTES, 0, 2);
        __builtin_prefetch(at + 3 * LINE_BYTES, 0, 2);
        __builtin_prefetch(at + LINE_BYTES, 0, 2);
        future->start += future->part;
        if (future->start < future->end)
            continue;
        future->start = 0;
        for (future->offset += 4 * LINE_BYTES; future->offset >= future->bytes; future->offset -= future->bytes)
            future->row++;
    }
}

#endif
