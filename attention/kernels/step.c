/* Decode steps bound to the memory of keys and values: see `bind_step` in _native.pyi.
 *
 * A layer's step follows on a pass over its weights, which leaves neither the interpreter's nor torch's memory in the
 * caches: a line of Python then costs ten times as much as in a loop. So nothing is looked at twice, a tensor by one call
 * of torch, and all between a model's call and the kernel or the reduction is here. */
#include "tensors.h"
#include "vectors.h"

#include <stdlib.h>
#include <time.h>

enum { MEMORIES = 2 }; /* send buffers that take turns */

/* Attributes of torch's tensors, of masks and of reductions, by name. */
typedef struct {
    PyObject *requires_grad, *dropped, *to, *kind;
} Names;

typedef struct {
    Attention call; /* as it was bound, for queries that change their address and strides */
    AttendItem attend;
    Names names;
    PyObject *given; /* all that was given, of which the objects below are parts */
    PyObject *tensor;
    LookAtTensor look;
    /* Where the next row goes, and what the last token sees; `left` rows may be added, and one result is due. */
    int64_t end, left, own, length, window, first, begin, due;
    int64_t *firsts; /* [batch], NULL: all entries see alike */
    const int64_t *positions;
    PyObject *held_positions;
    int64_t *tokens, *k_rows, *v_rows; /* where the cache counts them; NULL: nowhere */
    /* Memory for the next results, made for several at once. */
    PyObject *make, *results, *dtype;
    Py_ssize_t next;
    int with_lse;
    /* The reduction: send buffers, as its only argument, and the number of calls, by which they take turns. */
    PyObject *calls, *reduce, *sent[MEMORIES];
    float *out[MEMORIES], *lse[MEMORIES];
    const int64_t *turns;
    int64_t memories;
    long long dropped;
    PyObject *kind, *alike, *harmless; /* what every call has */
    Py_ssize_t arguments;
    int64_t *spent; /* nanoseconds of the kernel; NULL: nobody asks */
} Step;

/* Whether a tensor is plain, without gradients, and of this dtype and these sizes. */
static int look(const Step *self, PyObject *given, int dtype, const int64_t *sizes, Tensor *tensor) {
    if ((PyObject *)Py_TYPE(given) != self->tensor)
        return 0;
    PyObject *wanted = PyObject_GetAttr(given, self->names.requires_grad);
    int fits = wanted == Py_False && look_at(self->look, given, dtype, tensor) &&
               memcmp(tensor->sizes, sizes, sizeof tensor->sizes) == 0;
    Py_XDECREF(wanted);
    PyErr_Clear(); /* whoever takes other tensors says what is wrong with this one */
    return fits;
}

static void copy_row(const Tensor *memory, int64_t row, const Tensor *from) {
    int64_t bytes = item_bytes(memory->dtype);
    for (int64_t entry = 0; entry < memory->sizes[0]; entry++)
        for (int64_t head = 0; head < memory->sizes[1]; head++) {
            const int64_t *to = memory->strides, *its = from->strides;
            memcpy((char *)memory->data + bytes * (entry * to[0] + head * to[1] + row * to[2]),
                   from->data + bytes * (entry * its[0] + head * its[1]), (size_t)(bytes * memory->sizes[3]));
        }
}

static int is_dense(const Tensor *row) { return row->sizes[3] <= 1 || row->strides[3] == 1; }

/* Count a token, where the cache does. */
static void count_token(Step *self) {
    self->left--, self->length++, self->end += self->own, self->due = 1;
    while (self->window > 0 && self->first < self->end &&
           self->positions[self->first - self->begin] < self->length - self->window)
        self->first++;
    if (self->tokens != NULL)
        *self->tokens = self->length, *self->k_rows = *self->v_rows = self->end - self->begin;
}

