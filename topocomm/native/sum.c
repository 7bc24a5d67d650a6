/* A reduction by MPI's SUM, or by an exchange of two ranks, bound to the arrays of a call: see `bind_sum` in _native.pyi.
 *
 * What computes shares are Python's objects, compiled by others; here are the steps between, which in Python take as long
 * as a short message. sum_call.py and sum_items.py have the same steps. MPI is called as in requests.c. */
#include "record.h"
#include "types.h"

#include <string.h>

enum { DONE = 1, IMPRECISE = 2, MISMATCH = 3, UNDER_WAY = 4, SWEEP_DUE = 8 };
enum { DIGITS = 8, DIGEST_ITEMS = 2 * DIGITS, HELD = 12, BUFFERS = 5 };

typedef struct {
    PyObject *x, *out, *names, *arrays; /* arrays: those of x, then those of out, in the order of the names */
    PyObject *leading, *sends, *parts;  /* for each block what writes its share, and which part of a reference is its */
    PyObject *receive, *error, *hash;   /* error: makes an exception of what MPI returned */
    PyObject *requests;                 /* MPI's */
    PyObject *own;                      /* the part of a reference that the sums received here belong to */
    Py_buffer *sent, received, record;  /* tails of what is sent, one a block, and received; the recorder's memory */
    Py_buffer ours, theirs, sums;       /* of an exchange what is added here; else empty */
    Py_ssize_t blocks, held;            /* tails to give back */
    long long ranks, tag, sweep_mask;
    uint32_t code; /* hash of the reference of the call under way */
} Sum;

/* Whether a container still has the arrays from `first` on. */
static int has(const Sum *self, PyObject *container, Py_ssize_t first) {
    Py_ssize_t fields = PyTuple_Size(self->names);
    if (!PyDict_CheckExact(container))
        return PyTuple_GetItem(self->arrays, first) == container;
    if (PyDict_Size(container) != fields)
        return 0;
    for (Py_ssize_t field = 0; field < fields; field++)
        if (PyDict_GetItemWithError(container, PyTuple_GetItem(self->names, field)) !=
            PyTuple_GetItem(self->arrays, first + field))
            return 0;
    return 1;
}

/* Whether a reference is float64 of the rows' shape, in one piece. */
static int is_reference(const Sum *self, PyObject *given) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(given, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return 0;
    }
    int fits = buffer.format != NULL && strcmp(buffer.format, "d") == 0 && buffer.ndim == PyTuple_Size(self->leading);
    for (int axis = 0; fits && axis < buffer.ndim; axis++)
        fits = buffer.shape[axis] == PyLong_AsSsize_t(PyTuple_GetItem(self->leading, axis));
    PyBuffer_Release(&buffer);
    return fits;
}

/* Items of a tail are the digest and, in a reduce-scatter, how many ranks are imprecise: float32 or float64. */
static int is_double(const Py_buffer *tail) { return tail->len > (DIGEST_ITEMS + 1) * (Py_ssize_t)sizeof(float); }

static Py_ssize_t items_of(const Py_buffer *tail) {
    return tail->len / (Py_ssize_t)(is_double(tail) ? sizeof(double) : sizeof(float));
}

static double get_item(const Py_buffer *tail, Py_ssize_t item) {
    return is_double(tail) ? ((double *)tail->buf)[item] : (double)((float *)tail->buf)[item];
}

static void set_item(const Py_buffer *tail, Py_ssize_t item, double number) {
    if (is_double(tail))
        ((double *)tail->buf)[item] = number;
    else
        ((float *)tail->buf)[item] = (float)number;
}

/* The item of a digest: digits of four bits, high and low of a byte, then their squares, byte by byte. */
static double digest_item(uint32_t code, int item) {
    unsigned byte = code >> 8 * (item / 4) & 255, digit = item & 1 ? byte & 15 : byte >> 4;
    return item & 2 ? digit * digit : digit;
}

/* Whether a function gives something true; -1 and an exception where it raises. */
static int is_true(PyObject *function, PyObject *argument) {
    PyObject *result = PyObject_CallFunctionObjArgs(function, argument, NULL);
    int true_ = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return true_;
}

/* The same of a function of a part of a reference; None is the whole. */
static int is_true_of(PyObject *function, PyObject *reference, PyObject *part) {
    PyObject *own = part == Py_None ? Py_NewRef(reference) : PyObject_GetItem(reference, part);
    int true_ = own == NULL ? -1 : is_true(function, own);
    Py_XDECREF(own);
    return true_;
}

