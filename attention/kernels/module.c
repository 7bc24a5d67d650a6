/* The module attention.kernels._native, what Python asks of the kernels: limited API of Python 3.11.
 *
 * Of attention: arguments in, a checked call, its items over threads. Tensors come as DLPack capsules and tables as
 * buffers, so that addresses, sizes and strides are those of their owners; whether they fit each other is checked here
 * before anything is read. Indices inside tables are checked where they are used. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"
#include "vectors.h"

enum {
    MOST_WIDTH = 1 << 30, /* elements of a head; no product of sizes then overflows */
    BUFFERS = 10          /* low, high, queries, positions, order, pages, segments, out, lse, slopes */
};

/* The buffers that a call holds until it is over. */
typedef struct {
    Py_buffer views[BUFFERS];
    int count;
} Views;

/* https://dmlc.github.io/dlpack/latest/c_api.html, the capsule "dltensor". */
typedef struct {
    void *data;
    struct {
        int32_t kind, number;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides NULL: contiguous */
    uint64_t byte_offset;
} DLTensor;

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

static int fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    PyErr_FormatV(PyExc_ValueError, format, values);
    va_end(values);
    return 0;
}

static int take_tensor(const char *name, PyObject *capsule, Tensor *tensor) {
    const DLTensor *from = PyCapsule_GetPointer(capsule, "dltensor");
    if (from == NULL)
        return 0;
    if (from->device.kind != DL_CPU || from->ndim != 4)
        return fail("attend: %s must be a tensor of 4 axes in host memory", name);
    int wide = from->dtype.bits == 32, code = from->dtype.code;
    if (from->dtype.lanes != 1 || !(code == DL_FLOAT ? wide || from->dtype.bits == 16 : code == DL_BFLOAT))
        return fail("attend: %s must be float32, bfloat16 or float16", name);
    tensor->dtype = code == DL_BFLOAT ? BFLOAT16 : wide ? FLOAT32 : FLOAT16;
    tensor->data = (const char *)from->data + from->byte_offset;
    int64_t contiguous = 1;
    for (int axis = 3; axis >= 0; axis--) {
        tensor->sizes[axis] = from->shape[axis];
        tensor->strides[axis] = from->strides != NULL ? from->strides[axis] : contiguous;
        contiguous *= from->shape[axis];
    }
    return 1;
}

/* Take a buffer whose items have one of these formats; NULL after an error. */
static const Py_buffer *take_buffer(const char *name, PyObject *object, int flags, const char *formats, Views *views) {
    Py_buffer *view = &views->views[views->count];
    if (PyObject_GetBuffer(object, view, flags | PyBUF_FORMAT) != 0)
        return NULL;
    views->count++;
    const char *format = view->format != NULL ? view->format : "B";
    if (strchr(formats, format[0]) == NULL || format[1] != 0 || view->itemsize != (formats[0] == 'f' ? 4 : 8)) {
        fail("attend: %s must hold %s, got format %s", name, formats[0] == 'f' ? "float32" : "int64", format);
        return NULL;
    }
    return view;
}

/* Contiguous float32 of this many items. */
static float *take_floats(const char *name, PyObject *object, int64_t items, int flags, Views *views) {
    const Py_buffer *view = take_buffer(name, object, PyBUF_C_CONTIGUOUS | flags, "f", views);
    if (view != NULL && (view->len / 4 != items || (uintptr_t)view->buf % 4 != 0)) {
        fail("attend: %s must have %lld aligned items, got %lld", name, (long long)items, (long long)(view->len / 4));
        return NULL;
    }
    static float none[1];
    return view == NULL ? NULL : view->buf != NULL ? view->buf : none;
}

/* A table [rows, columns], or [1, columns] if `shared`; `columns` -1: any number. None is no table. */
static int take_table(const char *name, PyObject *object, int64_t rows, int shared, int64_t columns, Views *views,
                      Table *table) {
    if (object == Py_None)
        return 1;
    const Py_buffer *view = take_buffer(name, object, PyBUF_STRIDES, "lq", views);
    if (view == NULL)
        return 0;
    if (view->ndim != 2 || !(view->shape[0] == rows || (shared && view->shape[0] == 1)) ||
        (columns >= 0 && view->shape[1] != columns))
        return fail("attend: %s does not fit: of %d axes, expected %lld rows%s and %lld columns (-1: any)", name,
                    view->ndim, (long long)rows, shared ? " or 1" : "", (long long)columns);
    *table = (Table){view->buf != NULL ? view->buf : "", view->shape[0], view->shape[1], view->strides[0], view->strides[1]};
    return 1;
}