static PyObject *append(PyObject *bound, PyObject *const *args, Py_ssize_t count) {
    Step *self = PyCapsule_GetPointer(bound, NULL);
    const Tensor *keys = &self->call.k, *values = &self->call.v;
    int64_t k_sizes[4] = {keys->sizes[0], keys->sizes[1], 1, keys->sizes[3]};
    int64_t v_sizes[4] = {keys->sizes[0], keys->sizes[1], 1, values->sizes[3]};
    Tensor k, v;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "append takes k and v, got %zd arguments", count);
    if (self->left == 0)
        return PyBool_FromLong(0);
    int fit = look(self, args[0], keys->dtype, k_sizes, &k) && look(self, args[1], keys->dtype, v_sizes, &v) &&
              is_dense(&k) && is_dense(&v);
    if (fit && self->own) {
        copy_row(keys, self->end, &k);
        copy_row(values, self->end, &v);
    }
    if (fit)
        count_token(self);
    return PyBool_FromLong(fit);
}

/* Numbers of a capsule of int64 [count], -1: of any number; None has none. */
static int take_numbers(PyObject *capsule, int64_t count, int64_t **numbers) {
    Tensor tensor = {NULL};
    *numbers = NULL;
    if (capsule == Py_None)
        return 1;
    if (!take_tensor("numbers", capsule, INT64, 1, &tensor))
        return 0;
    if ((count >= 0 && tensor.sizes[0] != count) || (tensor.sizes[0] > 1 && tensor.strides[0] != 1))
        return FAIL("attend: numbers must lie side by side, as many as they stand for");
    *numbers = (int64_t *)(uintptr_t)tensor.data;
    return 1;
}

static int take_firsts(Step *self, PyObject *firsts) {
    int64_t batch = self->call.q.sizes[0];
    free(self->firsts);
    self->firsts = NULL;
    if (firsts == Py_None)
        return 1;
    if (!PyTuple_Check(firsts) || PyTuple_Size(firsts) != batch)
        return FAIL("begin: firsts must be %zd rows", (Py_ssize_t)batch);
    self->firsts = malloc((size_t)batch * sizeof *self->firsts);
    for (int64_t i = 0; self->firsts != NULL && i < batch; i++)
        self->firsts[i] = PyLong_AsLongLong(PyTuple_GetItem(firsts, i));
    return self->firsts != NULL && !PyErr_Occurred();
}

static PyObject *begin(PyObject *bound, PyObject *args) {
    Step *self = PyCapsule_GetPointer(bound, NULL);
    PyObject *firsts, *positions;
    long long first, end, left, start, length, window;
    int own;
    int64_t *numbers;
    self->left = self->due = 0; /* also where this fails */
    if (!PyArg_ParseTuple(args, "LLOLpLLLO:begin", &first, &end, &firsts, &left, &own, &start, &length, &window,
                          &positions))
        return NULL;
    if (first < 0 || first > end || end > self->call.n || left < 0 || (own && left > self->call.n - end))
        return PyErr_Format(PyExc_ValueError, "begin: rows must lie from 0 to %zd", (Py_ssize_t)self->call.n);
    if (!take_numbers(positions, -1, &numbers) || !take_firsts(self, firsts))
        return NULL;
    if (window > 0 && (numbers == NULL || start > first))
        return PyErr_Format(PyExc_ValueError, "begin: a window needs the positions of all rows");
    Py_XDECREF(self->held_positions);
    self->held_positions = Py_NewRef(positions), self->positions = numbers;
    self->first = first, self->end = end, self->begin = start, self->length = length, self->window = window;
    self->left = left, self->own = own, self->due = 1;
    return Py_NewRef(Py_None);
}

/* Whether a call is like the one that was bound, but for its tensors. */
static int is_alike(const Step *self, PyObject *mask, PyObject *options) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (self->kind == Py_None)
        return 1;
    PyObject *kind = PyObject_GetAttr(mask, self->names.kind);
    Py_XDECREF(kind); /* whoever has the mask, or `self`, holds it */
    if (kind != self->kind || !PyDict_CheckExact(options) || PyDict_Size(options) != self->arguments) {
        PyErr_Clear();
        return 0;
    }
    while (PyDict_Next(self->alike, &at, &name, &value))
        if (PyDict_GetItemWithError(options, name) != value)
            return PyErr_Clear(), 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->harmless); i++)
        if (PyDict_Contains(options, PyTuple_GetItem(self->harmless, i)) != 1)
            return PyErr_Clear(), 0;
    return 1;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Run the kernel over the rows in range. */
