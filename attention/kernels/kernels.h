/* Kernels for each kind of processor: the fold of LOGSUMEXP, and attention of query rows over the keys of one shard, as
 * items of work of a checked call. */
#ifndef ATTENTION_KERNELS_H
#define ATTENTION_KERNELS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "processor.h"

enum {
    ROWS = 4,        /* query rows that share what is loaded of a key or value */
    TILE_ROWS = 64,  /* query rows of one pass over the keys */
    BLOCK_KEYS = 64, /* keys whose scores stay in the core's first cache */
    MOST_LANES = 16, /* of all processors */
};

void merge_fold_baseline(int64_t *task);
void merge_fold_avx2(int64_t *task);

/* A tensor in host memory: q [batch, heads, q_len, d]; k and v [batch or pages, kv_heads, n or page size, d or d_v],
 * whose elements lie side by side. Strides are in elements. */
typedef struct {
    const char *data;
    int64_t sizes[4], strides[4];
    int dtype;
} Tensor;

/* int64 [rows, columns] at any strides, in bytes; data NULL: not given. One row stands for all batch entries. */
typedef struct {
    const char *data;
    int64_t rows, columns, row_step, column_step;
} Table;

/* A key of an order, or a page, that does not exist is skipped, and reported after the run. */
enum { NO_FAULT, BAD_ORDER, BAD_PAGE };

typedef struct {
    Tensor q, k, v;
    float *out, *lse; /* [segments, batch, heads, q_len, d_v] and [segments, batch, heads, q_len] */
    int64_t rows, n;  /* query rows that share a key head; keys of a batch entry */
    int64_t tiles, segments, items;
    const int64_t (*bounds)[2]; /* [segments]: first place in the order, and the end */
    Table low, high, queries;   /* [batch or 1, q_len]: first and last position seen, own position; or none */
    Table positions;            /* of the keys [batch or 1, n]; or none: all rows see all keys */
    Table order;                /* numbers of the keys as they are taken [batch or 1, any]; or none: as they lie */
    Table pages;                /* [batch, pages of an entry]: where in k and v they are; or none */
    const float *slopes;        /* of all heads; or NULL */
    float scale, softcap;       /* scores become softcap tanh(s / softcap), 0: they stay; then lose slope x distance */
    _Atomic int *fault;
} Attention;

static inline int64_t table_at(const Table *table, int64_t row, int64_t column) {
    row = table->rows > 1 ? row : 0;
    int64_t value;
    memcpy(&value, table->data + row * table->row_step + column * table->column_step, sizeof value);
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

/* Query rows of the largest tile, in whole groups. */
static inline int64_t tile_rows(const Attention *call) {
    return ((call->rows < TILE_ROWS ? call->rows : TILE_ROWS) + ROWS - 1) / ROWS * ROWS;
}

/* Memory for one item: scores, queries and sums of a tile. */
static inline int64_t item_floats(const Attention *call) {
    return tile_rows(call) * (BLOCK_KEYS + padded(call->q.sizes[3]) + padded(call->v.sizes[3]));
}

/* Run items [first, end) over up to `threads` threads, this one among them; 0: out of memory, and nothing done. Items
 * do not depend on each other, so the result's bits do not depend on the threads. */
int run_items(const Attention *call, AttendItem attend, int64_t first, int64_t end, int threads);

#endif
