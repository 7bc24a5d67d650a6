/* The fold of LOGSUMEXP, for each kind of processor. */
#ifndef ATTENTION_MERGE_FOLD_H
#define ATTENTION_MERGE_FOLD_H

#include <stdint.h>

#include "processor.h"

void merge_fold_baseline(int64_t *task);
void merge_fold_avx2(int64_t *task);

#endif
