/* The cheapest directed spanning tree: planning/forests/linear_program/arborescence.py says how it is found. */
#include "types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COSTS, PARENTS, ARRAYS };

typedef struct {
    int64_t count, root, names;
    double *costs;                         /* of the edge from row to column */
    int32_t *sources, *targets;            /* ends of the edge of the graph behind it */
    int32_t *name, *row, *within;          /* of each row its name; by name: its row, the cycle that contains it or -1 */
    int32_t *from, *to;                    /* by name: the edge that enters it */
    int32_t *members, *first, *next;       /* by name: members of a cycle, one after the other from `first` on */
    int32_t *path, *place, length, in_use; /* the growing path, the place on it by name or -1; members so far */
    uint8_t *reached;                      /* by name */
} Work;

/* Take the edges of another row (column) that cost less; both by their first place and the step to the next. */
static void take_less(Work *w, int64_t keep, int64_t other, int64_t step) {
    for (int64_t at = 0; at < w->count; at++, keep += step, other += step)
        if (w->costs[other] < w->costs[keep]) {
            w->costs[keep] = w->costs[other];
            w->sources[keep] = w->sources[other];
            w->targets[keep] = w->targets[other];
        }
}

/* Make one node of the names on the path from a place on; its name. */
static int32_t contract(Work *w, int32_t begin) {
    int64_t n = w->count, keep = n;
    int32_t made = (int32_t)w->names++;
    for (int32_t at = begin; at < w->length; at++)
        keep = w->row[w->path[at]] < keep ? w->row[w->path[at]] : keep;
    w->first[made] = w->in_use;
    for (int32_t at = begin; at < w->length; at++) {
        int64_t row = w->row[w->path[at]];
        w->members[w->in_use++] = w->path[at];
        w->within[w->path[at]] = made;
        w->place[w->path[at]] = -1;
        if (row == keep)
            continue;
        take_less(w, keep * n, row * n, 1);
        take_less(w, keep, row, n);
        for (int64_t other = 0; other < n; other++)
            w->costs[row * n + other] = w->costs[other * n + row] = INFINITY;
    }
    w->next[made] = w->in_use;
    w->costs[keep * n + keep] = INFINITY;
    w->within[made] = w->place[made] = -1;
    w->row[made] = (int32_t)keep;
    w->name[keep] = made;
    w->length = begin;
    return made;
}

/* Follow cheapest entering edges back from a node to a reached one: whether there are. */
static int grow(Work *w, int32_t name) {
    int64_t n = w->count;
    while (w->within[name] >= 0)
        name = w->within[name];
    w->length = 0;
    while (!w->reached[name]) {
        int64_t row = w->row[name], best = 0;
        w->place[name] = w->length;
        w->path[w->length++] = name;
        for (int64_t at = 1; at < n; at++)
            best = w->costs[at * n + row] < w->costs[best * n + row] ? at : best;
        double least = w->costs[best * n + row];
        if (least == INFINITY)
            return 0;
        w->from[name] = w->sources[best * n + row], w->to[name] = w->targets[best * n + row];
        for (int64_t at = 0; at < n; at++)
            w->costs[at * n + row] -= least;
        name = w->place[w->name[best]] < 0 ? w->name[best] : contract(w, w->place[w->name[best]]);
    }
    for (int32_t at = 0; at < w->length; at++) {
        w->reached[w->path[at]] = 1;
        w->place[w->path[at]] = -1;
    }
    return 1;
}

/* Open the cycles from the outermost: an edge into a cycle replaces one of its edges. */
static void expand(Work *w, int64_t *parents) {
    int32_t waiting = 0;
    for (int32_t name = 0; name < w->names; name++)
        if (w->within[name] < 0 && name != w->root)
            w->path[waiting++] = name;
    parents[w->root] = -1;
    while (waiting) {
        int32_t name = w->path[--waiting], inside = w->to[name];
        parents[inside] = w->from[name];
        for (; inside != name; inside = w->within[inside])
            for (int32_t at = w->first[w->within[inside]]; at < w->next[w->within[inside]]; at++)
                if (w->members[at] != inside)
                    w->path[waiting++] = w->members[at];
    }
}

/* 1, or 0 where some node is out of reach; -1 without memory. */
static int solve(Work *w, const double *costs, int64_t *parents) {
    size_t n = (size_t)w->count, cells = n * n;
    w->costs = malloc(cells * sizeof *w->costs);
    int32_t *numbers = malloc((2 * cells + 20 * n) * sizeof *numbers);
    w->reached = calloc(2 * n, 1);
    int found = w->costs == NULL || numbers == NULL || w->reached == NULL ? -1 : 1;
    if (found > 0) {
        w->sources = numbers, w->targets = numbers + cells, w->name = w->targets + cells;
        int32_t **by_name[] = {&w->row, &w->within, &w->from, &w->to, &w->members, &w->first, &w->next, &w->path, &w->place};
        for (size_t each = 0; each < sizeof by_name / sizeof *by_name; each++)
            *by_name[each] = w->name + n + 2 * n * each;
        memcpy(w->costs, costs, cells * sizeof *costs);
        for (size_t a = 0; a < n; a++) {
            w->costs[a * n + a] = w->costs[a * n + (size_t)w->root] = INFINITY;
            w->name[a] = w->row[a] = (int32_t)a, w->within[a] = w->place[a] = -1;
            for (size_t b = 0; b < n; b++)
                w->sources[a * n + b] = (int32_t)a, w->targets[a * n + b] = (int32_t)b;
        }
        w->names = w->count, w->reached[w->root] = 1;
        for (int32_t start = 0; found && start < w->count; start++)
            found = grow(w, start);
        if (found)
            expand(w, parents);
    }
    free(w->costs);
    free(numbers);
    free(w->reached);
    return found;
}

PyObject *cheapest_parents(PyObject *module, PyObject *args) {
    static const Py_ssize_t sizes[ARRAYS] = {8, 8};
    Py_buffer views[ARRAYS];
    PyObject *columns = PyTuple_GetSlice(args, 0, ARRAYS);
    int found = -2;
    (void)module;
    PyObject *last = PyTuple_Size(args) == ARRAYS + 1 ? PyTuple_GetItem(args, ARRAYS) : NULL;
    int64_t root = last == NULL ? -1 : PyLong_AsLongLong(last);
    int taken = columns == NULL || PyErr_Occurred() ? -1 : take_columns(columns, views, sizes, ARRAYS, 1);
    Py_XDECREF(columns);
    if (taken < 0)
        return NULL;
    int64_t count = views[PARENTS].len / 8;
    if (count && root >= 0 && root < count && count <= 1 << 14 && views[COSTS].len == 8 * count * count) {
        Work work = {.count = count, .root = root};
        Py_BEGIN_ALLOW_THREADS
        found = solve(&work, views[COSTS].buf, views[PARENTS].buf);
        Py_END_ALLOW_THREADS
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (found == -2)
        return PyErr_Format(PyExc_ValueError, "cheapest_parents: its arguments do not fit each other");
    return found < 0 ? PyErr_NoMemory() : PyBool_FromLong(found);
}