static int run_kernel(const Step *self, Attention *call) {
    _Atomic int fault = 0;
    int64_t bounds[2] = {self->first, self->end};
    int64_t since = self->spent == NULL ? 0 : now_ns();
    call->bounds = (Tensor){(const char *)bounds, {1, 2}, {2, 1}, INT64};
    call->firsts = self->firsts;
    call->fault = &fault;
    PyThreadState *thread = PyEval_SaveThread();
    int done = run_items(call, self->attend, 0, call->items, 1);
    PyEval_RestoreThread(thread);
    if (self->spent != NULL)
        *self->spent += now_ns() - since;
    return done ? 1 : (PyErr_NoMemory(), 0);
}

/* What the next result goes into: (tensor, keywords of the reduction, its lse); held by `results`. NULL and an error
 * where there is none. */
static PyObject *next_result(Step *self) {
    if (self->results == NULL || self->next == PyTuple_Size(self->results)) {
        Py_CLEAR(self->results);
        self->results = PyObject_CallFunctionObjArgs(self->make, NULL), self->next = 0;
    }
    return self->results == NULL ? NULL : PyTuple_GetItem(self->results, self->next);
}

/* Kernel and reduction, or the kernel alone, into this result; whether they are done. */
static int fill_result(Step *self, Attention *call, PyObject *result) {
    int64_t turn = self->memories == 1 ? 0 : (*self->turns + 1) & 1;
    call->out = self->out[turn], call->lse = self->lse[turn];
    if (self->reduce == Py_None) {
        const int64_t *q = call->q.sizes, items = q[0] * q[1] * q[2] * call->v.sizes[3];
        return look_at_floats(self->look, PyTuple_GetItem(result, 0), items, &call->out) && run_kernel(self, call);
    }
    PyObject *merged = NULL;
    if (run_kernel(self, call))
        merged = PyObject_Call(self->reduce, self->sent[turn], PyTuple_GetItem(result, 1));
    Py_XDECREF(merged);
    return merged != NULL;
}

/* Whether no call was dropped since it was bound, so its own is still there; -1 and an error where that fails. */
static int still_there(const Step *self) {
    PyObject *dropped = self->calls == Py_None ? NULL : PyObject_GetAttr(self->calls, self->names.dropped);
    int same = self->calls == Py_None || (dropped != NULL && PyLong_AsLongLong(dropped) == self->dropped);
    Py_XDECREF(dropped);
    return PyErr_Occurred() ? -1 : same;
}

static PyObject *attend(PyObject *bound, PyObject *const *args, Py_ssize_t count) {
    Step *self = PyCapsule_GetPointer(bound, NULL);
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "attend takes q, mask and options, got %zd arguments", count);
    int there = self->due ? still_there(self) : 0;
    if (there != 1 || !is_alike(self, args[1], args[2]))
        return there < 0 ? NULL : Py_NewRef(Py_None);
    Attention call = self->call;
    if (!look(self, args[0], call.q.dtype, self->call.q.sizes, &call.q))
        return Py_NewRef(Py_None);
    self->due = 0;
    PyObject *into = next_result(self);
    if (into == NULL || !fill_result(self, &call, into))
        return NULL;
    self->next++;
    PyObject *out = PyTuple_GetItem(into, 0);
    PyObject *result = self->dtype == Py_None ? Py_NewRef(out)
                                              : PyObject_CallMethodObjArgs(out, self->names.to, self->dtype, NULL);
    if (result != NULL && self->with_lse)
        return Py_BuildValue("(NO)", result, PyTuple_GetItem(into, 2));
    return result;
}

static void free_step(PyObject *bound) {
    Step *self = PyCapsule_GetPointer(bound, NULL);
    PyObject **names = (PyObject **)&self->names;
    for (size_t i = 0; i < sizeof self->names / sizeof *names; i++)
        Py_XDECREF(names[i]);
    Py_XDECREF(self->given);
    Py_XDECREF(self->held_positions);
    Py_XDECREF(self->results);
    free(self->firsts);
    PyMem_Free(self);
}

