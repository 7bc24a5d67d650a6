/* Folds of TOPK and AFFINE_MATRIX, whose rows have many items. A step combines rows into memory of its own where the
 * result is to go to the memory of an operand. Compiled once for every kind of processor, as elementwise_folds.c. */
#include "folds.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BYTES = 4096 }; /* of rows that need no memory but the stack */

/* One row of out = left combined with right; each is the row's two fields; sizes are the items of both. */
typedef void (*RowStep)(void *const *out, void *const *left, void *const *right, const int64_t *sizes);

static void *row_memory(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) { /* no caller could be told */
        fputs("topocomm: a fold is out of memory for one row of its operator\n", stderr);
        abort();
    }
    return memory;
}

static void fold_rows(const int64_t *task, const int64_t *item_bytes, RowStep step) {
    int64_t rows = task[0], operands = task[1];
    const int64_t *sizes = task + 2, *addresses = task + 4;
    size_t bytes[2] = {(size_t)(sizes[0] * item_bytes[0]), (size_t)(sizes[1] * item_bytes[1])};
    size_t second = (bytes[0] + 63) / 64 * 64, row_bytes = second + (bytes[1] + 63) / 64 * 64;
    _Alignas(64) char on_stack[2 * ROW_BYTES];
    char *memory = row_bytes <= ROW_BYTES ? on_stack : row_memory(2 * row_bytes);
    for (int64_t row = 0; row < rows; row++) {
        void *fields[2], *left[2], *right[2], *turn[2];
        for (int field = 0; field < 2; field++) {
            fields[field] = (char *)(intptr_t)addresses[field] + (size_t)row * bytes[field];
            left[field] = (char *)(intptr_t)addresses[2 + field] + (size_t)row * bytes[field];
        }
        for (int64_t operand = 1; operand < operands; operand++) {
            turn[0] = memory + (operand & 1 ? row_bytes : 0);
            turn[1] = (char *)turn[0] + second;
            for (int field = 0; field < 2; field++)
                right[field] = (char *)(intptr_t)addresses[2 + 2 * operand + field] + (size_t)row * bytes[field];
            step(turn, left, right, sizes);
            left[0] = turn[0], left[1] = turn[1];
        }
        for (int field = 0; field < 2; field++)
            if (fields[field] != left[field])
                memmove(fields[field], left[field], bytes[field]);
    }
    if (memory != on_stack)
        free(memory);
}

/* TOPK: merge two sorted rows, as long as there is room. NaN goes first, then the greater; of equal values that of the
 * lower payload, where -1 is last as unsigned. */
#define FOLD_TOPK(DTYPE, T, PLUS_ZERO)                                                                                 \
    static void topk_##DTYPE##_row(void *const *out, void *const *left, void *const *right, const int64_t *sizes) {    \
        T *values = out[0];                                                                                            \
        const T *l = left[0], *r = right[0];                                                                           \
        int64_t *payload = out[1];                                                                                     \
        const int64_t *l_payload = left[1], *r_payload = right[1];                                                     \
        for (int64_t at = 0; at < sizes[0]; at++) {                                                                    \
            T a = *l, b = *r;                                                                                          \
            int same = (a == b) | ((a != a) & (b != b)), before = (uint64_t)*l_payload <= (uint64_t)*r_payload;        \
            if ((same & before) | (a > b) | ((a != a) & (b == b)))                                                     \
                values[at] = PLUS_ZERO(a), payload[at] = *l_payload, l++, l_payload++;                                 \
            else                                                                                                       \
                values[at] = PLUS_ZERO(b), payload[at] = *r_payload, r++, r_payload++;                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static void topk_##DTYPE(int64_t *task) {                                                                          \
        fold_rows(task, (const int64_t[]){sizeof(T), 8}, topk_##DTYPE##_row);                                          \
    }

#define ADD_ZERO(X) ((X) + 0) /* -0 comes out as +0 */
#define AS_IT_IS(X) (X)

/* AFFINE_MATRIX: first the left map, then the right one; sums run over ascending indices. */
#define FOLD_AFFINE_MATRIX(DTYPE, T)                                                                                   \
    static inline void compose_##DTYPE(T *restrict a, T *restrict b, const T *left_a, const T *left_b,                 \
                                       const T *right_a, const T *right_b, int64_t size) {                             \
        for (int64_t row = 0; row < size; row++) {                                                                     \
            T *a_row = a + row * size;                                                                                 \
            const T *factors = right_a + row * size;                                                                   \
            T total = factors[0] * left_b[0];                                                                          \
            for (int64_t column = 0; column < size; column++)                                                          \
                a_row[column] = factors[0] * left_a[column];                                                           \
            for (int64_t at = 1; at < size; at++) {                                                                    \
                total = total + factors[at] * left_b[at];                                                              \
                for (int64_t column = 0; column < size; column++)                                                      \
                    a_row[column] += factors[at] * left_a[at * size + column];                                         \
            }                                                                                                          \
            b[row] = total + right_b[row];                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    static void affine_matrix_##DTYPE##_row(void *const *out, void *const *left, void *const *right,                   \
                                            const int64_t *sizes) {                                                    \
        switch (sizes[1]) { /* of small matrices the loops are unrolled */                                             \
        case 2: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 2); break;                       \
        case 3: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 3); break;                       \
        case 4: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 4); break;                       \
        case 8: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 8); break;                       \
        default: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], sizes[1]);                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void affine_matrix_##DTYPE(int64_t *task) {                                                                 \
        fold_rows(task, (const int64_t[]){sizeof(T), sizeof(T)}, affine_matrix_##DTYPE##_row);                         \
    }

/* The list. */
#define EVERY_FOLD(TOPK, AFFINE_MATRIX)                                                                                \
    TOPK(f8, double, ADD_ZERO) TOPK(f4, float, ADD_ZERO) TOPK(i8, int64_t, AS_IT_IS) TOPK(u8, uint64_t, AS_IT_IS)      \
    TOPK(i4, int32_t, AS_IT_IS) TOPK(u4, uint32_t, AS_IT_IS) TOPK(i2, int16_t, AS_IT_IS)                               \
    TOPK(u2, uint16_t, AS_IT_IS) TOPK(i1, int8_t, AS_IT_IS) TOPK(u1, uint8_t, AS_IT_IS)                                \
    AFFINE_MATRIX(f8, double) AFFINE_MATRIX(f4, float)

EVERY_FOLD(FOLD_TOPK, FOLD_AFFINE_MATRIX)

#define ENTRY_TOPK(DTYPE, ...) {"topk", #DTYPE ",i8", topk_##DTYPE},
#define ENTRY_AFFINE_MATRIX(DTYPE, T) {"affine_matrix", #DTYPE "," #DTYPE, affine_matrix_##DTYPE},

const FoldEntry FOR(PROCESSOR, row_folds)[] = {EVERY_FOLD(ENTRY_TOPK, ENTRY_AFFINE_MATRIX){NULL, NULL, NULL}};