/* Whether q, k and v fit each other; the rows that share a key head follow. */
static int fit_tensors(Attention *call, int paged) {
    const int64_t *q = call->q.sizes, *k = call->k.sizes, *v = call->v.sizes;
    if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || call->k.dtype != call->v.dtype)
        return fail("attend: k and v must agree in dtype and in all but the last axis");
    if (q[3] != k[3] || (!paged && q[0] != k[0]))
        return fail("attend: q and k must agree in batch and head dim");
    if (k[1] == 0 || q[1] % k[1] != 0)
        return fail("attend: the heads of q must be a multiple of those of k");
    if (k[3] > MOST_WIDTH || v[3] > MOST_WIDTH)
        return fail("attend: heads may have up to %lld elements", (long long)MOST_WIDTH);
    int some = k[0] != 0 && k[1] != 0 && k[2] != 0;
    if (some && ((k[3] > 1 && call->k.strides[3] != 1) || (v[3] > 1 && call->v.strides[3] != 1)))
        return fail("attend: the elements of keys and values must lie side by side");
    call->rows = q[1] / k[1] * q[2];
    call->tiles = (call->rows + TILE_ROWS - 1) / TILE_ROWS;
    return 1;
}

static int take_tables(PyObject *visible, PyObject *order, PyObject *pages, Views *views, Attention *call) {
    int64_t batch = call->q.sizes[0], q_len = call->q.sizes[2];
    if (!take_table("pages", pages, batch, 0, -1, views, &call->pages))
        return 0;
    call->n = call->k.sizes[2];
    if (call->pages.data != NULL && __builtin_mul_overflow(call->n, call->pages.columns, &call->n))
        return fail("attend: too many keys");
    if (!take_table("order", order, batch, 1, -1, views, &call->order))
        return 0;
    if (visible == Py_None)
        return 1;
    PyObject *low, *high, *queries, *positions;
    return PyArg_ParseTuple(visible, "OOOO:attend", &low, &high, &queries, &positions) &&
           take_table("low", low, batch, 1, q_len, views, &call->low) &&
           take_table("high", high, batch, 1, q_len, views, &call->high) &&
           take_table("queries", queries, batch, 1, q_len, views, &call->queries) &&
           take_table("positions", positions, batch, 1, call->n, views, &call->positions);
}

/* Segments [segments, 2] of places in the order; without them all places are one, `whole`. */
static int take_segments(PyObject *object, Views *views, int64_t (*whole)[2], Attention *call) {
    int64_t end = call->order.data != NULL ? call->order.columns : call->n;
    (*whole)[0] = 0, (*whole)[1] = end;
    call->segments = 1, call->bounds = (const int64_t(*)[2])whole;
    if (object == Py_None)
        return 1;
    const Py_buffer *view = take_buffer("segments", object, PyBUF_C_CONTIGUOUS, "lq", views);
    if (view == NULL)
        return 0;
    if (view->ndim != 2 || view->shape[1] != 2)
        return fail("attend: segments must be [segments, 2]");
    call->segments = view->shape[0], call->bounds = view->buf;
    for (int64_t i = 0; i < call->segments; i++)
        if (call->bounds[i][0] < 0 || call->bounds[i][1] > end)
            return fail("attend: segment %lld goes from %lld to %lld, keys from 0 to %lld", (long long)i,
                        (long long)call->bounds[i][0], (long long)call->bounds[i][1], (long long)end);
    return 1;
}

