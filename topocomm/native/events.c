/* Discrete events of tasks on a machine: planning/cost/events.py says by which rules, and in which order. */
#include "event_heap.h"
#include "sharing.h"
#include "types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { /* the arrays that run_events takes; from END_NEXT on written */
    THEN_STARTS, THEN, ROUTE_STARTS, LINKS, OF_TASK, END_STARTS, END_PORTS, END_QUEUE, END_LAST, NIC_STARTS, NIC_PORTS,
    NIC_QUEUE, NIC_LAST, BEFORE, LATENCY, HOLD, GAP, MOST, LINK_RATE, READ_ONLY,
    END_NEXT = READ_ONLY, NIC_NEXT, BLOCKED, LEFT, START, FIRST, LAST, ARRIVAL, AWAITED, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {8, 8, 8, 8, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
                                         8, 8, 4, 8, 8, 8, 8, 8, 4};
enum { BEGIN, END, ARRIVE, RELEASE, RELEASE_NIC }; /* kinds of events */
enum { INSTANTS_A_LOOK = 1 << 14 };                /* instants between looks at signals, such as Ctrl-C */
static const double TOLERANCE_US = 1e-9, RELATIVE_TOLERANCE = 1e-13, COARSE = 1e-4;

typedef struct { /* ports of one kind: port_queues.py says how they serve tasks */
    const int64_t *starts, *ports, *queue, *last;
    int64_t *next, *freed, held; /* how many of each are free again in this release; that tasks hold */
    int32_t *by;                  /* the first task that releases it */
    List several;                 /* ports that are released, each once */
} Ports;

typedef struct {
    const int64_t *then_starts, *then;
    const double *before, *latency, *hold, *gap;
    double *left, *start, *first, *last, *arrival, *since, *end, *rate;
    int32_t *blocked, *awaited;
    Ports ends, nics;
    Sharing sharing;
    EventHeap heap;
    int64_t tasks, count;
    double now, relative;
    PyThreadState *thread;
    List ready, later, flows, empty, started, ended, changed;
} Events;

static double tolerance_us(const Events *e) {
    return e->relative * e->now > TOLERANCE_US ? e->relative * e->now : TOLERANCE_US;
}

/* Add events, each `us` by task after `now`: 0, or -1 without memory. */
static int push(Events *e, int kind, const int32_t *tasks, int64_t count, const double *us, double now) {
    return push_events(&e->heap, kind, tasks, count, us, now, tolerance_us(e));
}

/* The last byte left: it arrives after the latency, and ports are free after the hold. */
static int leave(Events *e, const int32_t *tasks, int64_t count) {
    e->count += count;
    for (int64_t each = 0; each < count; each++)
        e->last[tasks[each]] = e->now;
    if (push(e, ARRIVE, tasks, count, e->latency, e->now) < 0)
        return -1;
    return e->ends.held ? push(e, RELEASE, tasks, count, e->hold, e->now) : 0;
}

/* The first byte leaves: NICs serve the next message after the gap. */
static int begin(Events *e, const int32_t *tasks, int64_t count) {
    e->empty.count = 0;
    for (int64_t each = 0; each < count; each++) {
        int32_t task = tasks[each];
        e->first[task] = e->now;
        if (add(e->left[task] > 0 ? &e->started : &e->empty, task) < 0)
            return -1;
    }
    if (leave(e, e->empty.at, e->empty.count) < 0)
        return -1;
    return e->nics.held ? push(e, RELEASE_NIC, tasks, count, e->gap, e->now) : 0;
}

/* Start the tasks in `ready`, which await nothing any more, each once, by number. */
static int start_ready(Events *e) {
    e->later.count = e->flows.count = 0;
    sort_numbers(e->ready.at, e->ready.count);
    e->count += e->ready.count;
    for (int64_t each = 0; each < e->ready.count; each++) {
        int32_t task = e->ready.at[each];
        e->start[task] = e->now;
        if (add(e->before[task] > 0 ? &e->later : &e->flows, task) < 0)
            return -1;
    }
    e->ready.count = 0;
    if (push(e, BEGIN, e->later.at, e->later.count, e->before, e->now) < 0)
        return -1;
    return begin(e, e->flows.at, e->flows.count);
}

