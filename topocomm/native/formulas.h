/* How operators combine two scalars. `topocomm/operators/builtins` has the same formulas for arrays.
 *
 * Every step rounds by IEEE 754 and none is a call into a math library, so that all machines give the same bits. */
#ifndef TOPOCOMM_FORMULAS_H
#define TOPOCOMM_FORMULAS_H

#include <math.h>

#include "scalars.h"

static const double LOG2_E = 1.4426950408889634;
/* ln 2 in two parts; the high one has 21 trailing zero bits, so its product with a small integer is exact (fdlibm). */
static const double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
/* Adding it rounds to an integer, found in the low bits of the sum. */
static const double ROUNDING = 0x1.8p52;

/* Of the series of e^x, 1 / n! for n from 13 to 0; of that of artanh(x) / x, whose powers are of x^2, 1 / (2 n + 1) for
 * n from 16 to 0. */
enum { EXP_DEGREE = 13, LOG_DEGREE = 16 };
static const double EXP_TERMS[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                   1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                                   1.0 / 6,          1.0 / 2,         1.0,            1.0};
static const double LOG_TERMS[] = {1.0 / 33, 1.0 / 31, 1.0 / 29, 1.0 / 27, 1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19,
                                   1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};

/* terms[0] x^degree + ... + terms[degree] by Horner's rule, unrolled so that loops of it become vector code. */
static inline double polynomial(double x, const double *terms, int degree) {
    double sum = terms[0];
#pragma GCC unroll 16
    for (int term = 1; term <= degree; term++)
        sum = sum * x + terms[term];
    return sum;
}

/* e^x for x in [-708, 0], and NaN for NaN: x = n ln 2 + r, the Taylor series of e^r to r^degree, times 2^n. */
static inline double exponential(double x, int degree) {
    double shifted = x * LOG2_E + ROUNDING;
    double power = shifted - ROUNDING;
    double rest = (x - power * LN2_HIGH) - power * LN2_LOW;
    double series = polynomial(rest, EXP_TERMS + EXP_DEGREE - degree, degree);
    return series * double_of((bits_of_double(shifted) + 1023) << 52);
}

/* ln(1 + x) for x in [0, 1]: 2 artanh(s), s = x / (2 + x), the series to s^(2 degree + 1). */
static inline double log_one_plus(double x, int degree) {
    double ratio = x / (2.0 + x);
    return 2.0 * ratio * polynomial(ratio * ratio, LOG_TERMS + LOG_DEGREE - degree, degree);
}

/* exp of anything below, under 2^-1021, is taken for 0. */
static const double LEAST = -708.0;

/* ln(e^a + e^b) = top + ln(1 + e^-apart). */
static inline double log_add_exp(double a, double b) {
    double top = select_double(a > b, a, b);
    double apart = select_double(a == b, 0.0, -fabs(a - b)); /* infinities of one sign have no difference */
    double power = exponential(select_double(apart < LEAST, LEAST, apart), EXP_DEGREE);
    return top + log_one_plus(select_double(apart < LEAST, 0.0, power), LOG_DEGREE);
}

#endif
