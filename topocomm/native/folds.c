/* Folds of the built-in operators (folds.h). Compiled once for every kind of processor, which PROCESSOR names. */
#include "folds.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formulas.h"

enum {
    BLOCK_BYTES = 8192, /* of the result, while more than two operands are folded: it stays in the core's first cache */
    ROW_BYTES = 4096    /* of rows that need no memory but the stack */
};

/* Rows [start, end) of out = left combined with right; each is the addresses of a value's fields. */
typedef void (*Step)(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start, int64_t end);

/* Fold elementwise, block by block; `row_bytes` of every field. */
static void fold_blocks(const int64_t *task, int fields, const int64_t *row_bytes, Step step) {
    int64_t rows = task[0], operands = task[1], all_bytes = 0;
    const int64_t *out = task + 2 + fields, *first = out + fields;
    for (int field = 0; field < fields; field++) {
        all_bytes += row_bytes[field];
        if (operands == 1 && rows > 0)
            memmove((void *)(intptr_t)out[field], (void *)(intptr_t)first[field], (size_t)(rows * row_bytes[field]));
    }
    if (operands == 1)
        return;
    int64_t block = operands > 2 ? BLOCK_BYTES / all_bytes : rows; /* two are one pass */
    for (int64_t start = 0; start < rows; start += block) {
        int64_t end = rows - start < block ? rows : start + block;
        step(out, first, first + fields, start, end);
        for (int64_t operand = 2; operand < operands; operand++)
            step(out, out, first + operand * fields, start, end);
    }
}

#define SELECT(CONDITION, A, B)                                                                                        \
    _Generic((A), float: select_float, double: select_double, int64_t: select_int64, uint64_t: select_int64,           \
             default: select_int32)(CONDITION, A, B)

#define AT(VALUE, FIELD) ((void *)(intptr_t)(VALUE)[FIELD])

/* A fold of fields of so many bytes a row; its step follows. */
#define FOLD(NAME, ...)                                                                                                \
    static void NAME##_rows(const int64_t *, const int64_t *, const int64_t *, int64_t, int64_t);                      \
    static void NAME(int64_t *task) {                                                                                  \
        const int64_t bytes[] = {__VA_ARGS__};                                                                         \
        fold_blocks(task, sizeof bytes / sizeof *bytes, bytes, NAME##_rows);                                           \
    }                                                                                                                  \
    static void NAME##_rows(const int64_t *out, const int64_t *left, const int64_t *right, int64_t start, int64_t end)

/* A fold of one field: FORMULA combines a and b, both of type COMPUTED. */
#define FOLD_ONE(DTYPE, COMPUTED, NAME, FORMULA)                                                                       \
    FOLD(NAME##_##DTYPE, sizeof(stored_##DTYPE)) {                                                                     \
        stored_##DTYPE *o = AT(out, 0);                                                                                \
        const stored_##DTYPE *l = AT(left, 0), *r = AT(right, 0);                                                      \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COMPUTED a = load_##DTYPE(l[i]), b = load_##DTYPE(r[i]);                                                   \
            o[i] = store_##DTYPE(FORMULA);                                                                             \
        }                                                                                                              \
    }

/* The step of two numbers a row, each in a field of its own or both side by side, EACH apart: FIRST and SECOND combine
 * (a, a_2) with (b, b_2). */
#define PAIRS(DTYPE, COMPUTED, EACH, FIRST, SECOND)                                                                    \
    {                                                                                                                  \
        stored_##DTYPE *o = AT(out, 0), *o_2 = EACH == 2 ? o + 1 : AT(out, 1);                                         \
        const stored_##DTYPE *l = AT(left, 0), *l_2 = EACH == 2 ? l + 1 : AT(left, 1);                                 \
        const stored_##DTYPE *r = AT(right, 0), *r_2 = EACH == 2 ? r + 1 : AT(right, 1);                               \
        INDEPENDENT for (int64_t i = EACH * start; i < EACH * end; i += EACH) {                                        \
            COMPUTED a = load_##DTYPE(l[i]), a_2 = load_##DTYPE(l_2[i]);                                               \
            COMPUTED b = load_##DTYPE(r[i]), b_2 = load_##DTYPE(r_2[i]);                                               \
            o[i] = store_##DTYPE(FIRST);                                                                               \
            o_2[i] = store_##DTYPE(SECOND);                                                                            \
        }                                                                                                              \
    }