/* Count one thing less that a task awaits. */
static int unblock(Events *e, int64_t task, int32_t awaited) {
    e->awaited[task] = awaited;
    return --e->blocked[task] == 0 ? add(&e->ready, (int32_t)task) : 0;
}

static int arrive(Events *e, const int32_t *tasks, int64_t count) {
    e->count += count;
    for (int64_t each = 0; each < count; each++) {
        int32_t task = tasks[each];
        e->arrival[task] = e->now;
        for (int64_t at = e->then_starts[task]; at < e->then_starts[task + 1]; at++)
            if (unblock(e, e->then[at], task) < 0)
                return -1;
    }
    return start_ready(e);
}

/* Release all ports of these tasks; where several tasks release one, ports take their turns by number. */
static int release_ports(Events *e, Ports *ports, const int32_t *tasks, int64_t count) {
    int again = 0, state = 0;
    ports->several.count = 0;
    for (int64_t each = 0; each < count && state >= 0; each++)
        for (int64_t at = ports->starts[tasks[each]]; at < ports->starts[tasks[each] + 1]; at++) {
            int64_t port = ports->ports[at];
            if (ports->freed[port]++) {
                again = 1;
                continue;
            }
            ports->by[port] = tasks[each];
            if ((state = add(&ports->several, (int32_t)port)) < 0)
                break;
        }
    if (again)
        sort_numbers(ports->several.at, ports->several.count);
    for (int64_t each = 0; each < ports->several.count; each++) {
        int64_t port = ports->several.at[each];
        for (; ports->freed[port] > 0 && ports->next[port] < ports->last[port] && state >= 0; ports->freed[port]--)
            state = unblock(e, ports->queue[ports->next[port]++], ports->by[port]);
        ports->freed[port] = 0;
    }
    return state < 0 ? -1 : start_ready(e);
}

/* Set the rates after flows began and ended, and when each will end by them. */
static int share_rates(Events *e) {
    if (!e->started.count && !e->ended.count)
        return 0;
    if (change_flows(&e->sharing, &e->started, &e->ended, &e->changed) < 0)
        return -1;
    e->started.count = e->ended.count = 0;
    e->count += e->changed.count;
    for (int64_t each = 0; each < e->changed.count; each++) {
        int32_t task = e->changed.at[each];
        e->left[task] -= e->rate[task] * (e->now - e->since[task]);
        e->since[task] = e->now, e->rate[task] = e->sharing.rate[task];
        e->end[task] = e->now + (e->left[task] > 0.0 ? e->left[task] : 0.0) / e->rate[task];
    }
    return push(e, END, e->changed.at, e->changed.count, e->end, 0.0);
}

/* End the flows of a batch that have not got another rate since. */
static int end_flows(Events *e, Batch *batch, double until) {
    int32_t kept = 0;
    for (int32_t each = 0; each < batch->count; each++) {
        int32_t task = batch->tasks[each];
        if (e->end[task] > until)
            continue;
        e->end[task] = INFINITY;
        batch->tasks[kept++] = task;
        if (add(&e->ended, task) < 0)
            return -1;
    }
    batch->count = kept;
    return leave(e, batch->tasks, kept);
}

static int handle(Events *e, Batch *batch, double until) {
    switch (batch->kind) {
    case END:
        return end_flows(e, batch, until);
    case ARRIVE:
        return arrive(e, batch->tasks, batch->count);
    case BEGIN:
        return begin(e, batch->tasks, batch->count);
    default:
        return release_ports(e, batch->kind == RELEASE ? &e->ends : &e->nics, batch->tasks, batch->count);
    }
}

/* Handle all events of this instant. */
static int run_instant(Events *e) {
    double until = e->now + tolerance_us(e);
    while (e->heap.count && e->heap.batches[0].us <= until) {
        Batch batch = pop_batch(&e->heap);
        int state = handle(e, &batch, until);
        free(batch.tasks);
        if (state < 0)
            return -1;
    }
    return share_rates(e);
}

