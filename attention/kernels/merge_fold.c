/* The merge of partials: an n-way left fold over packed chunks, as topocomm/native/folds.h has it. The fields are out
 * [rows, dim] and lse [rows], float32.
 *
 * First the weights of a block of rows are computed, side by side in vector registers, then the rows of `out` stream by
 * once. Each step rounds as a merge of two does: the n-way fold equals repeated merges of two bit for bit. Compiled
 * once for every kind of processor, which PROCESSOR names. */
#include <string.h>

#include "formulas.h"
#include "kernels.h"

enum { BLOCK = 256, HEAD = 4, OUT = 0, LSE = 1 }; /* rows whose weights are computed at once; words before addresses */

/* exp of this and of anything below is 0 in float32, and adds nothing to 1 in float64. */
static const double NEGLIGIBLE = -200.0;
/* Of the series in formulas.h: for exp to r^12 (4e-16), for the logarithm to s^27 (2e-15). */
enum { EXP_POWER = 12, LOG_POWER = 13 };

/* Merged lse and both weights of every row; a weight is 0 where that operand is to be ignored. `lse` may be `left`. */
static void weigh(int64_t rows, const float *left_lse, const float *right_lse, float *lse, float *left_weights,
                  float *right_weights) {
    INDEPENDENT for (int64_t row = 0; row < rows; row++) {
        float left = left_lse[row] == INFINITY ? NAN : left_lse[row]; /* some kernels mark empty rows by it */
        float right = right_lse[row] == INFINITY ? NAN : right_lse[row];
        double gap = (double)left - (double)right;
        double apart = -fabs(gap);
        double lighter = exponential(apart < NEGLIGIBLE ? NEGLIGIBLE : apart, EXP_POWER);
        double total = 1.0 + lighter;
        float high = (float)(1.0 / total), low = (float)(lighter / total);
        float greater = gap >= 0 ? left : right;
        float merged = (float)((double)greater + log_one_plus(lighter, LOG_POWER));
        float left_weight = gap >= 0 ? high : low, right_weight = gap >= 0 ? low : high;
        float left_alone = right == -INFINITY ? 1.0f : left_weight, right_alone = left == -INFINITY ? 1.0f : right_weight;
        float unless_left = left == -INFINITY ? right : merged;
        left_weights[row] = left == -INFINITY ? 0.0f : left_alone;
        right_weights[row] = right == -INFINITY ? 0.0f : right_alone;
        lse[row] = right == -INFINITY ? left : unless_left;
    }
}

/* Out = the weighted sum of left and right, all [rows, dim]; `out` may be either. */
static void blend(int64_t rows, int64_t dim, float *out, const float *left, const float *right,
                  const float *left_weights, const float *right_weights) {
    for (int64_t row = 0; row < rows; row++, out += dim, left += dim, right += dim) {
        float left_weight = left_weights[row], right_weight = right_weights[row];
        const float *taken = left_weight != 0 ? left : right; /* where one is ignored: the other bit for bit */
        if (left_weight != 0 && right_weight != 0)
            INDEPENDENT for (int64_t j = 0; j < dim; j++) out[j] = left_weight * left[j] + right_weight * right[j];
        else if (left_weight == right_weight)
            memset(out, 0, (size_t)dim * sizeof *out);
        else if (out != taken)
            memcpy(out, taken, (size_t)dim * sizeof *out);
    }
}

static float *floats(const int64_t *word, int64_t first) { return (float *)(intptr_t)*word + first; }

/* Fold left to right. The result may go to the first operand or, of two, to either. */
void FOR(PROCESSOR, merge_fold)(int64_t *task) {
    int64_t rows = task[0], operands = task[1], dim = task[2];
    const int64_t *result = task + HEAD, *first_operand = result + 2;
    float merged[BLOCK], left_weights[BLOCK], right_weights[BLOCK];
    for (int64_t first = 0; first < rows; first += BLOCK) {
        int64_t count = rows - first < BLOCK ? rows - first : BLOCK;
        float *out = floats(result + OUT, first * dim), *lse = floats(result + LSE, first);
        const float *left = floats(first_operand + OUT, first * dim), *left_lse = floats(first_operand + LSE, first);
        for (int64_t operand = 1; operand < operands; operand++) {
            const int64_t *words = first_operand + 2 * operand;
            const float *right = floats(words + OUT, first * dim);
            weigh(count, left_lse, floats(words + LSE, first), merged, left_weights, right_weights);
            blend(count, dim, out, left, right, left_weights, right_weights);
            left = out, left_lse = merged;
        }
        if (out != left)
            memcpy(out, left, (size_t)(count * dim) * sizeof *out);
        if (lse != left_lse)
            memcpy(lse, left_lse, (size_t)count * sizeof *lse);
    }
}
