/* Cheapest trees of intervals of ranks: planning/scan_trees/tree_packing.py says of what. */
#include "types.h"

#include <math.h>

enum { MOST_MEMBERS = 1 << 10 };

typedef struct {
    int64_t members;
    const double *inside; /* price of the way from row to column */
    int several;
    double *single, *below; /* [low, high, parent] */
    int64_t *root, *last;
} Trees;

static int64_t at(const Trees *t, int64_t low, int64_t high, int64_t parent) {
    return (low * (t->members + 1) + high) * t->members + parent;
}

/* The cheapest tree of one interval below a parent, then the cheapest several trees of it. */
static void choose(Trees *t, int64_t low, int64_t high, int64_t parent) {
    int up = t->several || high < t->members, down = t->several || low > 0;
    double least = INFINITY;
    int64_t best = low, cell = at(t, low, high, parent);
    for (int64_t root = low; root < high; root++) {
        double price = t->below[at(t, low, root, root)] + t->below[at(t, root + 1, high, root)];
        price += up ? t->inside[root * t->members + parent] : 0.0;
        price += down ? t->inside[parent * t->members + root] : 0.0;
        if (price < least)
            least = price, best = root;
    }
    t->single[cell] = least, t->root[cell] = best;
    least = INFINITY, best = low;
    for (int64_t begin = low; begin < high; begin++) {
        double price = t->below[at(t, low, begin, parent)] + t->single[at(t, begin, high, parent)];
        if (price < least)
            least = price, best = begin;
    }
    t->below[cell] = least, t->last[cell] = best;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

PyObject *pack_intervals(PyObject *module, PyObject *args) {
    enum { INSIDE, SEVERAL, SINGLE, ROOT, BELOW, LAST, ARRAYS };
    static const Py_ssize_t sizes[ARRAYS] = {8, 1, 8, 8, 8, 8};
    Py_buffer views[ARRAYS];
    (void)module;
    if (take_columns(args, views, sizes, ARRAYS, 4) < 0)
        return NULL;
    int64_t members = views[INSIDE].ndim == 2 ? views[INSIDE].shape[0] : -1;
    int right = members >= 0 && members < MOST_MEMBERS && views[INSIDE].shape[1] == members && items(&views[SEVERAL]) == 1;
    for (int array = SINGLE; right && array < ARRAYS; array++)
        right = items(&views[array]) == (members + 1) * (members + 1) * members;
    if (right) {
        Trees t = {members, views[INSIDE].buf, *(const uint8_t *)views[SEVERAL].buf, views[SINGLE].buf,
                   views[BELOW].buf, views[ROOT].buf, views[LAST].buf};
        Py_BEGIN_ALLOW_THREADS
        for (int64_t size = 1; size <= members; size++)
            for (int64_t low = 0; low + size <= members; low++)
                for (int64_t parent = 0; parent < members; parent++)
                    choose(&t, low, low + size, parent);
        Py_END_ALLOW_THREADS
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return right ? Py_NewRef(Py_None)
                 : PyErr_Format(PyExc_ValueError, "pack_intervals: its arrays do not fit each other");
}

PyObject *price_steps(PyObject *module, PyObject *args) {
    enum { BELOW, INSIDE, STEP, CUT, ARRAYS };
    Py_buffer views[ARRAYS];
    (void)module;
    if (take_columns(args, views, NULL, ARRAYS, 2) < 0)
        return NULL;
    int64_t members = views[INSIDE].ndim == 2 ? views[INSIDE].shape[0] : -1, cells = members * members;
    int right = members >= 0 && members < MOST_MEMBERS && items(&views[INSIDE]) == cells &&
                items(&views[STEP]) == cells && items(&views[CUT]) == cells &&
                items(&views[BELOW]) == (members + 1) * (members + 1) * members;
    if (right) {
        const Trees t = {.members = members, .below = views[BELOW].buf};
        for (int64_t rank = 0; rank < members; rank++)
            for (int64_t after = rank + 1; after < members; after++) {
                double least = INFINITY;
                int64_t best = rank + 1;
                for (int64_t cut = rank + 1; cut <= after; cut++) {
                    double price = t.below[at(&t, rank + 1, cut, rank)] + t.below[at(&t, cut, after, after)];
                    if (price < least)
                        least = price, best = cut;
                }
                ((int64_t *)views[CUT].buf)[rank * members + after] = best;
                ((double *)views[STEP].buf)[rank * members + after] =
                    least + ((const double *)views[INSIDE].buf)[rank * members + after];
            }
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return right ? Py_NewRef(Py_None) : PyErr_Format(PyExc_ValueError, "price_steps: its arrays do not fit each other");
}
