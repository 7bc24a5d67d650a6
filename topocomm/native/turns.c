/* Turns of messages in a period: planning/algorithms/hosts/turn_packing.py says what for, and by which rules. */
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { STARTS, ROWS, DURATIONS, READ_ONLY, LEFT = READ_ONLY, BEGINS, ARRAYS }; /* the arrays; from LEFT on written */
enum { NOBODY = -1 };

typedef struct {
    const int64_t *starts, *rows, *durations; /* message i needs rows[starts[i]:starts[i + 1]] for `durations` turns */
    int64_t *begins, *tried;                  /* the turn of every message, and that which was tried last; or -1 */
    int64_t *left;                            /* messages without a turn */
    int64_t *seen_in, seen;                   /* of each message, the window in which it was counted last; of all */
    int64_t messages, period, left_count;
    int32_t *holder; /* [rows, period] */
    uint8_t *taken;  /* of each turn, for one message */
} Period;

static int32_t *holders_of(const Period *p, int64_t at) { return p->holder + p->rows[at] * p->period; }

/* Take the turns of a message, or give them back. */
static void mark(Period *p, int64_t message, int64_t begin, int32_t holder) {
    for (int64_t at = p->starts[message]; at < p->starts[message + 1]; at++)
        for (int64_t turn = 0; turn < p->durations[message]; turn++)
            holders_of(p, at)[(begin + turn) % p->period] = holder;
}

/* The first turn in which a message could begin; -1 where there is none. */
static int64_t first_free(Period *p, int64_t message) {
    int64_t turns = p->durations[message], run = 0;
    memset(p->taken, 0, (size_t)p->period);
    for (int64_t at = p->starts[message]; at < p->starts[message + 1]; at++) {
        const int32_t *holders = holders_of(p, at);
        for (int64_t turn = 0; turn < p->period; turn++)
            p->taken[turn] |= holders[turn] != NOBODY;
    }
    for (int64_t turn = 0; turn < p->period + turns - 1; turn++) {
        run = p->taken[turn % p->period] ? 0 : run + 1;
        if (run >= turns)
            return turn - turns + 1;
    }
    return -1;
}

/* The turns of all messages that one in this window would displace. */
static int64_t displaced_by(Period *p, int64_t message, int64_t begin) {
    int64_t sum = 0;
    p->seen++;
    for (int64_t at = p->starts[message]; at < p->starts[message + 1]; at++)
        for (int64_t turn = 0; turn < p->durations[message]; turn++) {
            int32_t other = holders_of(p, at)[(begin + turn) % p->period];
            if (other != NOBODY && p->seen_in[other] != p->seen) {
                p->seen_in[other] = p->seen;
                sum += p->durations[other];
            }
        }
    return sum;
}

static int compare(const void *a, const void *b) {
    int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
    return (one > other) - (one < other);
}

/* Displace all messages in this window, which are left then, by number. */
static void displace(Period *p, int64_t message, int64_t begin) {
    int64_t first = p->left_count;
    p->seen++;
    for (int64_t at = p->starts[message]; at < p->starts[message + 1]; at++)
        for (int64_t turn = 0; turn < p->durations[message]; turn++) {
            int32_t other = holders_of(p, at)[(begin + turn) % p->period];
            if (other != NOBODY && p->seen_in[other] != p->seen) {
                p->seen_in[other] = p->seen;
                p->left[p->left_count++] = other;
            }
        }
    for (int64_t each = first; each < p->left_count; each++)
        mark(p, p->left[each], p->begins[p->left[each]], NOBODY);
    qsort(p->left + first, (size_t)(p->left_count - first), sizeof *p->left, compare);
}

/* Make room where it displaces least, of every so many turns as a message lasts, elsewhere than before. */
static int64_t make_room(Period *p, int64_t message) {
    int64_t best = 0, least = INT64_MAX, end = p->period > 2 ? p->period : 2;
    for (int64_t step = 1; step < end; step += p->durations[message]) {
        int64_t begin = (p->tried[message] + step) % p->period, sum = displaced_by(p, message, begin);
        if (sum < least)
            least = sum, best = begin;
    }
    displace(p, message, best);
    return best;
}

