/* The module attention.kernels._native, what Python asks of the kernels: limited API of Python 3.11.
 *
 * Of attention: arguments in, a checked call, its items over threads. Whether arrays fit each other is checked before
 * anything is read; indices inside tables are checked where they are used. */
#include "sum_shares.h"
#include "tensors.h"
#include "vectors.h"

/* A table [rows or 1, columns], -1: of any number; None is no table. */
static int take_table(const char *name, PyObject *capsule, int64_t rows, int64_t columns, Tensor *table) {
    if (capsule == Py_None)
        return 1;
    if (!take_tensor(name, capsule, INT64, 2, table))
        return 0;
    const int64_t *sizes = table->sizes;
    if ((rows >= 0 && sizes[0] != rows && sizes[0] != 1) || (columns >= 0 && sizes[1] != columns))
        return FAIL("attend: %s must be [%zd or 1, %zd], -1: any", name, (Py_ssize_t)rows, (Py_ssize_t)columns);
    return 1;
}

static int take_tables(PyObject *visible, PyObject *order, PyObject *pages, Attention *call) {
    int64_t batch = call->q.sizes[0], q_len = call->q.sizes[2];
    if (!take_table("pages", pages, batch, -1, &call->pages))
        return 0;
    call->n = call->k.sizes[2];
    if (call->pages.data != NULL && __builtin_mul_overflow(call->n, call->pages.sizes[1], &call->n))
        return FAIL("attend: too many keys");
    if (!take_table("order", order, batch, -1, &call->order))
        return 0;
    if (visible == Py_None)
        return 1;
    PyObject *low, *high, *queries, *positions;
    return PyArg_ParseTuple(visible, "OOOO:attend", &low, &high, &queries, &positions) &&
           take_table("low", low, batch, q_len, &call->low) && take_table("high", high, batch, q_len, &call->high) &&
           take_table("queries", queries, batch, q_len, &call->queries) &&
           take_table("positions", positions, batch, call->n, &call->positions);
}

/* Segments [segments, 2] of places in the order; without them all places are one, `whole`. */
static int take_segments(PyObject *segments, int64_t whole[2], Attention *call) {
    int64_t end = call->order.data != NULL ? call->order.sizes[1] : call->n;
    whole[0] = 0, whole[1] = end;
    call->bounds = (Tensor){(const char *)whole, {1, 2}, {2, 1}, INT64};
    if (!take_table("segments", segments, -1, 2, &call->bounds))
        return 0;
    for (int64_t i = 0; i < call->bounds.sizes[0]; i++)
        if (table_at(&call->bounds, i, 0) < 0 || table_at(&call->bounds, i, 1) > end)
            return FAIL("attend: segments must lie from 0 to %zd", (Py_ssize_t)end);
    return 1;
}

static int take_results(PyObject *out, PyObject *lse, PyObject *slopes, Attention *call) {
    const int64_t *q = call->q.sizes;
    int64_t rows = call->bounds.sizes[0], items;
    if (__builtin_mul_overflow(rows, q[0], &rows) || __builtin_mul_overflow(rows, q[1], &rows) ||
        __builtin_mul_overflow(rows, q[2], &rows) || __builtin_mul_overflow(rows, call->v.sizes[3], &items))
        return FAIL("attend: the result is too large");
    call->items = call->bounds.sizes[0] * q[0] * call->k.sizes[1] * call->tiles;
    if (!take_floats("out", out, items, &call->out) || !take_floats("lse", lse, rows, &call->lse))
        return 0;
    if (slopes != Py_None && call->positions.data == NULL)
        return FAIL("attend: slopes need positions");
    return slopes == Py_None || take_floats("slopes", slopes, q[1], &call->slopes);
}

/* Kernels by the processor they are compiled for, best first, as far as this one runs them. */
static const struct {
    const char *name;
    AttendItem attend;
    int needs;
} KERNELS[] = {
#if defined(__x86_64__)
    {"avx512", attend_item_avx512, HAS_AVX2 | HAS_FMA | HAS_AVX512},
    {"avx2", attend_item_avx2, HAS_AVX2 | HAS_FMA},
#endif
    {"baseline", attend_item_baseline, 0},
};

/* Features are asked once: virtual machines take tens of us to answer. */
AttendItem find_kernel(const char *name) {
    static _Atomic int features = -1;
    if (features < 0)
        features = processor_features();
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if ((KERNELS[i].needs & ~features) == 0 && (name == NULL || strcmp(name, KERNELS[i].name) == 0))
            return KERNELS[i].attend;
    PyErr_Format(PyExc_ValueError, "attend: this machine runs no kernel for processor %s", name);
    return NULL;
}

static PyObject *attend(PyObject *self, PyObject *args, PyObject *options) {
    static char *names[] = {"q",     "k",     "v",        "out",   "lse", "scale",   "softcap",   "slopes", "visible",
                            "order", "pages", "segments", "first", "end", "threads", "processor", NULL};
    PyObject *q, *k, *v, *out, *lse;
    PyObject *slopes = Py_None, *visible = Py_None, *order = Py_None, *pages = Py_None, *segments = Py_None;
    long long first = 0, end = -1;
    int threads = 1;
    const char *processor = NULL;
    _Atomic int fault = 0;
    int64_t whole[2];
    Attention call = {.fault = &fault};
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, options, "OOOOOf|$fOOOOOLLiz:attend", names, &q, &k, &v, &out, &lse,
                                     &call.scale, &call.softcap, &slopes, &visible, &order, &pages, &segments, &first,
                                     &end, &threads, &processor))
        return NULL;
    AttendItem kernel = find_kernel(processor);
    int done = kernel != NULL && take_tensor("q", q, 0, 4, &call.q) && take_tensor("k", k, 0, 4, &call.k) &&
               take_tensor("v", v, 0, 4, &call.v) && fit_tensors(&call, pages != Py_None) &&
               take_tables(visible, order, pages, &call) && take_segments(segments, whole, &call) &&
               take_results(out, lse, slopes, &call);
    end = end < 0 ? call.items : end;
    if (done && (first < 0 || first > end || end > call.items))
        done = FAIL("attend: items from %lld to %lld of %zd", first, end, (Py_ssize_t)call.items);
    if (!done)
        return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    done = run_items(&call, kernel, first, end, threads);
    PyEval_RestoreThread(thread);
    if (!done)
        return PyErr_NoMemory();
    if (fault)
        return PyErr_Format(PyExc_ValueError, "attend: order or pages has a number that does not exist");
    return Py_NewRef(Py_None);
}

static PyObject *merge_fold_address(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromVoidPtr((void *)(intptr_t)BEST(merge_fold));
}

static PyMethodDef methods[] = {
    {"merge_fold_address", merge_fold_address, METH_NOARGS, NULL},
    {"bind_shares", bind_shares, METH_VARARGS, NULL},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_VARARGS | METH_KEYWORDS, NULL},
    {"bind_step", bind_step, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "attention.kernels._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
