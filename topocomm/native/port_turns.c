/* The messages of a schedule in the order in which their ports serve them: planning/cost/port_time.py says what for. */
#include "types.h"

enum { /* the columns of TurnColumns; from HOLDS on in us, from FREE on written */
    MOVES, FOLDS, SENT, MESSAGE, FROM, TO, PORT_STARTS, PORTS, FOLDED, OPERAND_STARTS, OPERANDS, WHOLE,
    HOLDS = WHOLE, TAKES, BUSY, FREE, READY, START, ARRIVAL, COLUMNS
};

typedef struct {
    const int64_t *whole[WHOLE];
    double *us[COLUMNS];
    int64_t rounds, places;
} Turns;

/* Start messages low..high-1 as soon as each of their ports has a free place, in this order. */
static void serve(const Turns *t, int64_t low, int64_t high) {
    for (int64_t message = low; message < high; message++) {
        int64_t first = t->whole[PORT_STARTS][message], end = t->whole[PORT_STARTS][message + 1];
        double start = t->us[START][message];
        for (int turn = 0; turn < 2; turn++)
            for (int64_t at = first; at < end; at++) {
                double *free = t->us[FREE] + t->whole[PORTS][at] * t->places, *least = free;
                for (int64_t place = 1; place < t->places; place++)
                    if (free[place] < *least)
                        least = free + place;
                if (turn)
                    *least = start + t->us[HOLDS][at];
                else if (*least > start)
                    start = *least;
            }
        t->us[START][message] = start;
    }
}

/* Start messages low..high-1 together: once all of theirs is there and the busiest link has passed their bytes. */
static double serve_together(const Turns *t, int64_t low, int64_t high, double now, double busy) {
    for (int64_t message = low; message < high; message++)
        if (t->us[START][message] > now)
            now = t->us[START][message];
    for (int64_t message = low; message < high; message++)
        t->us[START][message] = now + busy;
    return now + busy;
}

static void follow(const Turns *t, int together) {
    double now = 0.0, *ready = t->us[READY], *start = t->us[START], *arrival = t->us[ARRIVAL];
    for (int64_t round = 0; round < t->rounds; round++) {
        int64_t move = t->whole[MOVES][round], last = t->whole[MOVES][round + 1];
        int64_t low = t->whole[SENT][round], high = t->whole[SENT][round + 1];
        for (int64_t each = move; each < last; each++) {
            int64_t message = t->whole[MESSAGE][each];
            if (ready[t->whole[FROM][each]] > start[message])
                start[message] = ready[t->whole[FROM][each]];
        }
        if (!together)
            serve(t, low, high);
        else if (move < last)
            now = serve_together(t, low, high, now, t->us[BUSY][round]);
        for (int64_t message = low; message < high; message++)
            arrival[message] = start[message] + t->us[TAKES][message];
        for (int64_t each = move; each < last; each++)
            ready[t->whole[TO][each]] = arrival[t->whole[MESSAGE][each]];
        for (int64_t fold = t->whole[FOLDS][round]; fold < t->whole[FOLDS][round + 1]; fold++) {
            double us = 0.0;
            for (int64_t at = t->whole[OPERAND_STARTS][fold]; at < t->whole[OPERAND_STARTS][fold + 1]; at++)
                if (ready[t->whole[OPERANDS][at]] > us)
                    us = ready[t->whole[OPERANDS][at]];
            ready[t->whole[FOLDED][fold]] = us;
        }
    }
}

/* Set for every round the longest time of a place: the sum of what its messages hold it for, over its rate. */
static void add_busiest(const int64_t *sent, int64_t rounds, const int64_t *starts, const int64_t *places,
                        const double *held, const double *rate, double *sums, double *busiest) {
    for (int64_t round = 0; round < rounds; round++) {
        int64_t first = starts[sent[round]], end = starts[sent[round + 1]];
        for (int64_t message = sent[round]; message < sent[round + 1]; message++)
            for (int64_t at = starts[message]; at < starts[message + 1]; at++)
                sums[places[at]] += held[message];
        for (int64_t at = first; at < end; at++) {
            double us = sums[places[at]] / rate[places[at]];
            if (us > busiest[round])
                busiest[round] = us;
        }
        for (int64_t at = first; at < end; at++)
            sums[places[at]] = 0.0;
    }
}

/* Add to each place what messages hold it for, and keep the least latency of a message there. */
static void load(int64_t messages, const int64_t *starts, const int64_t *places, const double *held,
                 const double *latency, double *sums, double *least) {
    for (int64_t message = 0; message < messages; message++)
        for (int64_t at = starts[message]; at < starts[message + 1]; at++) {
            sums[places[at]] += held[message];
            if (latency[message] < least[places[at]])
                least[places[at]] = latency[message];
        }
}

PyObject *load_places(PyObject *module, PyObject *args) {
    enum { SUMS = 4, COUNT = 6 };
    Py_buffer views[COUNT];
    (void)module;
    if (take_columns(args, views, NULL, COUNT, COUNT - SUMS) < 0)
        return NULL;
    load(views[2].len / (Py_ssize_t)sizeof(double), views[0].buf, views[1].buf, views[2].buf, views[3].buf,
         views[SUMS].buf, views[SUMS + 1].buf);
    for (int column = 0; column < COUNT; column++)
        PyBuffer_Release(&views[column]);
    return Py_NewRef(Py_None);
}

PyObject *busiest_by_round(PyObject *module, PyObject *args) {
    enum { SUMS = 5, COUNT = 7 };
    Py_buffer views[COUNT];
    (void)module;
    if (take_columns(args, views, NULL, COUNT, COUNT - SUMS) < 0)
        return NULL;
    add_busiest(views[0].buf, views[0].len / (Py_ssize_t)sizeof(int64_t) - 1, views[1].buf, views[2].buf, views[3].buf,
                views[4].buf, views[SUMS].buf, views[SUMS + 1].buf);
    for (int column = 0; column < COUNT; column++)
        PyBuffer_Release(&views[column]);
    return Py_NewRef(Py_None);
}

PyObject *follow_turns(PyObject *module, PyObject *args) {
    Py_buffer views[COLUMNS];
    Turns turns = {.rounds = 0};
    (void)module;
    if (PyTuple_Size(args) != COLUMNS + 1)
        return PyErr_Format(PyExc_TypeError, "follow_turns takes %d columns and the places of a port", COLUMNS);
    turns.places = PyLong_AsLongLong(PyTuple_GetItem(args, COLUMNS));
    if (turns.places < 1)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a port has one place or more");
    PyObject *columns = PyTuple_GetSlice(args, 0, COLUMNS);
    int taken = columns == NULL ? -1 : take_columns(columns, views, NULL, COLUMNS, COLUMNS - FREE);
    Py_XDECREF(columns);
    if (taken < 0)
        return NULL;
    for (int column = 0; column < WHOLE; column++)
        turns.whole[column] = views[column].buf;
    for (int column = WHOLE; column < COLUMNS; column++)
        turns.us[column] = views[column].buf;
    turns.rounds = views[MOVES].len / (Py_ssize_t)sizeof(int64_t) - 1;
    Py_BEGIN_ALLOW_THREADS
    follow(&turns, views[BUSY].len > 0);
    Py_END_ALLOW_THREADS
    for (int column = 0; column < COLUMNS; column++)
        PyBuffer_Release(&views[column]);
    return Py_NewRef(Py_None);
}
