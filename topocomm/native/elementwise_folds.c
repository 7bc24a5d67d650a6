/* Folds of elementwise operators. Compiled once for every kind of processor, which PROCESSOR names. */
#include "folds.h"
#include "formulas.h"
#include "processor.h"

#include <stddef.h>

#define SELECT(CONDITION, A, B)                                                                                        \
    _Generic((A), float: select_float, double: select_double, int64_t: select_int64, uint64_t: select_int64,           \
             default: select_int32)(CONDITION, A, B)
#define MAXIMUM(A, B) _Generic((A), float: maximum_float, double: maximum_double)(A, B)
#define MINIMUM(A, B) _Generic((A), float: minimum_float, double: minimum_double)(A, B)

#define AT(TYPE, VALUE, FIELD) ((TYPE *)(intptr_t)(VALUE)[FIELD])

/* A fold of one field: FORMULA combines a and b, both of type COMPUTED. */
#define FOLD_1(NAME, DTYPE, COMPUTED, LOAD, STORE, FORMULA)                                                            \
    static void NAME##_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start,    \
                                      int64_t end) {                                                                   \
        stored_##DTYPE *o = AT(stored_##DTYPE, out, 0);                                                                \
        const stored_##DTYPE *l = AT(const stored_##DTYPE, left, 0), *r = AT(const stored_##DTYPE, right, 0);          \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COMPUTED a = LOAD##DTYPE(l[i]), b = LOAD##DTYPE(r[i]);                                                     \
            o[i] = (stored_##DTYPE)STORE##DTYPE(FORMULA);                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_##DTYPE(int64_t *task) {                                                                        \
        fold_blocks(task, 1, (const int64_t[]){sizeof(stored_##DTYPE)}, NAME##_##DTYPE##_rows);                        \
    }

/* A fold of complex numbers, whose parts are of type PART: REAL and IMAGINARY combine a + a_i i and b + b_i i. */
#define FOLD_COMPLEX(NAME, DTYPE, PART, REAL, IMAGINARY)                                                               \
    static void NAME##_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start,    \
                                      int64_t end) {                                                                   \
        PART *o = AT(PART, out, 0);                                                                                    \
        const PART *l = AT(const PART, left, 0), *r = AT(const PART, right, 0);                                        \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            PART a = l[2 * i], a_i = l[2 * i + 1], b = r[2 * i], b_i = r[2 * i + 1];                                   \
            o[2 * i] = REAL;                                                                                           \
            o[2 * i + 1] = IMAGINARY;                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_##DTYPE(int64_t *task) {                                                                        \
        fold_blocks(task, 1, (const int64_t[]){2 * sizeof(PART)}, NAME##_##DTYPE##_rows);                              \
    }

/* ARGMAX and ARGMIN: a value and its index; AHEAD is > or <, and ZERO the zero that wins of two of unlike sign. */
#define FOLD_PLACE(NAME, DTYPE, COMPUTED, AHEAD, ZERO)                                                                 \
    static void NAME##_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start,    \
                                      int64_t end) {                                                                   \
        stored_##DTYPE *o = AT(stored_##DTYPE, out, 0);                                                                \
        const stored_##DTYPE *l = AT(const stored_##DTYPE, left, 0), *r = AT(const stored_##DTYPE, right, 0);          \
        int64_t *o_at = AT(int64_t, out, 1);                                                                           \
        const int64_t *l_at = AT(const int64_t, left, 1), *r_at = AT(const int64_t, right, 1);                         \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COMPUTED a = load_##DTYPE(l[i]), b = load_##DTYPE(r[i]), zero = (COMPUTED)(ZERO);                          \
            int64_t a_at = l_at[i], b_at = r_at[i];                                                                    \
            int a_nan = a != a, b_nan = b != b, same = (a == b) | (a_nan & b_nan);                                     \
            int ahead = (a AHEAD b) | (a_nan & !b_nan) | (same & (a_at < b_at));                                       \
            int twin = (a == 0) & (b == 0) & (a_at == b_at);                                                           \
            COMPUTED value = SELECT(ahead, a, b);                                                                      \
            o[i] = (stored_##DTYPE)store_##DTYPE(SELECT(twin, zero, value));                                           \
            o_at[i] = SELECT(ahead, a_at, b_at);                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_##DTYPE(int64_t *task) {                                                                        \
        fold_blocks(task, 2, (const int64_t[]){sizeof(stored_##DTYPE), 8}, NAME##_##DTYPE##_rows);                     \
    }

/* AFFINE: first the left map, then the right one. */
#define FOLD_AFFINE(DTYPE, COMPUTED)                                                                                   \
    static void affine_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start,    \
                                      int64_t end) {                                                                   \
        typedef stored_##DTYPE T;                                                                                      \
        T *o_a = AT(T, out, 0), *o_b = AT(T, out, 1);                                                                  \
        const T *l_a = AT(const T, left, 0), *l_b = AT(const T, left, 1);                                              \
        const T *r_a = AT(const T, right, 0), *r_b = AT(const T, right, 1);                                            \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COMPUTED a = load_##DTYPE(l_a[i]), b = load_##DTYPE(l_b[i]);                                               \
            COMPUTED then_a = load_##DTYPE(r_a[i]), then_b = load_##DTYPE(r_b[i]);                                     \
            o_a[i] = (T)store_##DTYPE(then_a * a);                                                                     \
            o_b[i] = (T)store_##DTYPE(then_a * b + then_b);                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    static void affine_##DTYPE(int64_t *task) {                                                                        \
        const int64_t size = sizeof(stored_##DTYPE);                                                                   \
        fold_blocks(task, 2, (const int64_t[]){size, size}, affine_##DTYPE##_rows);                                    \
    }

#define FOLD_AFFINE_COMPLEX(DTYPE, PART)                                                                               \
    static void affine_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start,    \
                                      int64_t end) {                                                                   \
        PART *o_a = AT(PART, out, 0), *o_b = AT(PART, out, 1);                                                         \
        const PART *l_a = AT(const PART, left, 0), *l_b = AT(const PART, left, 1);                                     \
        const PART *r_a = AT(const PART, right, 0), *r_b = AT(const PART, right, 1);                                   \
        INDEPENDENT for (int64_t i = 2 * start; i < 2 * end; i += 2) {                                                 \
            PART a = l_a[i], a_i = l_a[i + 1], b = l_b[i], b_i = l_b[i + 1];                                           \
            PART c = r_a[i], c_i = r_a[i + 1], d = r_b[i], d_i = r_b[i + 1];                                           \
            o_a[i] = c * a - c_i * a_i;                                                                                \
            o_a[i + 1] = c * a_i + c_i * a;                                                                            \
            o_b[i] = (c * b - c_i * b_i) + d;                                                                          \
            o_b[i + 1] = (c * b_i + c_i * b) + d_i;                                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static void affine_##DTYPE(int64_t *task) {                                                                        \
        const int64_t size = 2 * sizeof(PART);                                                                         \
        fold_blocks(task, 2, (const int64_t[]){size, size}, affine_##DTYPE##_rows);                                    \
    }

/* WELFORD: COUNT is the dtype of the counts and COUNTED what they are computed with; DTYPE that of means and m2. */
#define FOLD_WELFORD(COUNT, COUNTED, LOAD, STORE, DTYPE)                                                               \
    static void welford_##COUNT##_##DTYPE##_rows(const int64_t *out, const int64_t *left, const int64_t *right,        \
                                                 int64_t start, int64_t end) {                                         \
        typedef stored_##DTYPE T;                                                                                      \
        stored_##COUNT *o = AT(stored_##COUNT, out, 0);                                                                \
        const stored_##COUNT *l = AT(const stored_##COUNT, left, 0), *r = AT(const stored_##COUNT, right, 0);          \
        T *o_mean = AT(T, out, 1), *o_m2 = AT(T, out, 2);                                                              \
        const T *l_mean = AT(const T, left, 1), *l_m2 = AT(const T, left, 2);                                          \
        const T *r_mean = AT(const T, right, 1), *r_m2 = AT(const T, right, 2);                                        \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COUNTED a = LOAD##COUNT(l[i]), b = LOAD##COUNT(r[i]), count = ADD_COUNTS(COUNTED, a, b);                   \
            Moments one = {wide_load_##DTYPE(l_mean[i]), wide_load_##DTYPE(l_m2[i])};                                  \
            Moments two = {wide_load_##DTYPE(r_mean[i]), wide_load_##DTYPE(r_m2[i])};                                  \
            int left_heavy = (a > b) | ((a == b) & (one.mean >= two.mean));                                            \
            double heavy = (double)SELECT(left_heavy, a, b), light = (double)SELECT(left_heavy, b, a);                 \
            double divisor = SELECT(count == 0, 1.0, (double)count);                                                   \
            Moments first = {SELECT(left_heavy, one.mean, two.mean), 0};                                               \
            Moments second = {SELECT(left_heavy, two.mean, one.mean), 0};                                              \
            Moments made = merge_moments(heavy, light, divisor, first, second);                                        \
            double m2 = (one.m2 + two.m2) + made.m2;                                                                   \
            double mean = SELECT(a == 0, two.mean, SELECT(b == 0, one.mean, made.mean));                               \
            m2 = SELECT(a == 0, two.m2, SELECT(b == 0, one.m2, m2));                                                   \
            o[i] = (stored_##COUNT)STORE##COUNT(count);                                                                \
            o_mean[i] = wide_store_##DTYPE(SELECT(count == 0, 0.0, mean));                                             \
            o_m2[i] = wide_store_##DTYPE(SELECT(count == 0, 0.0, m2));                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static void welford_##COUNT##_##DTYPE(int64_t *task) {                                                             \
        const int64_t size = sizeof(stored_##DTYPE);                                                                   \
        fold_blocks(task, 3, (const int64_t[]){sizeof(stored_##COUNT), size, size}, welford_##COUNT##_##DTYPE##_rows); \
    }

static inline int64_t add_int64_t(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline double add_double(double a, double b) { return a + b; }
#define ADD_COUNTS(COUNTED, A, B) add_##COUNTED(A, B)

/* The list: every operator with its dtypes, once. ONE and the others are what is written for an entry. */
#define EACH_WRAPPING(ONE, NAME, FORMULA)                                                                              \
    ONE(NAME, i8, uint64_t, load_, store_, FORMULA) ONE(NAME, u8, uint64_t, load_, store_, FORMULA)                    \
    ONE(NAME, i4, uint32_t, load_, store_, FORMULA) ONE(NAME, u4, uint32_t, load_, store_, FORMULA)                    \
    ONE(NAME, i2, uint32_t, load_, store_, FORMULA) ONE(NAME, u2, uint32_t, load_, store_, FORMULA)                    \
    ONE(NAME, i1, uint32_t, load_, store_, FORMULA) ONE(NAME, u1, uint32_t, load_, store_, FORMULA)
#define EACH_ORDERED(ONE, NAME, FORMULA)                                                                               \
    ONE(NAME, i8, int64_t, load_, store_, FORMULA) ONE(NAME, u8, uint64_t, load_, store_, FORMULA)                     \
    ONE(NAME, i4, int32_t, load_, store_, FORMULA) ONE(NAME, u4, uint32_t, load_, store_, FORMULA)                     \
    ONE(NAME, i2, int16_t, load_, store_, FORMULA) ONE(NAME, u2, uint16_t, load_, store_, FORMULA)                     \
    ONE(NAME, i1, int8_t, load_, store_, FORMULA) ONE(NAME, u1, uint8_t, load_, store_, FORMULA)                       \
    ONE(NAME, b1, uint8_t, load_, store_, FORMULA)
#define EACH_FLOAT(ONE, NAME, FORMULA)                                                                                 \
    ONE(NAME, f8, double, load_, store_, FORMULA) ONE(NAME, f4, float, load_, store_, FORMULA)                         \
    ONE(NAME, f2, float, load_, store_, FORMULA) ONE(NAME, f2b, float, load_, store_, FORMULA)
#define EACH_WIDE(ONE, NAME, FORMULA)                                                                                  \
    ONE(NAME, f8, double, wide_load_, wide_store_, FORMULA) ONE(NAME, f4, double, wide_load_, wide_store_, FORMULA)    \
    ONE(NAME, f2, double, wide_load_, wide_store_, FORMULA) ONE(NAME, f2b, double, wide_load_, wide_store_, FORMULA)
#define EACH_PLACE(PLACE, NAME, AHEAD, FLOAT_ZERO)                                                                     \
    PLACE(NAME, f8, double, AHEAD, FLOAT_ZERO) PLACE(NAME, f4, float, AHEAD, FLOAT_ZERO)                               \
    PLACE(NAME, f2, float, AHEAD, FLOAT_ZERO) PLACE(NAME, f2b, float, AHEAD, FLOAT_ZERO)                               \
    PLACE(NAME, i8, int64_t, AHEAD, 0) PLACE(NAME, u8, uint64_t, AHEAD, 0) PLACE(NAME, i4, int32_t, AHEAD, 0)          \
    PLACE(NAME, u4, uint32_t, AHEAD, 0) PLACE(NAME, i2, int16_t, AHEAD, 0) PLACE(NAME, u2, uint16_t, AHEAD, 0)         \
    PLACE(NAME, i1, int8_t, AHEAD, 0) PLACE(NAME, u1, uint8_t, AHEAD, 0)
#define EACH_COUNT(WELFORD, DTYPE)                                                                                     \
    WELFORD(i8, int64_t, load_, store_, DTYPE) WELFORD(f8, double, wide_load_, wide_store_, DTYPE)                     \
    WELFORD(f4, double, wide_load_, wide_store_, DTYPE) WELFORD(f2, double, wide_load_, wide_store_, DTYPE)            \
    WELFORD(f2b, double, wide_load_, wide_store_, DTYPE)
#define EVERY_FOLD(ONE, COMPLEX, PLACE, AFFINE, AFFINE_COMPLEX, WELFORD)                                               \
    EACH_WRAPPING(ONE, sum, a + b) EACH_FLOAT(ONE, sum, a + b)                                                         \
    COMPLEX(sum, c8, float, a + b, a_i + b_i) COMPLEX(sum, c16, double, a + b, a_i + b_i)                              \
    EACH_WRAPPING(ONE, prod, a * b) EACH_FLOAT(ONE, prod, a * b)                                                       \
    COMPLEX(prod, c8, float, a * b - a_i * b_i, a * b_i + a_i * b)                                                     \
    COMPLEX(prod, c16, double, a * b - a_i * b_i, a * b_i + a_i * b)                                                   \
    EACH_ORDERED(ONE, max, a > b ? a : b) EACH_FLOAT(ONE, max, MAXIMUM(a, b))                                          \
    EACH_ORDERED(ONE, min, a < b ? a : b) EACH_FLOAT(ONE, min, MINIMUM(a, b))                                          \
    EACH_ORDERED(ONE, band, a & b) EACH_ORDERED(ONE, bor, a | b) EACH_ORDERED(ONE, bxor, a ^ b)                        \
    EACH_WIDE(ONE, logaddexp, log_add_exp(a, b))                                                                       \
    EACH_PLACE(PLACE, argmax, >, a + b) EACH_PLACE(PLACE, argmin, <, -(-a - b))                                        \
    AFFINE(f8, double) AFFINE(f4, float) AFFINE(f2, float) AFFINE(f2b, float)                                          \
    AFFINE(i8, uint64_t) AFFINE(u8, uint64_t) AFFINE(i4, uint32_t) AFFINE(u4, uint32_t)                                \
    AFFINE(i2, uint32_t) AFFINE(u2, uint32_t) AFFINE(i1, uint32_t) AFFINE(u1, uint32_t)                                \
    AFFINE_COMPLEX(c8, float) AFFINE_COMPLEX(c16, double)                                                              \
    EACH_COUNT(WELFORD, f8) EACH_COUNT(WELFORD, f4) EACH_COUNT(WELFORD, f2) EACH_COUNT(WELFORD, f2b)

EVERY_FOLD(FOLD_1, FOLD_COMPLEX, FOLD_PLACE, FOLD_AFFINE, FOLD_AFFINE_COMPLEX, FOLD_WELFORD)

#define ENTRY_1(NAME, DTYPE, ...) {#NAME, #DTYPE, NAME##_##DTYPE},
#define ENTRY_PLACE(NAME, DTYPE, ...) {#NAME, #DTYPE ",i8", NAME##_##DTYPE},
#define ENTRY_AFFINE(DTYPE, ...) {"affine", #DTYPE "," #DTYPE, affine_##DTYPE},
#define ENTRY_WELFORD(COUNT, COUNTED, LOAD, STORE, DTYPE)                                                              \
    {"welford", #COUNT "," #DTYPE "," #DTYPE, welford_##COUNT##_##DTYPE},

const FoldEntry FOR(PROCESSOR, elementwise_folds)[] = {
    EVERY_FOLD(ENTRY_1, ENTRY_1, ENTRY_PLACE, ENTRY_AFFINE, ENTRY_AFFINE, ENTRY_WELFORD){NULL, NULL, NULL}};
