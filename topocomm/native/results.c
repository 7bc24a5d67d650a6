/* Memory of results: what the caller lets go of serves a later call. See topocomm/execute/host/result_memory.py.
 *
 * A result lies on memory of a loan, which gives the memory back when the last view of the result is gone: between any
 * two steps of any thread, so nothing here runs Python code. */
#include "types.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *kept, *bytes; /* a list of arrays of bytes that no result uses, the longest unused first; their dtype */
    long long most;         /* bytes that are kept */
    int closed;
} Results;

typedef struct {
    PyObject_HEAD
    PyObject *memory;
    Results *owner;
} Loan;

static PyTypeObject *loan_type;

static int64_t bytes_of(PyObject *memory) { return Py_TYPE(memory) == array_type ? ((Array *)memory)->sizes[0] : 0; }

/* Keep memory that no array uses any more, and give the system what is then too much. */
static void take_back(const Results *self, PyObject *memory) {
    if (self->closed || PyList_Append(self->kept, memory) < 0)
        return;
    int64_t total = 0;
    for (Py_ssize_t place = 0; place < PyList_Size(self->kept); place++)
        total += bytes_of(PyList_GetItem(self->kept, place));
    while (total > self->most && PyList_Size(self->kept) > 0) {
        total -= bytes_of(PyList_GetItem(self->kept, 0));
        PyList_SetSlice(self->kept, 0, 1, NULL);
    }
}

static void loan_dealloc(PyObject *object) {
    Loan *self = (Loan *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (self->owner != NULL && self->memory != NULL)
        take_back(self->owner, self->memory);
    PyErr_Restore(kind, error, trace);
    Py_XDECREF(self->memory);
    Py_XDECREF((PyObject *)self->owner);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* Memory of so many bytes: the last that was given back, or new; NULL and an error where there is none. */
static PyObject *take_memory(const Results *self, Py_ssize_t bytes) {
    for (Py_ssize_t place = PyList_Size(self->kept) - 1; place >= 0; place--) {
        PyObject *memory = PyList_GetItem(self->kept, place);
        if (bytes_of(memory) != bytes)
            continue;
        Py_INCREF(memory);
        PyList_SetSlice(self->kept, place, place + 1, NULL);
        return memory;
    }
    Array kind = {.axes = 1, .sizes = &bytes, .dtype = self->bytes};
    return new_array(&kind);
}

static PyObject *results_lend(PyObject *object, PyObject *like) {
    Results *self = (Results *)object;
    if (Py_TYPE(like) != array_type)
        return PyErr_Format(PyExc_TypeError, "a result is like a NumPy array, got %R", (PyObject *)Py_TYPE(like));
    int64_t bytes = number_of(like, "nbytes");
    PyObject *memory = bytes < 0 ? NULL : take_memory(self, (Py_ssize_t)bytes), *array = NULL;
    Loan *loan = memory == NULL ? NULL : (Loan *)PyType_GenericAlloc(loan_type, 0);
    if (loan != NULL) {
        const Array *kind = (Array *)like;
        loan->memory = Py_NewRef(memory), loan->owner = (Results *)Py_NewRef(object);
        array = array_on(kind->dtype, kind->axes, kind->sizes, ((Array *)memory)->data, (PyObject *)loan);
    }
    Py_XDECREF((PyObject *)loan);
    Py_XDECREF(memory);
    return array;
}

static PyObject *results_close(PyObject *object, PyObject *none) {
    Results *self = (Results *)object;
    (void)none;
    self->closed = 1;
    return PyList_SetSlice(self->kept, 0, PyList_Size(self->kept), NULL) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *results_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *keys[] = {"bytes", "most", NULL};
    PyObject *bytes;
    long long most;
    if (find_numpy() < 0 || !PyArg_ParseTupleAndKeywords(args, named, "OL:Results", keys, &bytes, &most))
        return NULL;
    Results *self = (Results *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->bytes = Py_NewRef(bytes), self->most = most, self->kept = PyList_New(0);
    if (self->kept == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void results_dealloc(PyObject *object) {
    Results *self = (Results *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->kept);
    Py_XDECREF(self->bytes);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef results_methods[] = {
    {"lend", results_lend, METH_O, NULL}, {"close", results_close, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyMemberDef results_members[] = {{"kept", T_OBJECT, offsetof(Results, kept), READONLY, NULL},
                                        {NULL, 0, 0, 0, NULL}};

static PyType_Slot results_slots[] = {{Py_tp_new, results_new},
                                      {Py_tp_dealloc, results_dealloc},
                                      {Py_tp_methods, results_methods},
                                      {Py_tp_members, results_members},
                                      {0, NULL}};

static PyType_Slot loan_slots[] = {{Py_tp_dealloc, loan_dealloc}, {0, NULL}};

static PyType_Spec loan_spec = {"topocomm.native._native.Loan", sizeof(Loan), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                loan_slots};

PyType_Spec results_spec = {"topocomm.native._native.Results", sizeof(Results), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, results_slots};

int add_loans(PyObject *module) {
    Py_XDECREF((PyObject *)loan_type);
    loan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &loan_spec, NULL);
    return loan_type == NULL ? -1 : 0;
}
