/* Messages one after the other, the soonest first: planning/host_forests/periodic_turns.py says what for. */
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS, TIMES, SHARES, WEIGHTS, READ_ONLY, FREE = READ_ONLY, LEFT, STARTS, COLUMNS }; /* from FREE on written */

typedef struct {
    const int64_t *rows;                   /* [messages, width]: ports and links that each needs; the last is always free */
    const double *times, *shares, *weights; /* [messages, width] of the first two: in time, and as part of the most */
    double *free, *left, *starts;           /* [rows] of the first two: when each is free, and what it has left to do */
    uint8_t *marked;                        /* of rows, those of the message placed last */
    double same;
    int64_t messages, width, count;
    int cubed;
} Shop;

/* How much what a message needs has left to do. */
static double merit_of(const Shop *s, int64_t message) {
    double merit = 0.0;
    for (int64_t at = message * s->width; at < (message + 1) * s->width; at++) {
        double left = s->left[s->rows[at]];
        if (s->cubed)
            merit += left * left * left;
        else if (left > merit)
            merit = left;
    }
    return merit * s->weights[message];
}

static double soon_of(const Shop *s, int64_t message) {
    double soon = 0.0;
    for (int64_t at = message * s->width; at < (message + 1) * s->width; at++)
        if (s->free[s->rows[at]] > soon)
            soon = s->free[s->rows[at]];
    return soon;
}

/* Of the messages that can start soonest the one of most merit; its place among those that wait. */
static int64_t next_of(const Shop *s, const int64_t *waiting, int64_t count, const double *soon) {
    double least = soon[waiting[0]], most = -1.0;
    int64_t best = 0;
    for (int64_t place = 1; place < count; place++)
        if (soon[waiting[place]] < least)
            least = soon[waiting[place]];
    for (int64_t place = 0; place < count; place++) {
        if (soon[waiting[place]] > least + s->same)
            continue;
        double merit = merit_of(s, waiting[place]);
        if (merit > most)
            most = merit, best = place;
    }
    return best;
}

static void take(const Shop *s, int64_t message, double start) {
    s->starts[message] = start;
    for (int64_t at = message * s->width; at < (message + 1) * s->width; at++) {
        int64_t row = s->rows[at];
        if (row == s->count - 1)
            continue;
        s->free[row] = start + s->times[at];
        s->left[row] -= s->shares[at];
    }
}

/* Mark what a message needs, or nothing of it. */
static void mark(const Shop *s, int64_t message, uint8_t flag) {
    for (int64_t at = message * s->width; at < (message + 1) * s->width; at++)
        s->marked[s->rows[at]] = flag && s->rows[at] < s->count - 1;
}

/* Whether a message needs something that is marked. */
static int meets(const Shop *s, int64_t message) {
    int met = 0;
    for (int64_t at = message * s->width; at < (message + 1) * s->width; at++)
        met |= s->marked[s->rows[at]];
    return met;
}

static void list(const Shop *s, int64_t *waiting, double *soon) {
    for (int64_t message = 0; message < s->messages; message++)
        waiting[message] = message, soon[message] = 0.0;
    for (int64_t count = s->messages; count > 0; count--) {
        int64_t place = next_of(s, waiting, count, soon), message = waiting[place];
        take(s, message, soon[message]);
        memmove(waiting + place, waiting + place + 1, (size_t)(count - 1 - place) * sizeof *waiting);
        mark(s, message, 1);
        for (int64_t each = 0; each < count - 1; each++)
            if (meets(s, waiting[each]))
                soon[waiting[each]] = soon_of(s, waiting[each]);
        mark(s, message, 0);
    }
}

/* Whether the arrays fit each other. */
static int match(Shop *s, const Py_buffer *views) {
    int64_t held = views[ROWS].len / 8;
    s->messages = views[STARTS].len / 8, s->count = views[FREE].len / 8;
    s->width = s->messages ? held / s->messages : 0;
    if (s->width * s->messages != held || views[TIMES].len / 8 != held || views[SHARES].len / 8 != held ||
        views[WEIGHTS].len / 8 != s->messages || views[LEFT].len / 8 != s->count)
        return 0;
    for (int64_t at = 0; at < held; at++)
        if (s->rows[at] < 0 || s->rows[at] >= s->count)
            return 0;
    return 1;
}

PyObject *list_messages(PyObject *module, PyObject *args) {
    Py_buffer views[COLUMNS];
    int state = 0;
    (void)module;
    if (PyTuple_Size(args) != COLUMNS + 2)
        return PyErr_Format(PyExc_TypeError, "list_messages takes %d arrays, a time and a flag", COLUMNS);
    double same = PyFloat_AsDouble(PyTuple_GetItem(args, COLUMNS));
    int cubed = PyErr_Occurred() ? -1 : PyObject_IsTrue(PyTuple_GetItem(args, COLUMNS + 1));
    PyObject *arrays = cubed < 0 ? NULL : PyTuple_GetSlice(args, 0, COLUMNS);
    int taken = arrays == NULL ? -1 : take_columns(arrays, views, NULL, COLUMNS, COLUMNS - READ_ONLY);
    Py_XDECREF(arrays);
    if (taken < 0)
        return NULL;
    Shop s = {.rows = views[ROWS].buf, .times = views[TIMES].buf, .shares = views[SHARES].buf,
              .weights = views[WEIGHTS].buf, .free = views[FREE].buf, .left = views[LEFT].buf,
              .starts = views[STARTS].buf, .same = same, .cubed = cubed};
    if (match(&s, views)) {
        int64_t *waiting = malloc((size_t)(s.messages + 1) * sizeof *waiting);
        double *soon = malloc((size_t)(s.messages + 1) * sizeof *soon);
        s.marked = calloc((size_t)s.count + 1, 1);
        state = waiting == NULL || soon == NULL || s.marked == NULL ? -1 : 1;
        Py_BEGIN_ALLOW_THREADS
        if (state > 0)
            list(&s, waiting, soon);
        Py_END_ALLOW_THREADS
        free(waiting), free(soon), free(s.marked);
    }
    for (int array = 0; array < COLUMNS; array++)
        PyBuffer_Release(&views[array]);
    if (state == 0)
        return PyErr_Format(PyExc_ValueError, "list_messages: its arrays do not fit each other");
    return state < 0 ? PyErr_NoMemory() : Py_NewRef(Py_None);
}
