/* How built-in operators combine two scalars. `topocomm/operators/builtins` has the same formulas for arrays.
 *
 * Every step rounds by IEEE 754 and none is a call into a math library, so that all machines give the same bits. */
#ifndef TOPOCOMM_FORMULAS_H
#define TOPOCOMM_FORMULAS_H

#include <math.h>

#include "scalars.h"

/* IEEE 754-2019 maximum: NaN wins; of two zeros +0, which their sum is unless both are -0. */
static inline double maximum_double(double a, double b) {
    double same = select_double(a == 0, a + b, a), greater = select_double(a > b, a, b);
    return select_double(a != a, a, select_double(a == b, same, greater));
}

static inline float maximum_float(float a, float b) {
    float same = select_float(a == 0, a + b, a), greater = select_float(a > b, a, b);
    return select_float(a != a, a, select_float(a == b, same, greater));
}

/* IEEE 754-2019 minimum: NaN wins; of two zeros -0. */
static inline double minimum_double(double a, double b) {
    double same = select_double(a == 0, -(-a - b), a), less = select_double(a < b, a, b);
    return select_double(a != a, a, select_double(a == b, same, less));
}

static inline float minimum_float(float a, float b) {
    float same = select_float(a == 0, -(-a - b), a), less = select_float(a < b, a, b);
    return select_float(a != a, a, select_float(a == b, same, less));
}

static const double LOG2_E = 1.4426950408889634;
/* ln 2 in two parts; the high one has 21 trailing zero bits, so its product with a small integer is exact (fdlibm). */
static const double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
/* Adding it rounds to an integer, found in the low bits of the sum. */
static const double ROUNDING = 0x1.8p52;
/* exp of anything below, under 2^-1021, is taken for 0. */
static const double LEAST = -708.0;

/* e^x for x in [LEAST, 0]: x = n ln 2 + r, the Taylor series to r^13, times 2^n. */
static inline double exponential(double x) {
    double shifted = x * LOG2_E + ROUNDING;
    double power = shifted - ROUNDING;
    double rest = (x - power * LN2_HIGH) - power * LN2_LOW;
    double series = rest * (1.0 / 6227020800);
    series = (series + 1.0 / 479001600) * rest;
    series = (series + 1.0 / 39916800) * rest;
    series = (series + 1.0 / 3628800) * rest;
    series = (series + 1.0 / 362880) * rest;
    series = (series + 1.0 / 40320) * rest;
    series = (series + 1.0 / 5040) * rest;
    series = (series + 1.0 / 720) * rest;
    series = (series + 1.0 / 120) * rest;
    series = (series + 1.0 / 24) * rest;
    series = (series + 1.0 / 6) * rest;
    series = (series + 1.0 / 2) * rest;
    series = (series + 1.0) * rest;
    series = series + 1.0;
    return series * double_of((bits_of_double(shifted) + 1023) << 52);
}

/* 2 artanh(s), s = x / (2 + x): ln(1 + x) for x in [0, 1], the series to s^33. */
static inline double log_one_plus(double x) {
    double ratio = x / (2.0 + x);
    double square = ratio * ratio;
    double series = square * (1.0 / 33);
    series = (series + 1.0 / 31) * square;
    series = (series + 1.0 / 29) * square;
    series = (series + 1.0 / 27) * square;
    series = (series + 1.0 / 25) * square;
    series = (series + 1.0 / 23) * square;
    series = (series + 1.0 / 21) * square;
    series = (series + 1.0 / 19) * square;
    series = (series + 1.0 / 17) * square;
    series = (series + 1.0 / 15) * square;
    series = (series + 1.0 / 13) * square;
    series = (series + 1.0 / 11) * square;
    series = (series + 1.0 / 9) * square;
    series = (series + 1.0 / 7) * square;
    series = (series + 1.0 / 5) * square;
    series = (series + 1.0 / 3) * square;
    return 2.0 * ratio * (series + 1.0);
}

/* ln(e^a + e^b) = top + ln(1 + e^-apart). */
static inline double log_add_exp(double a, double b) {
    double top = select_double(a > b, a, b);
    double apart = select_double(a == b, 0.0, -fabs(a - b)); /* infinities of one sign have no difference */
    double lighter = select_double(apart < LEAST, 0.0, exponential(select_double(apart < LEAST, LEAST, apart)));
    return top + log_one_plus(lighter);
}

/* Means and sums of squares of WELFORD: Chan, Golub, LeVeque: Updating formulae (1979), equations 2.1. */
typedef struct {
    double mean, m2;
} Moments;

/* From the heavier side, so that it commutes. `divisor` is the sum of both counts, or 1 where that is 0. */
static inline Moments merge_moments(double heavy, double light, double divisor, Moments first, Moments second) {
    double share = light / divisor, delta = second.mean - first.mean;
    int finite = delta - delta == 0;
    double moved = first.mean + delta * share, mixed = first.mean * (1.0 - share) + second.mean * share;
    Moments made = {select_double(finite, moved, mixed), delta * delta * (heavy * share)};
    return made;
}

#endif