/* Write what this rank adds; -1 and an exception where something raises. */
static int write_shares(const Sum *self, PyObject *reference) {
    int imprecise = 0;
    for (Py_ssize_t block = 0; block < self->blocks; block++) {
        int precise = is_true_of(PyTuple_GetItem(self->sends, block), reference, PyTuple_GetItem(self->parts, block));
        if (precise < 0)
            return -1;
        imprecise |= !precise;
    }
    for (Py_ssize_t block = 0; block < self->blocks; block++) {
        for (int item = 0; item < DIGEST_ITEMS; item++)
            set_item(&self->sent[block], item, digest_item(self->code, item));
        if (items_of(&self->sent[block]) > DIGEST_ITEMS)
            set_item(&self->sent[block], DIGEST_ITEMS, imprecise);
    }
    return 0;
}

/* Read the sums; the state, or -1 and an exception. */
static int read_sums(const Sum *self, PyObject *reference) {
    for (int item = 0; item < DIGEST_ITEMS; item++)
        if (get_item(&self->received, item) != digest_item(self->code, item) * (double)self->ranks)
            return MISMATCH;
    int judged = items_of(&self->received) > DIGEST_ITEMS;
    if (judged && get_item(&self->received, DIGEST_ITEMS) > 0)
        return IMPRECISE;
    int precise = is_true_of(self->receive, reference, self->own);
    if (judged && precise == 0)
        fail("lower_to_sum: exact holds for every rank's share and not for their sum");
    return precise < 0 || PyErr_Occurred() ? -1 : precise ? DONE : IMPRECISE;
}

/* Add what both ranks of an exchange have: in this order or the other, the same bits. */
static void add_shares(const Sum *self) {
    Py_ssize_t bytes = self->sums.len;
    if (is_double(&self->received)) {
        const double *ours = self->ours.buf, *theirs = self->theirs.buf;
        double *sums = self->sums.buf;
        for (Py_ssize_t i = 0; i < bytes / (Py_ssize_t)sizeof *sums; i++)
            sums[i] = ours[i] + theirs[i];
    } else {
        const float *ours = self->ours.buf, *theirs = self->theirs.buf;
        float *sums = self->sums.buf;
        for (Py_ssize_t i = 0; i < bytes / (Py_ssize_t)sizeof *sums; i++)
            sums[i] = ours[i] + theirs[i];
    }
}

/* Start the requests and test them, as often as a rank keeps its core: whether all are complete; -1 and an exception. */
static int move(const Sum *self) {
    Requests *requests = &((RequestsObject *)self->requests)->requests;
    PyThreadState *thread = PyEval_SaveThread();
    start_requests(requests);
    int through = test_requests(requests, requests->tests);
    if (through && self->sums.len > 0)
        add_shares(self);
    PyEval_RestoreThread(thread);
    if (requests->code == 0)
        return through;
    PyObject *error = PyObject_CallFunction(self->error, "i", requests->code);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return -1;
}

/* Begin the call and test whether the sums are there; -1 and an exception where something raises. */
static int add_up(Sum *self, PyObject *reference) {
    PyObject *code = PyObject_CallFunctionObjArgs(self->hash, reference, NULL);
    self->code = code == NULL ? 0 : (uint32_t)PyLong_AsUnsignedLongMask(code);
    Py_XDECREF(code);
    if (PyErr_Occurred() || write_shares(self, reference) < 0)
        return -1;
    int64_t places = places_of(self->record.len);
    int flags = note_call(self->record.buf, places, self->tag, self->sweep_mask) ? SWEEP_DUE : 0, through = move(self);
    int state = through < 0 ? -1 : through ? read_sums(self, reference) : UNDER_WAY;
    return state < 0 ? -1 : state | flags;
}

static PyObject *run_sum(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
    Sum *self = PyCapsule_GetPointer(capsule, NULL);
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "a sum takes a value, a reference and a result, got %zd arguments", count);
    if (args[0] != self->x || args[2] != self->out || !has(self, self->x, 0) ||
        !has(self, self->out, PyTuple_Size(self->names)) || !is_reference(self, args[1]))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    int state = add_up(self, args[1]);
    return state < 0 ? NULL : PyLong_FromLong(state);
}

static PyObject *finish_sum(PyObject *capsule, PyObject *reference) {
    int state = read_sums(PyCapsule_GetPointer(capsule, NULL), reference);
    return state < 0 ? NULL : PyLong_FromLong(state);
}

static void list_held(Sum *self, PyObject **held[HELD]) {
    PyObject **all[HELD] = {&self->x,     &self->out,     &self->names, &self->arrays, &self->leading, &self->sends,
                            &self->parts, &self->receive, &self->error, &self->hash,   &self->own,   &self->requests};
    memcpy(held, all, sizeof all);
}

static void list_buffers(Sum *self, Py_buffer *buffers[BUFFERS]) {
    Py_buffer *all[BUFFERS] = {&self->received, &self->record, &self->ours, &self->theirs, &self->sums};
    memcpy(buffers, all, sizeof all);
}

