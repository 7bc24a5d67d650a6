/* Folds of the built-in operators (folds.h). Compiled once for every kind of processor, which PROCESSOR names. */
#include "folds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formulas.h"

enum {
    MOST_FOLD_FIELDS = 3,
    BLOCK_BYTES = 8192, /* of the result, while more than two operands are folded: it stays in the core's first cache */
    ROW_BYTES = 4096    /* of rows that need no memory but the stack */
};

/* out = left combined with right, so many items of every field; each is the addresses of a value's fields. */
typedef void (*Step)(void *const *out, void *const *left, void *const *right, const int64_t *items);

/* How a fold goes: BLOCKS by elements, so the result may go to the memory of an operand; ROWS by rows of many items,
 * each made in memory of its own. */
typedef enum { BLOCKS, ROWS } Way;

/* Fields of a value, whose addresses begin at `words`, from a row on. */
static void locate(void **value, const int64_t *words, int fields, const int64_t *row_bytes, int64_t row) {
    for (int field = 0; field < fields; field++)
        value[field] = (char *)(intptr_t)words[field] + row * row_bytes[field];
}

static void fold_task(const int64_t *task, int fields, const int64_t *item_bytes, Step step, Way way) {
    int64_t rows = task[0], operands = task[1], element_bytes = 0, made_bytes = 0;
    int64_t row_bytes[MOST_FOLD_FIELDS], items[MOST_FOLD_FIELDS], made_at[MOST_FOLD_FIELDS];
    const int64_t *row_items = task + 2, *result = row_items + fields, *first = result + fields;
    void *out[MOST_FOLD_FIELDS], *one[MOST_FOLD_FIELDS], *right[MOST_FOLD_FIELDS], *made[2][MOST_FOLD_FIELDS];
    for (int field = 0; field < fields; field++) {
        row_bytes[field] = row_items[field] * item_bytes[field];
        element_bytes += item_bytes[field];
        made_at[field] = made_bytes;
        made_bytes += (row_bytes[field] + 63) / 64 * 64;
    }
    _Alignas(64) char on_stack[2 * ROW_BYTES];
    char *memory = way == BLOCKS || made_bytes <= ROW_BYTES ? on_stack : malloc((size_t)(2 * made_bytes));
    if (memory == NULL) { /* no caller could be told */
        fputs("topocomm: a fold is out of memory for one row of its operator\n", stderr);
        abort();
    }
    for (int field = 0; field < fields; field++)
        made[0][field] = memory + made_at[field], made[1][field] = memory + made_bytes + made_at[field];
    int64_t block = way == ROWS ? 1 : operands > 2 ? BLOCK_BYTES / element_bytes : rows; /* two are one pass */
    for (int64_t start = 0; start < rows; start += block) {
        int64_t count = rows - start < block ? rows - start : block;
        void *const *left = one;
        locate(out, result, fields, row_bytes, start);
        locate(one, first, fields, row_bytes, start);
        for (int field = 0; field < fields; field++)
            items[field] = count * row_items[field];
        for (int64_t operand = 1; operand < operands; operand++) {
            void *const *target = way == ROWS ? made[operand & 1] : out;
            locate(right, first + operand * fields, fields, row_bytes, start);
            step(target, left, right, items);
            left = target;
        }
        for (int field = 0; field < fields; field++)
            if (left[field] != out[field])
                memmove(out[field], left[field], (size_t)(count * row_bytes[field]));
    }
    if (memory != on_stack)
        free(memory);
}

#define SELECT(CONDITION, A, B)                                                                                        \
    _Generic((A), float: select_float(CONDITION, A, B), double: select_double(CONDITION, A, B),                        \
             default: (CONDITION) ? (A) : (B))