/* Run until the last event, or until the time is over: 0; -1 without memory, -2 where a signal raised an error. */
static int run_all(Events *e, double most_us, double exact_instants) {
    int64_t instants = 0;
    for (int64_t task = 0; task < e->tasks; task++)
        if (e->blocked[task] == 0 && add(&e->ready, (int32_t)task) < 0)
            return -1;
    if (start_ready(e) < 0 || share_rates(e) < 0)
        return -1;
    for (; e->heap.count && (e->now = e->heap.batches[0].us) <= most_us; instants++) {
        if (instants % INSTANTS_A_LOOK == INSTANTS_A_LOOK - 1) {
            PyEval_RestoreThread(e->thread);
            int raised = PyErr_CheckSignals();
            e->thread = PyEval_SaveThread();
            if (raised < 0)
                return -2;
        }
        if ((double)instants >= exact_instants)
            e->relative = COARSE;
        if (run_instant(e) < 0)
            return -1;
    }
    return 0;
}

/* The memory of ports, none of them released: 0, or -1 without it. */
static int open_ports(Ports *ports, int64_t count) {
    ports->freed = calloc((size_t)count + 1, sizeof *ports->freed);
    ports->by = calloc((size_t)count + 1, sizeof *ports->by);
    return ports->freed == NULL || ports->by == NULL ? -1 : 0;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

/* All memory: 0, or -1 without it. */
static int open_events(Events *e, const Py_buffer *views) {
    size_t tasks = (size_t)e->tasks + 1;
    e->since = calloc(tasks, sizeof *e->since);
    e->rate = calloc(tasks, sizeof *e->rate);
    e->end = malloc(tasks * sizeof *e->end);
    if (e->since == NULL || e->rate == NULL || e->end == NULL)
        return -1;
    for (size_t task = 0; task < tasks; task++)
        e->end[task] = INFINITY;
    if (open_ports(&e->ends, items(&views[END_LAST])) < 0 || open_ports(&e->nics, items(&views[NIC_LAST])) < 0)
        return -1;
    return open_sharing(&e->sharing, e->tasks, items(&views[ROUTE_STARTS]) - 1, items(&views[LINK_RATE]),
                        views[LINK_RATE].buf);
}

static void close_events(Events *e) {
    void *all[] = {e->since, e->rate, e->end, e->ends.freed, e->ends.by, e->ends.several.at, e->nics.freed, e->nics.by,
                   e->nics.several.at, e->ready.at, e->later.at, e->flows.at, e->empty.at, e->started.at,
                   e->ended.at, e->changed.at};
    for (unsigned each = 0; each < sizeof all / sizeof *all; each++)
        free(all[each]);
    close_heap(&e->heap);
    close_sharing(&e->sharing);
}

static int within(const int64_t *numbers, int64_t count, int64_t most) {
    for (int64_t at = 0; at < count; at++)
        if (numbers[at] < 0 || numbers[at] >= most)
            return 0;
    return 1;
}

/* Whether `starts` rises from 0 to the end of `in`, whose numbers are all below `most`. */
static int lists(const Py_buffer *starts, int64_t count, const Py_buffer *in, int64_t most) {
    const int64_t *at = starts->buf;
    if (items(starts) != count + 1 || at[0] != 0 || at[count] != items(in))
        return 0;
    for (int64_t each = 0; each < count; each++)
        if (at[each] > at[each + 1])
            return 0;
    return within(in->buf, items(in), most);
}

/* The ports of one kind, from the view of their starts on: 0, or -1 where these do not fit each other. */
static int ports_of(const Py_buffer *views, int64_t tasks, const Py_buffer *next, Ports *ports) {
    enum { PORTS = 1, QUEUE, END_OF_QUEUE };
    int64_t count = items(&views[END_OF_QUEUE]), queued = items(&views[QUEUE]);
    *ports = (Ports){views[0].buf, views[PORTS].buf, views[QUEUE].buf, views[END_OF_QUEUE].buf, next->buf, NULL,
                     items(&views[PORTS]), NULL, {NULL, 0, 0}};
    return count < INT32_MAX && lists(&views[0], tasks, &views[PORTS], count) && within(ports->queue, queued, tasks) &&
                   items(next) == count && within(ports->next, count, queued + 1) && within(ports->last, count, queued + 1) ? 0 : -1;
}

/* The arrays as events: 0, or -1 where their lengths or numbers do not fit each other. */
static int events_of(const Py_buffer *views, Events *e) {
    int64_t tasks = items(&views[OF_TASK]), routes = items(&views[ROUTE_STARTS]) - 1, links = items(&views[LINK_RATE]);
    const int32_t *of_task = views[OF_TASK].buf;
    *e = (Events){
        .then_starts = views[THEN_STARTS].buf, .then = views[THEN].buf, .before = views[BEFORE].buf,
        .latency = views[LATENCY].buf, .hold = views[HOLD].buf, .gap = views[GAP].buf, .left = views[LEFT].buf,
        .start = views[START].buf, .first = views[FIRST].buf, .last = views[LAST].buf, .arrival = views[ARRIVAL].buf,
        .blocked = views[BLOCKED].buf, .awaited = views[AWAITED].buf, .tasks = tasks, .relative = RELATIVE_TOLERANCE,
    };
    e->sharing = (Sharing){
        .starts = views[ROUTE_STARTS].buf, .links = views[LINKS].buf, .route_of = of_task,
        .most = items(&views[MOST]) ? views[MOST].buf : NULL,
    };
    static const int by_task[] = {BEFORE, LATENCY, HOLD, GAP, BLOCKED, LEFT, START, FIRST, LAST, ARRIVAL, AWAITED};
    int fits = tasks < INT32_MAX && links < INT32_MAX && routes >= 0;
    for (unsigned each = 0; fits && each < sizeof by_task / sizeof *by_task; each++)
        fits = items(&views[by_task[each]]) == tasks;
    fits = fits && (e->sharing.most == NULL || items(&views[MOST]) == tasks);
    fits = fits && lists(&views[THEN_STARTS], tasks, &views[THEN], tasks);
    fits = fits && lists(&views[ROUTE_STARTS], routes, &views[LINKS], links);
    for (int64_t task = 0; fits && task < tasks; task++)
        fits = of_task[task] >= 0 && of_task[task] < routes;
    return fits && ports_of(&views[END_STARTS], tasks, &views[END_NEXT], &e->ends) == 0 &&
                   ports_of(&views[NIC_STARTS], tasks, &views[NIC_NEXT], &e->nics) == 0 ? 0 : -1;
}

PyObject *run_events(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    Events events;
    double limits[2];
    int state = -3;
    (void)module;
    if (PyTuple_Size(args) != ARRAYS + 2)
        return PyErr_Format(PyExc_TypeError, "run_events takes %d columns and two limits", ARRAYS);
    for (int each = 0; each < 2; each++)
        if ((limits[each] = PyFloat_AsDouble(PyTuple_GetItem(args, ARRAYS + each))) == -1.0 && PyErr_Occurred())
            return NULL;
    PyObject *columns = PyTuple_GetSlice(args, 0, ARRAYS);
    int taken = columns == NULL ? -1 : take_columns(columns, views, ITEMS, ARRAYS, ARRAYS - READ_ONLY);
    Py_XDECREF(columns);
    if (taken < 0)
        return NULL;
    if (events_of(views, &events) == 0) {
        events.thread = PyEval_SaveThread();
        state = open_events(&events, views) < 0 ? -1 : run_all(&events, limits[0], limits[1]);
        close_events(&events);
        PyEval_RestoreThread(events.thread);
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (state == -3)
        return PyErr_Format(PyExc_ValueError, "run_events: its arrays do not fit each other");
    return state == -2 ? NULL : state < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(events.count);
}
