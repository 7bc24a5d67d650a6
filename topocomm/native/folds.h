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

/* All folds, the same for all kinds of processors; they end with an entry whose name is NULL. */
extern const FoldEntry folds_baseline[], folds_avx2[];

#endif