/* A fold of fields of so many bytes an item; its step follows. */
#define FOLD(NAME, WAY, ...)                                                                                           \
    static void NAME##_step(void *const *, void *const *, void *const *, const int64_t *);                             \
    static void NAME(int64_t *task) {                                                                                  \
        const int64_t bytes[] = {__VA_ARGS__};                                                                         \
        fold_task(task, sizeof bytes / sizeof *bytes, bytes, NAME##_step, WAY);                                        \
    }                                                                                                                  \
    static void NAME##_step(void *const *out, void *const *left, void *const *right, const int64_t *items)

/* In a step, a field: o_N of the result, l_N and r_N of the operands. */
#define FIELD(DTYPE, N)                                                                                                \
    stored_##DTYPE *o_##N = out[N];                                                                                    \
    const stored_##DTYPE *l_##N = left[N], *r_##N = right[N];

#define EACH_ITEM INDEPENDENT for (int64_t i = 0, count = *items; i < count; i++)

/* A fold of one field: FORMULA combines a and b, both of type COMPUTED. */
#define FOLD_ONE(DTYPE, COMPUTED, NAME, FORMULA)                                                                       \
    FOLD(NAME##_##DTYPE, BLOCKS, sizeof(stored_##DTYPE)) {                                                             \
        FIELD(DTYPE, 0)                                                                                                \
        EACH_ITEM {                                                                                                    \
            COMPUTED a = load_##DTYPE(l_0[i]), b = load_##DTYPE(r_0[i]);                                               \
            o_0[i] = store_##DTYPE(FORMULA);                                                                           \
        }                                                                                                              \
    }

/* AFFINE: first the left map, a x + b, then the right one, c x + d. */
#define FOLD_AFFINE(DTYPE, COMPUTED, NAME)                                                                             \
    FOLD(NAME##_##DTYPE, BLOCKS, sizeof(stored_##DTYPE), sizeof(stored_##DTYPE)) {                                     \
        FIELD(DTYPE, 0)                                                                                                \
        FIELD(DTYPE, 1)                                                                                                \
        EACH_ITEM {                                                                                                    \
            COMPUTED a = load_##DTYPE(l_0[i]), b = load_##DTYPE(l_1[i]);                                               \
            COMPUTED c = load_##DTYPE(r_0[i]), d = load_##DTYPE(r_1[i]);                                               \
            o_0[i] = store_##DTYPE(PRODUCT(c, a));                                                                     \
            o_1[i] = store_##DTYPE(PRODUCT(c, b) + d);                                                                 \
        }                                                                                                              \
    }

/* ARGMAX and ARGMIN: a value and its index; AHEAD is > or <, and ZERO the zero that wins of two of unlike sign. */
#define FOLD_PLACE(DTYPE, COMPUTED, NAME, AHEAD, ZERO)                                                                 \
    FOLD(NAME##_##DTYPE, BLOCKS, sizeof(stored_##DTYPE), sizeof(int64_t)) {                                            \
        FIELD(DTYPE, 0)                                                                                                \
        FIELD(i8, 1)                                                                                                   \
        EACH_ITEM {                                                                                                    \
            COMPUTED a = load_##DTYPE(l_0[i]), b = load_##DTYPE(r_0[i]), zero = (COMPUTED)(ZERO);                      \
            int64_t a_at = l_1[i], b_at = r_1[i];                                                                      \
            int a_nan = a != a, b_nan = b != b, same = (a == b) | (a_nan & b_nan);                                     \
            int ahead = (a AHEAD b) | (a_nan & !b_nan) | (same & (a_at < b_at));                                       \
            int twin = (a == 0) & (b == 0) & (a_at == b_at);                                                           \
            COMPUTED value = SELECT(ahead, a, b);                                                                      \
            o_0[i] = store_##DTYPE(SELECT(twin, zero, value));                                                         \
            o_1[i] = SELECT(ahead, a_at, b_at);                                                                        \
        }                                                                                                              \
    }

/* WELFORD: COUNT is the dtype of the counts, COUNTED what they are computed with and SUMMED what they are added as, to
 * wrap; DTYPE is that of means and m2, which are computed with as float64. Chan, Golub, LeVeque: Updating formulae
 * (1979), equations 2.1, from the heavier side, so that it commutes. */
#define FOLD_WELFORD(DTYPE, COMPUTED, NAME, COUNT, COUNTED, SUMMED)                                                    \
    FOLD(NAME##_##COUNT##_##DTYPE, BLOCKS, sizeof(stored_##COUNT), sizeof(stored_##DTYPE), sizeof(stored_##DTYPE)) {   \
        FIELD(COUNT, 0)                                                                                                \
        FIELD(DTYPE, 1)                                                                                                \
        FIELD(DTYPE, 2)                                                                                                \
        EACH_ITEM {                                                                                                    \
            COUNTED a = load_##COUNT(l_0[i]), b = load_##COUNT(r_0[i]), both = (COUNTED)((SUMMED)a + (SUMMED)b);       \
            double a_mean = load_##DTYPE(l_1[i]), b_mean = load_##DTYPE(r_1[i]);                                       \
            double a_m2 = load_##DTYPE(l_2[i]), b_m2 = load_##DTYPE(r_2[i]);                                           \
            int a_heavy = (a > b) | ((a == b) & (a_mean >= b_mean));                                                   \
            double heavy = (double)SELECT(a_heavy, a, b), light = (double)SELECT(a_heavy, b, a);                       \
            double share = light / SELECT(both == 0, 1.0, (double)both);                                               \
            double first = SELECT(a_heavy, a_mean, b_mean), second = SELECT(a_heavy, b_mean, a_mean);                  \
            double apart = second - first;                                                                             \
            double moved = first + apart * share, mixed = first * (1.0 - share) + second * share;                      \
            double mean = SELECT(apart - apart == 0, moved, mixed); /* they are finite, and not too far apart */       \
            double m2 = (a_m2 + b_m2) + apart * apart * (heavy * share);                                               \
            mean = SELECT(a == 0, b_mean, SELECT(b == 0, a_mean, mean));                                               \
            m2 = SELECT(a == 0, b_m2, SELECT(b == 0, a_m2, m2));                                                       \
            o_0[i] = store_##COUNT(both);                                                                              \
            o_1[i] = store_##DTYPE(SELECT(both == 0, 0.0, mean));                                                      \
            o_2[i] = store_##DTYPE(SELECT(both == 0, 0.0, m2));                                                        \
        }                                                                                                              \
    }

/* TOPK: merge two sorted rows, as long as there is room. NaN goes first, then the greater; of equal values that of the
 * lower payload, where -1 is last as unsigned. -0 comes out as +0. */
#define FOLD_TOPK(DTYPE, T, NAME)                                                                                      \
    FOLD(NAME##_##DTYPE, ROWS, sizeof(T), sizeof(int64_t)) {                                                           \
        FIELD(DTYPE, 0)                                                                                                \
        FIELD(i8, 1)                                                                                                   \
        for (int64_t at = 0; at < items[0]; at++) {                                                                    \
            T a = *l_0, b = *r_0;                                                                                      \
            int same = (a == b) | ((a != a) & (b != b)), before = (uint64_t)*l_1 <= (uint64_t)*r_1;                    \
            if ((same & before) | (a > b) | ((a != a) & (b == b)))                                                     \
                o_0[at] = a + 0, o_1[at] = *l_1, l_0++, l_1++;                                                         \
            else                                                                                                       \
                o_0[at] = b + 0, o_1[at] = *r_1, r_0++, r_1++;                                                         \
        }                                                                                                              \
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
    FOLD(NAME##_##DTYPE, ROWS, sizeof(T), sizeof(T)) {                                                                 \
        FIELD(DTYPE, 0)                                                                                                \
        FIELD(DTYPE, 1)                                                                                                \
        switch (items[1]) { /* of small matrices the loops are unrolled */                                             \
        case 2: compose_##DTYPE(o_0, o_1, l_0, l_1, r_0, r_1, 2); break;                                               \
        case 3: compose_##DTYPE(o_0, o_1, l_0, l_1, r_0, r_1, 3); break;                                               \
        case 4: compose_##DTYPE(o_0, o_1, l_0, l_1, r_0, r_1, 4); break;                                               \
        case 8: compose_##DTYPE(o_0, o_1, l_0, l_1, r_0, r_1, 8); break;                                               \
        default: compose_##DTYPE(o_0, o_1, l_0, l_1, r_0, r_1, items[1]);                                              \
        }                                                                                                              \
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
#define NUMBERS(ONE, ...) /* integers that wrap, floats and complex numbers */                                         \
    ONE(i8, uint64_t, __VA_ARGS__) ONE(u8, uint64_t, __VA_ARGS__) ONE(i4, uint32_t, __VA_ARGS__)                       \
    ONE(u4, uint32_t, __VA_ARGS__) ONE(i2, uint32_t, __VA_ARGS__) ONE(u2, uint32_t, __VA_ARGS__)                       \
    ONE(i1, uint32_t, __VA_ARGS__) ONE(u1, uint32_t, __VA_ARGS__) FLOATS(ONE, __VA_ARGS__)                             \
    ONE(c8, float _Complex, __VA_ARGS__) ONE(c16, double _Complex, __VA_ARGS__)
/* IEEE 754-2019 maximum and minimum: NaN wins; of two zeros ZERO. */
#define EXTREME(AHEAD, ZERO)                                                                                           \
    SELECT(a != a, a, SELECT(a == b, SELECT(a == 0, ZERO, a), SELECT(a AHEAD b, a, b)))
#define PLUS_ZERO a + b /* which it is unless both are -0 */
#define MINUS_ZERO -(-a - b)
#define EVERY_FOLD(ONE, PLACE, AFFINE, WELFORD, TOPK, AFFINE_MATRIX)                                                   \
    NUMBERS(ONE, sum, a + b) NUMBERS(ONE, prod, PRODUCT(a, b))                                                         \
    ORDERED(ONE, max, a > b ? a : b) FLOATS(ONE, max, EXTREME(>, PLUS_ZERO))                                           \
    ORDERED(ONE, min, a < b ? a : b) FLOATS(ONE, min, EXTREME(<, MINUS_ZERO))                                          \
    ORDERED(ONE, band, a & b) ORDERED(ONE, bor, a | b) ORDERED(ONE, bxor, a ^ b)                                       \
    FLOATS(ONE, logaddexp, log_add_exp(a, b))                                                                          \
    FLOATS(PLACE, argmax, >, PLUS_ZERO) INTEGERS(PLACE, argmax, >, 0)                                                  \
    FLOATS(PLACE, argmin, <, MINUS_ZERO) INTEGERS(PLACE, argmin, <, 0)                                                 \
    NUMBERS(AFFINE, affine)                                                                                            \
    FLOATS(WELFORD, welford, i8, int64_t, uint64_t) FLOATS(WELFORD, welford, f8, double, double)                       \
    FLOATS(WELFORD, welford, f4, double, double) FLOATS(WELFORD, welford, f2, double, double)                          \
    FLOATS(WELFORD, welford, f2b, double, double)                                                                      \
    INTEGERS(TOPK, topk) TOPK(f8, double, topk) TOPK(f4, float, topk)                                                  \
    AFFINE_MATRIX(f8, double, affine_matrix) AFFINE_MATRIX(f4, float, affine_matrix)

EVERY_FOLD(FOLD_ONE, FOLD_PLACE, FOLD_AFFINE, FOLD_WELFORD, FOLD_TOPK, FOLD_AFFINE_MATRIX)

#define ENTRY(DTYPE, TYPE, NAME, ...) {#NAME, #DTYPE, NAME##_##DTYPE},
#define ENTRY_INDEXED(DTYPE, TYPE, NAME, ...) {#NAME, #DTYPE ",i8", NAME##_##DTYPE},
#define ENTRY_MAP(DTYPE, TYPE, NAME) {#NAME, #DTYPE "," #DTYPE, NAME##_##DTYPE},
#define ENTRY_WELFORD(DTYPE, TYPE, NAME, COUNT, COUNTED, SUMMED)                                                       \
    {#NAME, #COUNT "," #DTYPE "," #DTYPE, NAME##_##COUNT##_##DTYPE},

const FoldEntry FOR(PROCESSOR, folds)[] = {
    EVERY_FOLD(ENTRY, ENTRY_INDEXED, ENTRY_MAP, ENTRY_WELFORD, ENTRY_INDEXED, ENTRY_MAP){NULL, NULL, NULL}};
