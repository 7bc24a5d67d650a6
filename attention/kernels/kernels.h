/* Kernels for each kind of processor: the fold of LOGSUMEXP, and attention of query rows over the keys of one shard, as
 * items of work of a checked call. */
#ifndef ATTENTION_KERNELS_H
#define ATTENTION_KERNELS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "processor.h"

enum {
    TILE_ROWS = 64,  /* query rows of one pass over the keys */
    MOST_SPAN = 32,  /* query rows of a group, of which some may only fill it up */
    BLOCK_KEYS = 48, /* keys whose scores stay in the cache of the core; whole steps of all kernels */
    MOST_LANES = 16, /* of all processors */
};

void merge_fold_baseline(int64_t *task);
void merge_fold_avx2(int64_t *task);

/* A tensor in host memory: q [batch, heads, q_len, d]; k and v [batch or pages, kv_heads, n or page size, d or d_v],
 * whose elements lie side by side; tables, of int64, have two axes. Strides are in elements. */
typedef struct {
    const char *data; /* NULL: not given */
    int64_t sizes[4], strides[4];
    int dtype;
} Tensor;

typedef struct {
    Tensor q, k, v;
    float *out, *lse; /* [segments, batch, heads, q_len, d_v] and [segments, batch, heads, q_len] */
    int64_t rows, n;  /* query rows that share a key head; keys of a batch entry */
    int64_t tiles, items;
    Tensor bounds;             /* [segments, 2]: first place in the order, and the end */
    const int64_t *firsts;     /* [batch]: places before are left out; NULL: none */
    Tensor low, high, queries; /* [batch or 1, q_len]: first and last position seen, own position; or none */
    Tensor positions;          /* of the keys [batch or 1, n]; or none: all rows see all keys */
    Tensor order;              /* numbers of the keys as they are taken [batch or 1, any]; or none: as they lie */
    Tensor pages;              /* [batch or 1, pages of an entry]: where in k and v they are; or none */
    float *slopes;             /* of all heads; or NULL */
    float scale, softcap;      /* scores become softcap tanh(s / softcap), 0: they stay; then lose slope x distance */
    _Atomic int *fault;        /* whether a key of an order, or a page, does not exist; it is skipped */
} Attention;

/* A number of a table; one row stands for all batch entries. */
static inline int64_t table_at(const Tensor *table, int64_t row, int64_t column) {
    row = table->sizes[0] > 1 ? row : 0;
    int64_t value;
    memcpy(&value, table->data + 8 * (row * table->strides[0] + column * table->strides[1]), sizeof value);
    return value;
}

/* Write out and lse of item ((entry kv_heads + head) tiles + tile) segments + segment: a tile of query rows of one key
 * head over one segment of its keys. `memory` has `item_floats` items, and is aligned to 64 bytes. */
typedef void (*AttendItem)(const Attention *call, int64_t item, float *memory);

void attend_item_baseline(const Attention *call, int64_t item, float *memory);
void attend_item_avx2(const Attention *call, int64_t item, float *memory);
void attend_item_avx512(const Attention *call, int64_t item, float *memory);

/* `width` in whole vectors of any processor. */
static inline int64_t padded(int64_t width) { return (width + MOST_LANES - 1) / MOST_LANES * MOST_LANES; }

/* Memory for one item: scores, queries and sums of the query rows of the largest tile, in whole groups; and keys and
 * values of a block in float32. */
static inline int64_t item_floats(const Attention *call) {
    int64_t rows = call->rows < TILE_ROWS ? (call->rows + MOST_SPAN - 1) / MOST_SPAN * MOST_SPAN : TILE_ROWS;
    return rows * BLOCK_KEYS + (rows + BLOCK_KEYS) * (padded(call->q.sizes[3]) + padded(call->v.sizes[3]));
}

/* Run items [first, end) over up to `threads` threads, this one among them; 0: out of memory, and nothing done. Items
 * do not depend on each other, so the result's bits do not depend on the threads. */
int run_items(const Attention *call, AttendItem attend, int64_t first, int64_t end, int threads);

#endif