static int take_results(PyObject *out, PyObject *lse, PyObject *slopes, Views *views, Attention *call) {
    const int64_t *q = call->q.sizes;
    int64_t rows = call->segments, items;
    if (__builtin_mul_overflow(rows, q[0], &rows) || __builtin_mul_overflow(rows, q[1], &rows) ||
        __builtin_mul_overflow(rows, q[2], &rows) || __builtin_mul_overflow(rows, call->v.sizes[3], &items))
        return fail("attend: the result is too large");
    call->out = take_floats("out", out, items, PyBUF_WRITABLE, views);
    call->lse = call->out == NULL ? NULL : take_floats("lse", lse, rows, PyBUF_WRITABLE, views);
    call->items = call->segments * q[0] * call->k.sizes[1] * call->tiles;
    if (call->lse == NULL || slopes == Py_None)
        return call->lse != NULL;
    if (call->positions.data == NULL)
        return fail("attend: slopes need positions");
    call->slopes = take_floats("slopes", slopes, q[1], 0, views);
    return call->slopes != NULL;
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
enum { COUNT = sizeof KERNELS / sizeof *KERNELS };

/* Whether this processor runs kernel i. It is asked once: virtual machines take tens of us to answer. */
static int runs(int i) {
    static _Atomic int features = -1;
    if (features < 0)
        features = processor_features();
    return (KERNELS[i].needs & ~features) == 0;
}

/* The kernel for a processor; NULL: the best one. */
static AttendItem find_kernel(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (runs(i) && (name == NULL || strcmp(name, KERNELS[i].name) == 0))
            return KERNELS[i].attend;
    fail("attend: this machine runs no kernel for processor %s", name);
    return NULL;
}

PyDoc_STRVAR(processors_doc, "processors()\n--\n\nReturn the kinds of processors whose kernels run here, best first.");

static PyObject *processors(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < COUNT; i++) {
        if (!runs(i))
            continue;
        PyObject *name = PyUnicode_FromString(KERNELS[i].name);
        if (name == NULL || PyList_Append(names, name) != 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* Run the items of a checked call without the GIL. */
static int run(const Attention *call, AttendItem kernel, long long first, long long end, int threads) {
    end = end < 0 ? call->items : end;
    if (first < 0 || first > end || end > call->items)
        return fail("attend: items from %lld to %lld of %lld", first, end, (long long)call->items);
    int done;
    Py_BEGIN_ALLOW_THREADS;
    done = run_items(call, kernel, first, end, threads);
    Py_END_ALLOW_THREADS;
    if (!done)
        PyErr_NoMemory();
    else if (*call->fault != NO_FAULT)
        return fail("attend: %s", *call->fault == BAD_ORDER ? "order has a key that does not exist"
                                                            : "pages has a page that does not exist");
    return done;
}

PyDoc_STRVAR(attend_doc, "attend(q, k, v, out, lse, scale, *, softcap=0.0, slopes=None, visible=None, order=None,\n"
                         "       pages=None, segments=None, first=0, end=-1, threads=1, processor=None)\n--\n\n"
                         "Write the attention of query rows over keys; the stub says what the arguments are.");

static PyObject *attend(PyObject *self, PyObject *args, PyObject *options) {
    static char *names[] = {"q",     "k",     "v",        "out",   "lse", "scale",   "softcap",   "slopes", "visible",
                            "order", "pages", "segments", "first", "end", "threads", "processor", NULL};
    PyObject *q, *k, *v, *out, *lse;
    PyObject *slopes = Py_None, *visible = Py_None, *order = Py_None, *pages = Py_None, *segments = Py_None;
    long long first = 0, end = -1;
    int threads = 1;
    const char *processor = NULL;
    _Atomic int fault = NO_FAULT;
    int64_t whole[1][2];
    Attention call = {.fault = &fault};
    Views views;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, options, "OOOOOf|$fOOOOOLLiz:attend", names, &q, &k, &v, &out, &lse,
                                     &call.scale, &call.softcap, &slopes, &visible, &order, &pages, &segments, &first,
                                     &end, &threads, &processor))
        return NULL;
    AttendItem kernel = find_kernel(processor);
    views.count = 0;
    int done = kernel != NULL && take_tensor("q", q, &call.q) && take_tensor("k", k, &call.k) &&
               take_tensor("v", v, &call.v) && fit_tensors(&call, pages != Py_None) &&
               take_tables(visible, order, pages, &views, &call) && take_segments(segments, &views, whole, &call) &&
               take_results(out, lse, slopes, &views, &call) && run(&call, kernel, first, end, threads);
    while (views.count > 0)
        PyBuffer_Release(&views.views[--views.count]);
    return done ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(merge_fold_address_doc, "merge_fold_address()\n--\n\nReturn the address of the fold of LOGSUMEXP.");

static PyObject *merge_fold_address(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromVoidPtr((void *)(intptr_t)BEST(merge_fold));
}

static PyMethodDef methods[] = {
    {"merge_fold_address", merge_fold_address, METH_NOARGS, merge_fold_address_doc},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_VARARGS | METH_KEYWORDS, attend_doc},
    {"processors", processors, METH_NOARGS, processors_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "attention.kernels._native", "Kernels of attention, in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