static int name_attributes(Names *names) {
    static const char *const texts[] = {"requires_grad", "dropped", "to", "kind"};
    PyObject **all = (PyObject **)names;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if ((all[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return 0;
    return 1;
}

static int take_kernel(Step *self, PyObject *q, PyObject *k, PyObject *v) {
    Attention *call = &self->call;
    self->attend = find_kernel(NULL);
    if (self->attend == NULL || !take_tensor("q", q, 0, 4, &call->q) || !take_tensor("k", k, 0, 4, &call->k) ||
        !take_tensor("v", v, 0, 4, &call->v) || !fit_tensors(call, 0))
        return 0;
    call->n = call->k.sizes[2];
    call->items = call->q.sizes[0] * call->k.sizes[1] * call->tiles;
    return 1;
}

/* Where the partial goes, one memory or two in turn: what is sent, and its out and lse. */
static int take_memories(Step *self, PyObject *memories, PyObject *turns) {
    const Tensor *q = &self->call.q;
    int64_t rows = q->sizes[0] * q->sizes[1] * q->sizes[2], *numbers;
    PyObject *out, *lse;
    self->memories = PyTuple_Size(memories);
    if (self->memories < 1 || self->memories > MEMORIES || (self->memories == MEMORIES) != (turns != Py_None))
        return FAIL("bind_step: give one memory, or two that take turns");
    for (int64_t i = 0; i < self->memories; i++)
        if (!PyArg_ParseTuple(PyTuple_GetItem(memories, i), "OOO", &self->sent[i], &out, &lse) ||
            !take_floats("out", out, rows * self->call.v.sizes[3], &self->out[i]) ||
            !take_floats("lse", lse, rows, &self->lse[i]))
            return 0;
    int done = take_numbers(turns, 1, &numbers);
    self->turns = numbers;
    return done;
}

static int take_counters(Step *self, PyObject *tokens, PyObject *k_rows, PyObject *v_rows) {
    if (!take_numbers(tokens, 1, &self->tokens) || !take_numbers(k_rows, 1, &self->k_rows) ||
        !take_numbers(v_rows, 1, &self->v_rows))
        return 0;
    if ((self->tokens == NULL) != (self->k_rows == NULL) || (self->tokens == NULL) != (self->v_rows == NULL))
        return FAIL("bind_step: give all counters, or none");
    return 1;
}

/* Take what `bind_step` is given; 0 and an error where it does not fit. */
static int take_step(Step *self, PyObject *args) {
    PyObject *q, *k, *v, *exchange, *memories, *turns, *tokens, *k_rows, *v_rows, *spent;
    self->given = Py_NewRef(args);
    return name_attributes(&self->names) &&
           PyArg_ParseTuple(args, "(OOO)(ff)(OO)(OOp)(O!O)(OOL)(OOO)(OO!O!n)O:bind_step", &q, &k, &v, &self->call.scale,
                            &self->call.softcap, &self->tensor, &exchange, &self->make, &self->dtype, &self->with_lse,
                            &PyTuple_Type, &memories, &turns, &self->reduce, &self->calls, &self->dropped, &tokens,
                            &k_rows, &v_rows, &self->kind, &PyDict_Type, &self->alike, &PyTuple_Type, &self->harmless,
                            &self->arguments, &spent) &&
           (self->look = take_exchange(exchange)) != NULL && take_kernel(self, q, k, v) &&
           take_memories(self, memories, turns) && take_counters(self, tokens, k_rows, v_rows) &&
           take_numbers(spent, 1, &self->spent);
}

PyObject *bind_step(PyObject *module, PyObject *args) {
    static PyMethodDef methods[] = {{"begin", (PyCFunction)begin, METH_VARARGS, NULL},
                                    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, NULL},
                                    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, NULL}};
    Step *self = PyMem_Calloc(1, sizeof *self);
    PyObject *bound = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_step);
    PyObject *functions[3] = {NULL}, *made = NULL;
    (void)module;
    int done = bound != NULL && take_step(self, args);
    for (size_t i = 0; i < 3; i++)
        done = done && (functions[i] = PyCFunction_New(&methods[i], bound)) != NULL;
    if (done)
        made = PyTuple_Pack(3, functions[0], functions[1], functions[2]);
    for (size_t i = 0; i < 3; i++)
        Py_XDECREF(functions[i]);
    Py_XDECREF(bound);
    return made;
}