/* Place the messages that are left, the last first, in so many steps at most: whether all have a place. */
static int place_all(Period *p, int64_t steps) {
    for (; steps > 0 && p->left_count; steps--) {
        int64_t message = p->left[--p->left_count], begin = first_free(p, message);
        if (begin < 0)
            begin = make_room(p, message);
        p->begins[message] = p->tried[message] = begin;
        mark(p, message, begin, (int32_t)message);
    }
    return p->left_count == 0;
}

/* The memory of an empty period: 0, or -1 without it. */
static int open_period(Period *p, int64_t rows) {
    size_t turns = (size_t)rows * (size_t)p->period, messages = (size_t)p->messages;
    p->holder = malloc((turns + 1) * sizeof *p->holder);
    p->tried = malloc((messages + 1) * sizeof *p->tried);
    p->seen_in = calloc(messages + 1, sizeof *p->seen_in);
    p->taken = malloc((size_t)p->period + 1);
    if (p->holder == NULL || p->tried == NULL || p->seen_in == NULL || p->taken == NULL)
        return -1;
    memset(p->holder, NOBODY, turns * sizeof *p->holder);
    memset(p->tried, -1, messages * sizeof *p->tried);
    return 0;
}

/* The number of rows; -1 where the arrays do not fit each other. */
static int64_t rows_of(const Period *p, const Py_buffer *views) {
    int64_t rows = 0, held = views[ROWS].len / 8;
    if (views[STARTS].len / 8 != p->messages + 1 || views[LEFT].len / 8 != p->messages ||
        views[BEGINS].len / 8 != p->messages || p->messages >= INT32_MAX || p->starts[0] != 0 ||
        p->starts[p->messages] != held)
        return -1;
    for (int64_t message = 0; message < p->messages; message++)
        if (p->starts[message] > p->starts[message + 1] || p->durations[message] < 1 || p->left[message] < 0 ||
            p->left[message] >= p->messages || p->begins[message] != -1)
            return -1;
    for (int64_t at = 0; at < held; at++) {
        if (p->rows[at] < 0 || p->rows[at] >= held)
            return -1;
        rows = p->rows[at] >= rows ? p->rows[at] + 1 : rows;
    }
    return rows;
}

PyObject *pack_turns(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    int state = -2;
    (void)module;
    if (PyTuple_Size(args) != ARRAYS + 2)
        return PyErr_Format(PyExc_TypeError, "pack_turns takes %d arrays, the period and the steps", ARRAYS);
    int64_t period = PyLong_AsLongLong(PyTuple_GetItem(args, ARRAYS));
    int64_t steps = PyErr_Occurred() ? -1 : PyLong_AsLongLong(PyTuple_GetItem(args, ARRAYS + 1));
    if (PyErr_Occurred())
        return NULL;
    PyObject *arrays = PyTuple_GetSlice(args, 0, ARRAYS);
    int taken = arrays == NULL ? -1 : take_columns(arrays, views, NULL, ARRAYS, ARRAYS - READ_ONLY);
    Py_XDECREF(arrays);
    if (taken < 0)
        return NULL;
    Period p = {.starts = views[STARTS].buf, .rows = views[ROWS].buf, .durations = views[DURATIONS].buf,
                .left = views[LEFT].buf, .begins = views[BEGINS].buf, .period = period,
                .messages = views[DURATIONS].len / 8, .left_count = views[DURATIONS].len / 8};
    int64_t rows = period < 1 || period >= INT32_MAX ? -1 : rows_of(&p, views);
    if (rows >= 0) {
        Py_BEGIN_ALLOW_THREADS
        state = open_period(&p, rows) < 0 ? -1 : place_all(&p, steps);
        Py_END_ALLOW_THREADS
        free(p.holder), free(p.tried), free(p.seen_in), free(p.taken);
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (state == -2)
        return PyErr_Format(PyExc_ValueError, "pack_turns: its arrays do not fit each other, or no period has %lld turns",
                            (long long)period);
    return state < 0 ? PyErr_NoMemory() : PyBool_FromLong(state);
}