static void free_sum(PyObject *capsule) {
    Sum *self = PyCapsule_GetPointer(capsule, NULL);
    PyObject **held[HELD];
    Py_buffer *buffers[BUFFERS];
    list_held(self, held);
    for (int i = 0; i < HELD; i++)
        Py_XDECREF(*held[i]);
    for (Py_ssize_t block = 0; block < self->held; block++)
        PyBuffer_Release(&self->sent[block]);
    PyMem_Free(self->sent);
    list_buffers(self, buffers);
    for (int i = 0; i < BUFFERS; i++)
        PyBuffer_Release(buffers[i]);
    PyMem_Free(self);
}

/* Take the tails of the blocks: whether there is one for each, like the one received. */
static int take_tails(Sum *self, PyObject *tails) {
    Py_ssize_t single = DIGEST_ITEMS * (Py_ssize_t)sizeof(float), length = self->received.len;
    self->blocks = PyTuple_Size(tails);
    self->sent = PyMem_Calloc((size_t)self->blocks + 1, sizeof *self->sent);
    if (self->sent == NULL)
        return PyErr_NoMemory(), 0;
    int fits = self->blocks > 0 && PyTuple_Size(self->sends) == self->blocks && PyTuple_Size(self->parts) == self->blocks;
    for (; fits && self->held < self->blocks; self->held++) {
        Py_buffer *tail = &self->sent[self->held];
        if (PyObject_GetBuffer(PyTuple_GetItem(tails, self->held), tail, PyBUF_WRITABLE) < 0)
            return 0;
        fits = tail->len == length;
    }
    return fits && (length == single || length == single + 4 || length == 2 * single || length == 2 * (single + 4));
}

/* Whether there are two arrays a name, places of the record a power of two, and what is called and added is there. */
static int fits_sum(const Sum *self) {
    Py_ssize_t places = places_of(self->record.len);
    return PyTuple_Size(self->names) > 0 && PyTuple_Size(self->arrays) == 2 * PyTuple_Size(self->names) && places > 0 &&
           (places & (places - 1)) == 0 && are_requests(self->requests) && self->ours.len == self->sums.len &&
           self->theirs.len == self->sums.len;
}

PyObject *bind_sum(PyObject *module, PyObject *args, PyObject *named) {
    static PyMethodDef methods[] = {{"run", (PyCFunction)(void (*)(void))run_sum, METH_FASTCALL, NULL},
                                    {"finish", finish_sum, METH_O, NULL}};
    static char *keys[] = {"x",     "out",      "names",     "arrays",   "leading",  "sends", "parts", "receive",
                           "error", "hash",     "own",       "sent",     "received", "ours",  "theirs", "sums",
                           "requests", "ranks", "tag", "record", "sweep_mask", NULL};
    PyObject *made = NULL, *o[HELD] = {NULL}, *tails, **held[HELD], *functions[2] = {NULL};
    Sum *self = PyMem_Calloc(1, sizeof *self);
    PyObject *capsule = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_sum);
    PyTypeObject *tuple = &PyTuple_Type;
    (void)module;
    if (capsule != NULL &&
        PyArg_ParseTupleAndKeywords(args, named, "OOO!O!O!O!O!OOOOO!y*y*y*w*OLLw*L:bind_sum", keys, &o[0], &o[1],
                                    tuple, &o[2], tuple, &o[3], tuple, &o[4], tuple, &o[5], tuple, &o[6], &o[7], &o[8],
                                    &o[9], &o[10], tuple, &tails, &self->received, &self->ours, &self->theirs,
                                    &self->sums, &o[11], &self->ranks, &self->tag, &self->record,
                                    &self->sweep_mask)) {
        list_held(self, held);
        for (int i = 0; i < HELD; i++)
            *held[i] = Py_NewRef(o[i]);
        if (!take_tails(self, tails) || !fits_sum(self))
            made = PyErr_Occurred() ? NULL : fail("arrays, blocks, tails, requests and record do not fit a sum");
        else if ((functions[0] = PyCFunction_New(&methods[0], capsule)) != NULL &&
                 (functions[1] = PyCFunction_New(&methods[1], capsule)) != NULL)
            made = PyTuple_Pack(2, functions[0], functions[1]);
        Py_XDECREF(functions[0]);
        Py_XDECREF(functions[1]);
    }
    Py_XDECREF(capsule);
    return made;
}

int add_sum_constants(PyObject *module) {
    return PyModule_AddIntMacro(module, DONE) < 0 || PyModule_AddIntMacro(module, IMPRECISE) < 0 ||
           PyModule_AddIntMacro(module, MISMATCH) < 0 || PyModule_AddIntMacro(module, UNDER_WAY) < 0 ||
           PyModule_AddIntMacro(module, SWEEP_DUE) < 0;
}
