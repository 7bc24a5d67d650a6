/* Rows of a table in all slices of a pipeline: planning/schedule/schedule.py says in which order. */
#include "types.h"

typedef struct {
    const int32_t *table; /* sorted by round, its first column */
    int64_t rows, columns, count, stagger;
} Table;

static int64_t round_of(const Table *t, int64_t row) { return t->table[row * t->columns]; }

/* Write row and slice of each entry by round, those of earlier slices first; `next` is the next row of each slice that
 * is under way. */
static void order(const Table *t, int64_t *next, int64_t *rows, int64_t *slices) {
    int64_t first = 0, end = 0, at = 0, now = t->rows ? round_of(t, 0) : 0;
    while (first < t->count && t->rows) {
        while (end < t->count && round_of(t, 0) + end * t->stagger <= now)
            next[end++] = 0;
        int64_t soonest = end < t->count ? round_of(t, 0) + end * t->stagger : INT64_MAX;
        for (int64_t slice = first; slice < end; slice++) {
            for (; next[slice] < t->rows && round_of(t, next[slice]) + slice * t->stagger == now; next[slice]++, at++)
                rows[at] = next[slice], slices[at] = slice;
            if (next[slice] < t->rows && round_of(t, next[slice]) + slice * t->stagger < soonest)
                soonest = round_of(t, next[slice]) + slice * t->stagger;
        }
        while (first < end && next[first] == t->rows)
            first++;
        now = soonest;
    }
}

PyObject *order_slices(PyObject *module, PyObject *args) {
    enum { TABLE, SLICES, NEXT, ROWS, OF_SLICE, ARRAYS };
    static const Py_ssize_t sizes[ARRAYS] = {4, 8, 8, 8, 8};
    Py_buffer views[ARRAYS];
    (void)module;
    if (take_columns(args, views, sizes, ARRAYS, 3) < 0)
        return NULL;
    const int64_t *slices = views[SLICES].buf;
    int right = views[TABLE].ndim == 2 && views[TABLE].shape[1] > 0 && views[SLICES].len == 16 && slices[0] > 0 &&
                slices[0] <= INT32_MAX && slices[1] >= 0 && slices[1] <= INT32_MAX && views[NEXT].len == 8 * slices[0];
    if (right) {
        const Table t = {views[TABLE].buf, views[TABLE].shape[0], views[TABLE].shape[1], slices[0], slices[1]};
        right = views[ROWS].len == 8 * t.rows * t.count && views[OF_SLICE].len == views[ROWS].len;
        for (int64_t row = 1; right && row < t.rows; row++)
            right = round_of(&t, row - 1) <= round_of(&t, row);
        if (right) {
            Py_BEGIN_ALLOW_THREADS
            order(&t, views[NEXT].buf, views[ROWS].buf, views[OF_SLICE].buf);
            Py_END_ALLOW_THREADS
        }
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return right ? Py_NewRef(Py_None)
                 : PyErr_Format(PyExc_ValueError, "order_slices: its arrays do not fit each other");
}
