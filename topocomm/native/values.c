/* The value that every read of a schedule finds: planning/proof/dataflow.py says by which rules. */
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { /* the arrays that trace_values takes; from READ on written */
    MOVES, FOLDS, STARTS, GIVEN, SENT, RECEIVED, FOLDED, OPERANDS, RESULTS, PLACES,
    READ, FOUND, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {8, 8, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8};
enum { NOTHING = -1 };

typedef struct {
    const int64_t *moves, *folds, *given, *sent, *received, *folded, *operands, *results;
    const int32_t *starts;
    int64_t rounds, inputs, found;
    int32_t *held, *under_way; /* the value of each place; of each transfer */
    int64_t *read, *results_hold;
} Trace;

/* Write a value where there is none: whether there was one. */
static int write_again(Trace *t, int64_t place, int64_t value) {
    int again = t->held[place] != NOTHING;
    t->held[place] = (int32_t)value;
    return again;
}

/* Whether a round reads what nothing wrote, writes again, or folds less than two. */
static int has_fault(Trace *t, int64_t round) {
    int fault = 0;
    for (int64_t move = t->moves[round]; move < t->moves[round + 1]; move++) {
        t->under_way[move] = t->held[t->sent[move]];
        fault |= t->under_way[move] == NOTHING;
    }
    for (int64_t move = t->moves[round]; move < t->moves[round + 1]; move++)
        fault |= write_again(t, t->received[move], t->under_way[move]);
    for (int64_t fold = t->folds[round]; fold < t->folds[round + 1]; fold++) {
        fault |= t->starts[fold + 1] - t->starts[fold] < 2;
        for (int64_t at = t->starts[fold]; at < t->starts[fold + 1]; at++) {
            t->read[at] = t->held[t->operands[at]];
            fault |= t->read[at] == NOTHING;
        }
        fault |= write_again(t, t->folded[fold], t->inputs + fold);
    }
    return fault;
}

static int trace(Trace *t) {
    int fault = 0;
    for (int64_t input = 0; input < t->inputs; input++)
        fault |= write_again(t, t->given[input], input);
    for (int64_t round = 0; round < t->rounds && !fault; round++)
        fault = has_fault(t, round);
    for (int64_t at = 0; at < t->found; at++)
        t->results_hold[at] = t->held[t->results[at]];
    return fault;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

/* Whether edges rise from 0 to `end`. */
static int cuts(const int64_t *edges, int64_t count, int64_t end) {
    for (int64_t at = 1; at < count; at++)
        if (edges[at] < edges[at - 1])
            return 0;
    return count > 0 && edges[0] == 0 && edges[count - 1] == end;
}

static int are_right(const Py_buffer *views, int64_t places) {
    int64_t moves = items(&views[SENT]), folds = items(&views[FOLDED]), read = items(&views[OPERANDS]);
    const int32_t *starts = views[STARTS].buf;
    int right = items(&views[MOVES]) == items(&views[FOLDS]) && cuts(views[MOVES].buf, items(&views[MOVES]), moves) &&
                cuts(views[FOLDS].buf, items(&views[FOLDS]), folds) && items(&views[RECEIVED]) == moves &&
                items(&views[STARTS]) == folds + 1 && starts[0] == 0 && starts[folds] == read &&
                items(&views[READ]) == read && items(&views[FOUND]) == items(&views[RESULTS]) &&
                places >= 0 && places < INT32_MAX && items(&views[GIVEN]) + folds < INT32_MAX;
    for (int64_t fold = 0; right && fold < folds; fold++)
        right = starts[fold] <= starts[fold + 1];
    for (int array = GIVEN; array <= RESULTS; array++)
        for (int64_t at = 0; right && at < items(&views[array]); at++) {
            int64_t place = ((const int64_t *)views[array].buf)[at];
            right = place >= 0 && place < places;
        }
    return right;
}

PyObject *trace_values(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    int fault = 0, right = 0, room = 0;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, ARRAYS - READ) < 0)
        return NULL;
    int64_t places = items(&views[PLACES]) == 1 ? *(const int64_t *)views[PLACES].buf : -1;
    if (are_right(views, places)) {
        Trace t = {
            .moves = views[MOVES].buf, .folds = views[FOLDS].buf, .given = views[GIVEN].buf, .sent = views[SENT].buf,
            .received = views[RECEIVED].buf, .folded = views[FOLDED].buf, .operands = views[OPERANDS].buf,
            .results = views[RESULTS].buf, .starts = views[STARTS].buf, .rounds = items(&views[MOVES]) - 1,
            .inputs = items(&views[GIVEN]), .found = items(&views[RESULTS]), .read = views[READ].buf,
            .results_hold = views[FOUND].buf,
        };
        size_t count = (size_t)(places + items(&views[SENT]));
        right = 1;
        t.held = malloc(count * sizeof *t.held + 1);
        room = t.held != NULL;
        if (room) {
            Py_BEGIN_ALLOW_THREADS
            memset(t.held, -1, count * sizeof *t.held);
            t.under_way = t.held + places;
            fault = trace(&t);
            Py_END_ALLOW_THREADS
        }
        free(t.held);
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (!right)
        return PyErr_Format(PyExc_ValueError, "trace_values: its arrays do not fit each other");
    return room ? PyBool_FromLong(!fault) : PyErr_NoMemory();
}