/* A fold of complex numbers, whose parts are of type PART: a + a_2 i and b + b_2 i. */
#define FOLD_COMPLEX(DTYPE, PART, NAME, FIRST, SECOND)                                                                 \
    FOLD(NAME##_##DTYPE, 2 * sizeof(PART)) PAIRS(DTYPE, PART, 2, FIRST, SECOND)

/* AFFINE: first the left map, then the right one. */
#define FOLD_AFFINE(DTYPE, COMPUTED, NAME)                                                                             \
    FOLD(NAME##_##DTYPE, sizeof(stored_##DTYPE), sizeof(stored_##DTYPE))                                               \
    PAIRS(DTYPE, COMPUTED, 1, b * a, b * a_2 + b_2)

#define FOLD_AFFINE_COMPLEX(DTYPE, PART, NAME)                                                                         \
    FOLD(NAME##_##DTYPE, 2 * sizeof(PART), 2 * sizeof(PART)) {                                                         \
        PART *o_a = AT(out, 0), *o_b = AT(out, 1);                                                                     \
        const PART *l_a = AT(left, 0), *l_b = AT(left, 1), *r_a = AT(right, 0), *r_b = AT(right, 1);                   \
        INDEPENDENT for (int64_t i = 2 * start; i < 2 * end; i += 2) {                                                 \
            PART a = l_a[i], a_i = l_a[i + 1], b = l_b[i], b_i = l_b[i + 1];                                           \
            PART c = r_a[i], c_i = r_a[i + 1], d = r_b[i], d_i = r_b[i + 1];                                           \
            o_a[i] = c * a - c_i * a_i;                                                                                \
            o_a[i + 1] = c * a_i + c_i * a;                                                                            \
            o_b[i] = (c * b - c_i * b_i) + d;                                                                          \
            o_b[i + 1] = (c * b_i + c_i * b) + d_i;                                                                    \
        }                                                                                                              \
    }

/* ARGMAX and ARGMIN: a value and its index; AHEAD is > or <, and ZERO the zero that wins of two of unlike sign. */
#define FOLD_PLACE(DTYPE, COMPUTED, NAME, AHEAD, ZERO)                                                                 \
    FOLD(NAME##_##DTYPE, sizeof(stored_##DTYPE), sizeof(int64_t)) {                                                    \
        stored_##DTYPE *o = AT(out, 0);                                                                                \
        const stored_##DTYPE *l = AT(left, 0), *r = AT(right, 0);                                                      \
        int64_t *o_at = AT(out, 1);                                                                                    \
        const int64_t *l_at = AT(left, 1), *r_at = AT(right, 1);                                                       \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COMPUTED a = load_##DTYPE(l[i]), b = load_##DTYPE(r[i]), zero = (COMPUTED)(ZERO);                          \
            int64_t a_at = l_at[i], b_at = r_at[i];                                                                    \
            int a_nan = a != a, b_nan = b != b, same = (a == b) | (a_nan & b_nan);                                     \
            int ahead = (a AHEAD b) | (a_nan & !b_nan) | (same & (a_at < b_at));                                       \
            int twin = (a == 0) & (b == 0) & (a_at == b_at);                                                           \
            COMPUTED value = SELECT(ahead, a, b);                                                                      \
            o[i] = store_##DTYPE(SELECT(twin, zero, value));                                                           \
            o_at[i] = SELECT(ahead, a_at, b_at);                                                                       \
        }                                                                                                              \
    }

/* WELFORD: COUNT is the dtype of the counts and COUNTED what they are computed with; DTYPE that of means and m2, which
 * are computed with as float64. */
#define FOLD_WELFORD(DTYPE, COMPUTED, NAME, COUNT, COUNTED)                                                            \
    FOLD(NAME##_##COUNT##_##DTYPE, sizeof(stored_##COUNT), sizeof(stored_##DTYPE), sizeof(stored_##DTYPE)) {           \
        stored_##COUNT *o = AT(out, 0);                                                                                \
        const stored_##COUNT *l = AT(left, 0), *r = AT(right, 0);                                                      \
        stored_##DTYPE *o_mean = AT(out, 1), *o_m2 = AT(out, 2);                                                       \
        const stored_##DTYPE *l_mean = AT(left, 1), *l_m2 = AT(left, 2), *r_mean = AT(right, 1), *r_m2 = AT(right, 2); \
        INDEPENDENT for (int64_t i = start; i < end; i++) {                                                            \
            COUNTED a = load_##COUNT(l[i]), b = load_##COUNT(r[i]), count = add_##COUNTED(a, b);                       \
            Moments one = {load_##DTYPE(l_mean[i]), load_##DTYPE(l_m2[i])};                                            \
            Moments two = {load_##DTYPE(r_mean[i]), load_##DTYPE(r_m2[i])};                                            \
            int left_heavy = (a > b) | ((a == b) & (one.mean >= two.mean));                                            \
            double heavy = (double)SELECT(left_heavy, a, b), light = (double)SELECT(left_heavy, b, a);                 \
            double divisor = SELECT(count == 0, 1.0, (double)count);                                                   \
            Moments first = {SELECT(left_heavy, one.mean, two.mean), 0};                                               \
            Moments second = {SELECT(left_heavy, two.mean, one.mean), 0};                                              \
            Moments made = merge_moments(heavy, light, divisor, first, second);                                        \
            double m2 = (one.m2 + two.m2) + made.m2;                                                                   \
            double mean = SELECT(a == 0, two.mean, SELECT(b == 0, one.mean, made.mean));                               \
            m2 = SELECT(a == 0, two.m2, SELECT(b == 0, one.m2, m2));                                                   \
            o[i] = store_##COUNT(count);                                                                               \
            o_mean[i] = store_##DTYPE(SELECT(count == 0, 0.0, mean));                                                  \
            o_m2[i] = store_##DTYPE(SELECT(count == 0, 0.0, m2));                                                      \
        }                                                                                                              \
    }

static inline int64_t add_int64_t(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

static inline double add_double(double a, double b) { return a + b; }

/* Folds of operators whose rows have many items, row by row. */

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
 * lower payload, where -1 is last as unsigned. -0 comes out as +0. */
#define FOLD_TOPK(DTYPE, T, NAME)                                                                                      \
    static void NAME##_##DTYPE##_row(void *const *out, void *const *left, void *const *right, const int64_t *sizes) {  \
        T *values = out[0];                                                                                            \
        const T *l = left[0], *r = right[0];                                                                           \
        int64_t *payload = out[1];                                                                                     \
        const int64_t *l_payload = left[1], *r_payload = right[1];                                                     \
        for (int64_t at = 0; at < sizes[0]; at++) {                                                                    \
            T a = *l, b = *r;                                                                                          \
            int same = (a == b) | ((a != a) & (b != b)), before = (uint64_t)*l_payload <= (uint64_t)*r_payload;        \
            if ((same & before) | (a > b) | ((a != a) & (b == b)))                                                     \
                values[at] = a + 0, payload[at] = *l_payload, l++, l_payload++;                                        \
            else                                                                                                       \
                values[at] = b + 0, payload[at] = *r_payload, r++, r_payload++;                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_##DTYPE(int64_t *task) {                                                                        \
        fold_rows(task, (const int64_t[]){sizeof(T), sizeof(int64_t)}, NAME##_##DTYPE##_row);                          \
    }

/* AFFINE_MATRIX: first the left map, then the right one; sums run over ascending indices. */
#define FOLD_AFFINE_MATRIX(DTYPE, T, NAME)                                                                             \
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
    static void NAME##_##DTYPE##_row(void *const *out, void *const *left, void *const *right, const int64_t *sizes) {  \
        switch (sizes[1]) { /* of small matrices the loops are unrolled */                                             \
        case 2: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 2); break;                       \
        case 3: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 3); break;                       \
        case 4: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 4); break;                       \
        case 8: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], 8); break;                       \
        default: compose_##DTYPE(out[0], out[1], left[0], left[1], right[0], right[1], sizes[1]);                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_##DTYPE(int64_t *task) {                                                                        \
        fold_rows(task, (const int64_t[]){sizeof(T), sizeof(T)}, NAME##_##DTYPE##_row);                                \
    }

/* The list: every operator with its dtypes, once. ONE and the others are what is written for an entry: of a dtype, the
 * type computed with, and the operator. */
#define FLOATS(ONE, ...)                                                                                               \
    ONE(f8, double, __VA_ARGS__) ONE(f4, float, __VA_ARGS__) ONE(f2, float, __VA_ARGS__) ONE(f2b, float, __VA_ARGS__)
#define INTEGERS(ONE, ...)                                                                                             \
    ONE(i8, int64_t, __VA_ARGS__) ONE(u8, uint64_t, __VA_ARGS__) ONE(i4, int32_t, __VA_ARGS__)                         \
    ONE(u4, uint32_t, __VA_ARGS__) ONE(i2, int16_t, __VA_ARGS__) ONE(u2, uint16_t, __VA_ARGS__)                        \
    ONE(i1, int8_t, __VA_ARGS__) ONE(u1, uint8_t, __VA_ARGS__)
#define ORDERED(ONE, ...) INTEGERS(ONE, __VA_ARGS__) ONE(b1, uint8_t, __VA_ARGS__)
#define NUMBERS(ONE, ...) /* integers that wrap, and floats */                                                         \
    ONE(i8, uint64_t, __VA_ARGS__) ONE(u8, uint64_t, __VA_ARGS__) ONE(i4, uint32_t, __VA_ARGS__)                       \
    ONE(u4, uint32_t, __VA_ARGS__) ONE(i2, uint32_t, __VA_ARGS__) ONE(u2, uint32_t, __VA_ARGS__)                       \
    ONE(i1, uint32_t, __VA_ARGS__) ONE(u1, uint32_t, __VA_ARGS__) FLOATS(ONE, __VA_ARGS__)
#define COMPLEXES(ONE, ...) ONE(c8, float, __VA_ARGS__) ONE(c16, double, __VA_ARGS__)
/* IEEE 754-2019 maximum and minimum: NaN wins; of two zeros ZERO. */
#define EXTREME(AHEAD, ZERO)                                                                                           \
    SELECT(a != a, a, SELECT(a == b, SELECT(a == 0, ZERO, a), SELECT(a AHEAD b, a, b)))
#define PLUS_ZERO a + b /* which it is unless both are -0 */
#define MINUS_ZERO -(-a - b)
#define EVERY_FOLD(ONE, COMPLEX, PLACE, AFFINE, AFFINE_COMPLEX, WELFORD, TOPK, AFFINE_MATRIX)                          \
    NUMBERS(ONE, sum, a + b) COMPLEXES(COMPLEX, sum, a + b, a_2 + b_2)                                                 \
    NUMBERS(ONE, prod, a * b) COMPLEXES(COMPLEX, prod, a * b - a_2 * b_2, a * b_2 + a_2 * b)                           \
    ORDERED(ONE, max, a > b ? a : b) FLOATS(ONE, max, EXTREME(>, PLUS_ZERO))                                           \
    ORDERED(ONE, min, a < b ? a : b) FLOATS(ONE, min, EXTREME(<, MINUS_ZERO))                                          \
    ORDERED(ONE, band, a & b) ORDERED(ONE, bor, a | b) ORDERED(ONE, bxor, a ^ b)                                       \
    FLOATS(ONE, logaddexp, log_add_exp(a, b))                                                                          \
    FLOATS(PLACE, argmax, >, PLUS_ZERO) INTEGERS(PLACE, argmax, >, 0)                                                  \
    FLOATS(PLACE, argmin, <, MINUS_ZERO) INTEGERS(PLACE, argmin, <, 0)                                                 \
    NUMBERS(AFFINE, affine) COMPLEXES(AFFINE_COMPLEX, affine)                                                          \
    FLOATS(WELFORD, welford, i8, int64_t) FLOATS(WELFORD, welford, f8, double)                                         \
    FLOATS(WELFORD, welford, f4, double) FLOATS(WELFORD, welford, f2, double) FLOATS(WELFORD, welford, f2b, double)    \
    INTEGERS(TOPK, topk) TOPK(f8, double, topk) TOPK(f4, float, topk)                                                  \
    AFFINE_MATRIX(f8, double, affine_matrix) AFFINE_MATRIX(f4, float, affine_matrix)

EVERY_FOLD(FOLD_ONE, FOLD_COMPLEX, FOLD_PLACE, FOLD_AFFINE, FOLD_AFFINE_COMPLEX, FOLD_WELFORD, FOLD_TOPK,
           FOLD_AFFINE_MATRIX)

#define ENTRY(DTYPE, TYPE, NAME, ...) {#NAME, #DTYPE, NAME##_##DTYPE},
#define ENTRY_INDEXED(DTYPE, TYPE, NAME, ...) {#NAME, #DTYPE ",i8", NAME##_##DTYPE},
#define ENTRY_MAP(DTYPE, TYPE, NAME) {#NAME, #DTYPE "," #DTYPE, NAME##_##DTYPE},
#define ENTRY_WELFORD(DTYPE, TYPE, NAME, COUNT, COUNTED)                                                               \
    {#NAME, #COUNT "," #DTYPE "," #DTYPE, NAME##_##COUNT##_##DTYPE},

const FoldEntry FOR(PROCESSOR, folds)[] = {EVERY_FOLD(ENTRY, ENTRY, ENTRY_INDEXED, ENTRY_MAP, ENTRY_MAP, ENTRY_WELFORD,
                                                      ENTRY_INDEXED, ENTRY_MAP){NULL, NULL, NULL}};
