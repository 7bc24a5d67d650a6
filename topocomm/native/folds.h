/* Folds of the built-in operators: C functions `void fold(int64_t *task)`.
 *
 * The words of a task: rows, number of operands, items per row of every field, then the addresses of the fields of the
 * result and of every operand. The result may go to the memory of the first operand, or of either of two. */
#ifndef TOPOCOMM_FOLDS_H
#define TOPOCOMM_FOLDS_H

#include <stdint.h>

#include "processor.h"

typedef void (*Fold)(int64_t *task);

typedef struct {
    const char *operator_name;
    const char *dtypes; /* of the fields, as "f4" or "f4,i8"; "f2b" is bfloat16, "b1" bool */
    Fold fold;
} FoldEntry;

/* Rows [start, end) of out = left combined with right; each is the addresses of a value's fields. */
typedef void (*Step)(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start, int64_t end);

void fold_blocks(const int64_t *task, int fields, const int64_t *row_bytes, Step step);

/* Tables end with an entry whose name is NULL. Those for all kinds of processors have the same entries. */
extern const FoldEntry elementwise_folds_baseline[], elementwise_folds_avx2[];
extern const FoldEntry row_folds_baseline[], row_folds_avx2[];

#endif
