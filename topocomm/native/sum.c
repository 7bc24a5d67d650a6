/* A reduction by a library's SUM, bound to the arrays of a call: see `bind_sum` in _native.pyi.
 *
 * What computes shares and what moves them are Python's objects, compiled by others; here are the steps between, which
 * in Python take as long as a short message. sum_call.py and sum_items.py have the same steps. */
#include "record.h"
#include "types.h"

#include <string.h>

enum { DONE = 1, IMPRECISE = 2, MISMATCH = 3, UNDER_WAY = 4, SWEEP_DUE = 8 };
enum { DIGITS = 8, DIGEST_ITEMS = 2 * DIGITS };

typedef struct {
    PyObject *x, *out, *names, *arrays; /* arrays: those of x, then those of out, in the order of the names */
    PyObject *leading, *send, *receive, *start, *test, *hash;
    Py_buffer sent, received, record; /* digests in what is sent and received; the recorder's memory */
    long long ranks, tests, tag, sweep_mask;
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

/* The item of a digest: digits of four bits, high and low of a byte, then their squares, byte by byte. */
static double digest_item(uint32_t code, int item) {
    unsigned byte = code >> 8 * (item / 4) & 255, digit = item & 1 ? byte & 15 : byte >> 4;
    return item & 2 ? digit * digit : digit;
}

/* Write the digest, or compare with `ranks` times it; whether it is that. */
static int digest(const Sum *self, const Py_buffer *buffer, int write) {
    int same = 1;
    for (int item = 0; item < DIGEST_ITEMS; item++) {
        double number = digest_item(self->code, item), sum = number * (double)self->ranks;
        if (buffer->len == DIGEST_ITEMS * (Py_ssize_t)sizeof(double)) {
            double *at = (double *)buffer->buf + item;
            if (write)
                *at = number;
            same &= *at == sum;
        } else {
            float *at = (float *)buffer->buf + item;
            if (write)
                *at = (float)number;
            same &= *at == (float)sum;
        }
    }
    return same;
}

/* Whether a function of no argument, or of one, gives something true; -1 and an exception where it raises. */
static int is_true(PyObject *function, PyObject *argument) {
    PyObject *result = argument == NULL ? PyObject_CallNoArgs(function)
                                        : PyObject_CallFunctionObjArgs(function, argument, NULL);
    int true_ = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    return true_;
}

static int read_sums(const Sum *self, PyObject *reference) {
    if (!digest(self, &self->received, 0))
        return MISMATCH;
    int precise = is_true(self->receive, reference);
    return precise < 0 ? -1 : precise ? DONE : IMPRECISE;
}

/* Begin the call and test whether the sums are there; -1 and an exception where something raises. */
static int add_up(Sum *self, PyObject *reference) {
    PyObject *code = PyObject_CallFunctionObjArgs(self->hash, reference, NULL);
    self->code = code == NULL ? 0 : (uint32_t)PyLong_AsUnsignedLongMask(code);
    Py_XDECREF(code);
    if (PyErr_Occurred())
        return -1;
    digest(self, &self->sent, 1);
    if (is_true(self->send, reference) < 0)
        return -1;
    int64_t places = places_of(self->record.len);
    int flags = note_call(self->record.buf, places, self->tag, self->sweep_mask) ? SWEEP_DUE : 0, through = 0;
    if (is_true(self->start, NULL) < 0)
        return -1;
    for (long long i = 0; i < self->tests && through == 0; i++)
        through = is_true(self->test, NULL);
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

static void free_sum(PyObject *capsule) {
    Sum *self = PyCapsule_GetPointer(capsule, NULL);
    PyObject *held[] = {self->x,       self->out,   self->names, self->arrays, self->leading, self->send,
                        self->receive, self->start, self->test,  self->hash};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_XDECREF(held[i]);
    PyBuffer_Release(&self->sent);
    PyBuffer_Release(&self->received);
    PyBuffer_Release(&self->record);
    PyMem_Free(self);
}

/* Whether there are two arrays a name, digests of floats, and places of the record a power of two. */
static int fits_sum(const Sum *self) {
    Py_ssize_t single = DIGEST_ITEMS * (Py_ssize_t)sizeof(float), places = places_of(self->record.len);
    return PyTuple_Size(self->names) > 0 && PyTuple_Size(self->arrays) == 2 * PyTuple_Size(self->names) &&
           self->sent.len == self->received.len && (self->sent.len == single || self->sent.len == 2 * single) &&
           places > 0 && (places & (places - 1)) == 0;
}

PyObject *bind_sum(PyObject *module, PyObject *args, PyObject *named) {
    static PyMethodDef methods[] = {{"run", (PyCFunction)(void (*)(void))run_sum, METH_FASTCALL, NULL},
                                    {"finish", finish_sum, METH_O, NULL}};
    static char *keys[] = {"x",    "out",  "names",    "arrays", "leading", "send",  "receive", "start",
                           "test", "hash", "sent",     "received", "ranks", "tests", "tag",     "record",
                           "sweep_mask", NULL};
    PyObject *made = NULL;
    Sum *self = PyMem_Calloc(1, sizeof *self);
    PyObject *capsule = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_sum), *o[10] = {NULL};
    (void)module;
    if (capsule != NULL &&
        PyArg_ParseTupleAndKeywords(args, named, "OOO!O!O!OOOOOw*y*LLLw*L:bind_sum", keys, &o[0], &o[1], &PyTuple_Type,
                                    &o[2], &PyTuple_Type, &o[3], &PyTuple_Type, &o[4], &o[5], &o[6], &o[7], &o[8],
                                    &o[9], &self->sent, &self->received, &self->ranks, &self->tests, &self->tag,
                                    &self->record, &self->sweep_mask)) {
        PyObject **held[] = {&self->x,       &self->out,   &self->names, &self->arrays, &self->leading, &self->send,
                             &self->receive, &self->start, &self->test,  &self->hash};
        for (size_t i = 0; i < sizeof held / sizeof *held; i++)
            *held[i] = Py_NewRef(o[i]);
        PyObject *first = NULL, *second = NULL;
        if (!fits_sum(self))
            fail("arrays, digests and record do not fit a sum");
        else if ((first = PyCFunction_New(&methods[0], capsule)) != NULL &&
                 (second = PyCFunction_New(&methods[1], capsule)) != NULL)
            made = PyTuple_Pack(2, first, second);
        Py_XDECREF(first);
        Py_XDECREF(second);
    }
    Py_XDECREF(capsule);
    return made;
}

int add_sum_constants(PyObject *module) {
    return PyModule_AddIntMacro(module, DONE) < 0 || PyModule_AddIntMacro(module, IMPRECISE) < 0 ||
           PyModule_AddIntMacro(module, MISMATCH) < 0 || PyModule_AddIntMacro(module, UNDER_WAY) < 0 ||
           PyModule_AddIntMacro(module, SWEEP_DUE) < 0;
}
