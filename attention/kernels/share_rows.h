/* Rows of partials as shares of one SUM; compiled once for every kind of processor. */
#ifndef ATTENTION_SHARE_ROWS_H
#define ATTENTION_SHARE_ROWS_H

#include <stdint.h>

#include "processor.h"

/* Contiguous arrays: out, sum and result_out [rows, dim], the others [rows]. */
typedef struct {
    const float *out, *lse;                          /* a rank's partials */
    float *sum, *weight, *lost, *present, *product;  /* what it adds, and then the sums */
    float *result_out, *result_lse;                  /* NULL: they are not asked for */
    int64_t rows, dim;
    double top; /* the largest weight and product that may be added */
} Shares;

int encode_rows_baseline(const Shares *shares, const double *reference);
int encode_rows_avx2(const Shares *shares, const double *reference);
void decode_rows_baseline(const Shares *shares, const double *reference);
void decode_rows_avx2(const Shares *shares, const double *reference);

#endif
