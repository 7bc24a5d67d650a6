/* Decode steps bound to the memory of keys and values: see `bind_step` in _native.pyi.
 *
 * Tensors are looked at, each by one call of torch: in a model every step finds the caches filled with weights, and then
 * a line of Python costs ten times as much as in a loop. */
#include "tensors.h"
#include "vectors.h"

typedef struct {
    Attention call; /* as it was bound, for queries that change their address and strides */
    AttendItem attend;
    PyObject *arrays, *type, *to_capsule, *requires_grad; /* arrays: what holds the memory */
} Step;

/* Whether a tensor is plain, without gradients, and of this dtype and these sizes; its capsule holds its memory. */
static PyObject *look(const Step *self, PyObject *given, int dtype, const int64_t *sizes, Tensor *tensor) {
    if ((PyObject *)Py_TYPE(given) != self->type)
        return NULL;
    PyObject *wanted = PyObject_GetAttr(given, self->requires_grad);
    PyObject *capsule = wanted == Py_False ? PyObject_CallFunctionObjArgs(self->to_capsule, given, NULL) : NULL;
    Py_XDECREF(wanted);
    if (capsule != NULL && take_tensor("a tensor", capsule, dtype, 4, tensor) &&
        memcmp(tensor->sizes, sizes, sizeof tensor->sizes) == 0)
        return capsule;
    PyErr_Clear(); /* whoever takes other tensors says what is wrong with this one */
    Py_XDECREF(capsule);
    return NULL;
}

static int64_t bytes_of(const Tensor *tensor) { return (tensor->dtype & 0xff) / 8; }

static void copy_row(const Tensor *memory, int64_t row, const Tensor *from) {
    int64_t bytes = bytes_of(memory);
    for (int64_t entry = 0; entry < memory->sizes[0]; entry++)
        for (int64_t head = 0; head < memory->sizes[1]; head++) {
            const int64_t *to = memory->strides, *its = from->strides;
            memcpy((char *)memory->data + bytes * (entry * to[0] + head * to[1] + row * to[2]),
                   from->data + bytes * (entry * its[0] + head * its[1]), (size_t)(bytes * memory->sizes[3]));
        }
}

static int is_dense(const Tensor *row) { return row->sizes[3] <= 1 || row->strides[3] == 1; }

static PyObject *append(PyObject *bound, PyObject *const *args, Py_ssize_t count) {
    const Step *self = PyCapsule_GetPointer(bound, NULL);
    const Tensor *keys = &self->call.k, *values = &self->call.v;
    int64_t k_sizes[4] = {keys->sizes[0], keys->sizes[1], 1, keys->sizes[3]};
    int64_t v_sizes[4] = {keys->sizes[0], keys->sizes[1], 1, values->sizes[3]};
    Tensor k, v;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "append takes k, v and a row, got %zd arguments", count);
    long long row = PyLong_AsLongLong(args[2]);
    if (row >= keys->sizes[2] || (row < 0 && PyErr_Occurred()))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "append: there is no row %lld", row);
    PyObject *held_k = look(self, args[0], keys->dtype, k_sizes, &k);
    PyObject *held_v = held_k == NULL ? NULL : look(self, args[1], keys->dtype, v_sizes, &v);
    int fit = held_v != NULL && is_dense(&k) && is_dense(&v);
    if (fit && row >= 0) {
        copy_row(keys, row, &k);
        copy_row(values, row, &v);
    }
    Py_XDECREF(held_k);
    Py_XDECREF(held_v);
    return PyBool_FromLong(fit);
}

static PyObject *attend_range(PyObject *bound, PyObject *const *args, Py_ssize_t count) {
    const Step *self = PyCapsule_GetPointer(bound, NULL);
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "attend takes q, first, end, out and lse, got %zd arguments", count);
    int64_t bounds[2] = {PyLong_AsLongLong(args[1]), PyLong_AsLongLong(args[2])};
    if (PyErr_Occurred())
        return NULL;
    if (bounds[0] < 0 || bounds[0] > bounds[1] || bounds[1] > self->call.n)
        return PyErr_Format(PyExc_ValueError, "attend: rows must lie from 0 to %lld", (long long)self->call.n);
    _Atomic int fault = 0;
    Attention call = self->call;
    call.bounds = (Tensor){(const char *)bounds, {1, 2}, {2, 1}, INT64};
    call.fault = &fault;
    PyObject *held = look(self, args[0], call.q.dtype, self->call.q.sizes, &call.q);
    if (held == NULL)
        return PyBool_FromLong(0);
    int64_t rows = call.q.sizes[0] * call.q.sizes[1] * call.q.sizes[2];
    int done = take_floats("out", args[3], rows * call.v.sizes[3], &call.out) &&
               take_floats("lse", args[4], rows, &call.lse);
    if (done) {
        PyThreadState *thread = PyEval_SaveThread();
        done = run_items(&call, self->attend, 0, call.items, 1);
        PyEval_RestoreThread(thread);
        if (!done)
            PyErr_NoMemory();
    }
    Py_DECREF(held);
    return done ? PyBool_FromLong(1) : NULL;
}

static void free_step(PyObject *bound) {
    Step *self = PyCapsule_GetPointer(bound, NULL);
    Py_XDECREF(self->arrays);
    Py_XDECREF(self->type);
    Py_XDECREF(self->to_capsule);
    Py_XDECREF(self->requires_grad);
    PyMem_Free(self);
}

PyObject *bind_step(PyObject *module, PyObject *args) {
    static PyMethodDef methods[] = {{"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, NULL},
                                    {"attend", (PyCFunction)(void (*)(void))attend_range, METH_FASTCALL, NULL}};
    PyObject *q, *k, *v, *type, *to_capsule, *made = NULL;
    Step *self = PyMem_Calloc(1, sizeof *self);
    PyObject *bound = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_step);
    (void)module;
    if (bound != NULL && PyArg_ParseTuple(args, "OOOffOO:bind_step", &q, &k, &v, &self->call.scale,
                                          &self->call.softcap, &type, &to_capsule)) {
        Attention *call = &self->call;
        self->arrays = PyTuple_Pack(2, k, v);
        self->type = Py_NewRef(type), self->to_capsule = Py_NewRef(to_capsule);
        self->requires_grad = PyUnicode_InternFromString("requires_grad");
        self->attend = find_kernel(NULL);
        if (self->arrays != NULL && self->requires_grad != NULL && self->attend != NULL &&
            take_tensor("q", q, 0, 4, &call->q) && take_tensor("k", k, 0, 4, &call->k) &&
            take_tensor("v", v, 0, 4, &call->v) && fit_tensors(call, 0)) {
            call->n = call->k.sizes[2];
            call->items = call->q.sizes[0] * call->k.sizes[1] * call->tiles;
            PyObject *add = PyCFunction_New(&methods[0], bound), *attend = PyCFunction_New(&methods[1], bound);
            made = add != NULL && attend != NULL ? PyTuple_Pack(2, add, attend) : NULL;
            Py_XDECREF(add);
            Py_XDECREF(attend);
        }
    }
    Py_XDECREF(bound);
    return made;
}
