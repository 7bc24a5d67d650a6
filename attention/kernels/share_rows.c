/* Partials as one SUM relative to a reference: what a rank adds, and what the sums give. attention/merge/logsumexp.py
 * and topocomm/operators/sum_lowering.py have the same steps for arrays. PROCESSOR names what it is compiled for. */
#include "share_rows.h"

#include <math.h>
#include <string.h>

/* As in sum_lowering.py: what vanishes beside no other share, and the classes of shares. */
static const double LEAST = 0x1p-96;
static const float NEGLIGIBLE = 1, SIGNIFICANT = 4096;
static const float MOST = 0x1p100;

/* The largest magnitude of a row, NaN where it has one: magnitudes are ordered as their bits are. */
static float largest_of(const float *row, int64_t dim) {
    int32_t largest = 0;
    float magnitude;
    for (int64_t j = 0; j < dim; j++) {
        int32_t bits;
        memcpy(&bits, row + j, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

/* Write one row; whether its share alone would give a precise result. */
static int encode_row(const Shares *s, int64_t row, double reference) {
    const float *out = s->out + row * s->dim;
    float lse = s->lse[row], *sum = s->sum + row * s->dim;
    int empty = lse == -INFINITY;
    double weight = exp((double)lse - reference), largest = largest_of(out, s->dim), product = weight * largest;
    int lost = !((weight <= s->top && product <= s->top) || empty);
    if (lost || empty)
        weight = product = 0;
    int vanishes = product < LEAST && !lost && !empty && largest != 0, light = !empty && weight < LEAST;
    s->weight[row] = (float)weight;
    s->lost[row] = (float)lost;
    s->present[row] = empty ? 0 : light ? NEGLIGIBLE : SIGNIFICANT;
    s->product[row] = vanishes ? NEGLIGIBLE : product > 0 ? SIGNIFICANT : 0;
    float factor = (float)weight;
    if (weight == 0) /* whatever the row holds */
        memset(sum, 0, (size_t)s->dim * sizeof *sum);
    else if (light)
        INDEPENDENT for (int64_t j = 0; j < s->dim; j++) sum[j] = (float)(weight * out[j]);
    else /* twice as many at a time */
        INDEPENDENT for (int64_t j = 0; j < s->dim; j++) sum[j] = factor * out[j];
    return !(lost || light || vanishes);
}

/* Write what a rank adds; whether these shares alone would give a precise result. */
int FOR(PROCESSOR, encode_rows)(const Shares *shares, const double *reference) {
    int precise = 1;
    for (int64_t row = 0; row < shares->rows; row++)
        precise &= encode_row(shares, row, reference[row]);
    return precise;
}

/* Write the partials that sums give. */
void FOR(PROCESSOR, decode_rows)(const Shares *s, const double *reference) {
    for (int64_t row = 0; row < s->rows; row++) {
        const float *sum = s->sum + row * s->dim;
        float total = s->weight[row], divisor = total == 0 ? 1 : total, inverse = 1 / divisor;
        float *out = s->result_out + row * s->dim;
        if (divisor > MOST) /* whose inverse has fewer digits */
            INDEPENDENT for (int64_t j = 0; j < s->dim; j++) out[j] = sum[j] / divisor;
        else
            INDEPENDENT for (int64_t j = 0; j < s->dim; j++) out[j] = sum[j] * inverse;
        s->result_lse[row] = total == 0 ? -INFINITY : (float)(reference[row] + log((double)total));
    }
}
