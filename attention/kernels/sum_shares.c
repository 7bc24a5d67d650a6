/* Shares of one SUM bound to the arrays of a call: see `bind_shares` in _native.pyi; limited API of Python 3.11.
 *
 * A call is then two functions of the reference. Taking nine buffers anew would cost as much as the arithmetic. */
#include "sum_shares.h"

#include "share_rows.h"

enum { OUT, LSE, SUM_OUT, WEIGHT, LOST, PRESENT, PRODUCT, RESULT_OUT, RESULT_LSE, ARRAYS };

typedef struct {
    Shares shares;
    int (*encode)(const Shares *, const double *);
    void (*decode)(const Shares *, const double *);
    Py_buffer buffers[ARRAYS];
    int held; /* buffers to give back */
} Bound;

/* The reference of a call, whose buffer the caller releases: NULL, and an exception, where it does not fit. */
static const double *take_reference(const Bound *self, PyObject *given, Py_buffer *buffer) {
    if (PyObject_GetBuffer(given, buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t expected = (Py_ssize_t)self->shares.rows * (Py_ssize_t)sizeof(double);
    if (buffer->len == expected)
        return buffer->buf;
    PyErr_Format(PyExc_ValueError, "the reference has %zd bytes, expected %zd", buffer->len, expected);
    PyBuffer_Release(buffer);
    return NULL;
}

static PyObject *send(PyObject *bound, PyObject *given) {
    const Bound *self = PyCapsule_GetPointer(bound, NULL);
    Py_buffer buffer;
    const double *reference = take_reference(self, given, &buffer);
    if (reference == NULL)
        return NULL;
    int precise = self->encode(&self->shares, reference);
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(precise);
}

/* Whether the sums are precise: no row is lost, and in each class something significant was added where anything was. */
static int is_precise(const Shares *s) {
    int bad = 0;
    for (int64_t row = 0; row < s->rows; row++) {
        float present = s->present[row], product = s->product[row];
        bad |= (s->lost[row] > 0) | ((present > 0) & (present < 4096)) | ((product > 0) & (product < 4096));
    }
    return !bad;
}

static PyObject *receive(PyObject *bound, PyObject *given) {
    const Bound *self = PyCapsule_GetPointer(bound, NULL);
    Py_buffer buffer;
    const double *reference = take_reference(self, given, &buffer);
    if (reference == NULL)
        return NULL;
    int precise = is_precise(&self->shares);
    if (precise && self->shares.result_out != NULL)
        self->decode(&self->shares, reference);
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(precise);
}

static void free_bound(PyObject *bound) {
    Bound *self = PyCapsule_GetPointer(bound, NULL);
    for (int i = 0; i < self->held; i++)
        PyBuffer_Release(&self->buffers[i]);
    PyMem_Free(self);
}

/* Take the arrays: lse says how many rows there are, out their length. */
static int take_arrays(Bound *self, PyObject *const *arrays) {
    for (int i = 0; i < ARRAYS && arrays[i] != Py_None; i++, self->held++)
        if (PyObject_GetBuffer(arrays[i], &self->buffers[i], i < SUM_OUT ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            return 0;
    if (self->held != ARRAYS && self->held != RESULT_OUT)
        return PyErr_Format(PyExc_ValueError, "array %d is missing", self->held), 0;
    const Py_buffer *b = self->buffers;
    Py_ssize_t rows = b[LSE].len / (Py_ssize_t)sizeof(float), row_bytes = rows ? b[OUT].len / rows : 0;
    for (int i = 0; i < self->held; i++) {
        Py_ssize_t expected = i == OUT || i == SUM_OUT || i == RESULT_OUT ? rows * row_bytes : b[LSE].len;
        if (b[i].len != expected)
            return PyErr_Format(PyExc_ValueError, "array %d has %zd bytes, expected %zd", i, b[i].len, expected), 0;
    }
    float *at[ARRAYS] = {NULL};
    for (int i = 0; i < self->held; i++)
        at[i] = b[i].buf;
    self->shares = (Shares){at[OUT],     at[LSE],     at[SUM_OUT],    at[WEIGHT],     at[LOST],
                            at[PRESENT], at[PRODUCT], at[RESULT_OUT], at[RESULT_LSE], rows,
                            row_bytes / (Py_ssize_t)sizeof(float),    0};
    return 1;
}

PyObject *bind_shares(PyObject *module, PyObject *args) {
    static PyMethodDef methods[] = {{"send", send, METH_O, NULL}, {"receive", receive, METH_O, NULL}};
    PyObject *arrays[ARRAYS], *made = NULL;
    Py_ssize_t ranks;
    Bound *self = PyMem_Calloc(1, sizeof *self);
    PyObject *bound = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_bound);
    (void)module;
    if (bound != NULL &&
        PyArg_ParseTuple(args, "OOOOOOOOOn:bind_shares", &arrays[OUT], &arrays[LSE], &arrays[SUM_OUT], &arrays[WEIGHT],
                         &arrays[LOST], &arrays[PRESENT], &arrays[PRODUCT], &arrays[RESULT_OUT], &arrays[RESULT_LSE],
                         &ranks) &&
        take_arrays(self, arrays)) {
        self->shares.top = 0x1p127 / (double)ranks; /* half the largest float, as in sum_lowering.py */
        self->encode = BEST(encode_rows), self->decode = BEST(decode_rows);
        PyObject *first = PyCFunction_New(&methods[0], bound), *second = PyCFunction_New(&methods[1], bound);
        made = first != NULL && second != NULL ? PyTuple_Pack(2, first, second) : NULL;
        Py_XDECREF(first);
        Py_XDECREF(second);
    }
    Py_XDECREF(bound);
    return made;
}
