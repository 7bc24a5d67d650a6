/* Least sums over links: planning/bounds/machine_columns.py says of what; and turns of hops: scan_trees/hop_clock.py. */
#include "types.h"

#include <math.h>
#include <string.h>

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

static int within(const Py_buffer *view, int64_t end) {
    const int64_t *numbers = view->buf;
    for (int64_t at = 0; at < items(view); at++)
        if (numbers[at] < 0 || numbers[at] >= end)
            return 0;
    return 1;
}

static void release_all(Py_buffer *views, int count) {
    for (int array = 0; array < count; array++)
        PyBuffer_Release(&views[array]);
}

typedef struct {
    const int64_t *tails, *heads;
    const uint8_t *onward; /* of each link: whether it takes what has come to its tail; others what starts there */
    const double *weights;
    int64_t links, devices;
} Links;

static int pass(const Links *l, int64_t link, const double *at, double *reached) {
    double sum = at[l->tails[link]] + l->weights[link];
    if (!(sum < reached[l->heads[link]]))
        return 0;
    reached[l->heads[link]] = sum;
    return 1;
}

/* The least of one row of starts: of paths that have a link at least, where endpoints do not relay. */
static void reach(const Links *l, const double *starts, double *reached, int relays) {
    for (int64_t device = 0; device < l->devices; device++)
        reached[device] = relays ? starts[device] : INFINITY;
    for (int64_t link = 0; !relays && link < l->links; link++)
        pass(l, link, starts, reached);
    for (int better = 1; better;) {
        better = 0;
        for (int64_t link = 0; link < l->links; link++)
            if (relays || l->onward[link])
                better |= pass(l, link, reached, reached);
    }
}

PyObject *least_sums(PyObject *module, PyObject *args) {
    enum { TAILS, HEADS, ONWARD, WEIGHTS, RELAYS, STARTS, REACHED, ARRAYS };
    static const Py_ssize_t sizes[ARRAYS] = {8, 8, 1, 8, 1, 8, 8};
    Py_buffer views[ARRAYS];
    (void)module;
    if (take_columns(args, views, sizes, ARRAYS, 1) < 0)
        return NULL;
    int64_t links = items(&views[TAILS]), rows = views[STARTS].ndim == 2 ? views[STARTS].shape[0] : -1;
    int64_t devices = rows < 0 ? 0 : views[STARTS].shape[1];
    int right = rows >= 0 && items(&views[HEADS]) == links && items(&views[ONWARD]) == links &&
                items(&views[WEIGHTS]) == links && items(&views[RELAYS]) == 1 &&
                views[REACHED].len == views[STARTS].len && within(&views[TAILS], devices) &&
                within(&views[HEADS], devices);
    if (right) {
        const Links all = {views[TAILS].buf, views[HEADS].buf, views[ONWARD].buf, views[WEIGHTS].buf, links, devices};
        int relays = *(const uint8_t *)views[RELAYS].buf;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t row = 0; row < rows; row++)
            reach(&all, (const double *)views[STARTS].buf + devices * row, (double *)views[REACHED].buf + devices * row,
                  relays);
        Py_END_ALLOW_THREADS
    }
    release_all(views, ARRAYS);
    return right ? Py_NewRef(Py_None) : PyErr_Format(PyExc_ValueError, "least_sums: its arrays do not fit each other");
}

PyObject *leave_in_turn(PyObject *module, PyObject *args) {
    enum { NODES, READY, LAST, TURNS, TAKES, PERIOD, SLICES, THERE, ARRAYS };
    Py_buffer views[ARRAYS];
    (void)module;
    if (take_columns(args, views, NULL, ARRAYS, 2) < 0)
        return NULL;
    const int64_t *nodes = views[NODES].buf, *last = views[LAST].buf;
    const double *turns = views[TURNS].buf, *takes = views[TAKES].buf, *period_and_same = views[PERIOD].buf;
    int64_t count = items(&views[LAST]), most = views[TURNS].ndim == 2 ? views[TURNS].shape[1] : 0;
    int right = most > 0 && views[TURNS].shape[0] == count && items(&views[PERIOD]) == 2 &&
                items(&views[READY]) == items(&views[NODES]) && items(&views[TAKES]) == count * most &&
                items(&views[SLICES]) == count * most && items(&views[THERE]) == count && within(&views[NODES], count) &&
                within(&views[LAST], most);
    for (int64_t at = 0; right && at < items(&views[NODES]); at++) {
        int64_t node = nodes[at], *slices = (int64_t *)views[SLICES].buf + node * most;
        double ready = ((const double *)views[READY].buf)[at], late = 0.0;
        for (int64_t hop = 0; hop < most; hop++) {
            if (hop <= last[node]) {
                double turn = turns[node * most + hop];
                late = ceil((ready - turn) / period_and_same[0] - period_and_same[1]);
                late = late > 0.0 ? late : 0.0;
                ready = turn + late * period_and_same[0] + takes[node * most + hop];
            }
            slices[hop] = (int64_t)late;
        }
        ((double *)views[THERE].buf)[node] = ready;
    }
    release_all(views, ARRAYS);
    return right ? Py_NewRef(Py_None) : PyErr_Format(PyExc_ValueError, "leave_in_turn: its arrays do not fit each other");
}
