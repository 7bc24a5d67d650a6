/* The type Call: a whole call on two engines in turn, a value in, its result out. */
#include "types.h"

#include <time.h>

enum { SWEEP = TO_FOLD + 1 };

typedef struct {
    PyObject_HEAD
    EngineObject *engines[2];
    PyObject *names[MOST_FIELDS], *nothing; /* given where there is no result */
    ArrayKind kinds[2 * MOST_FIELDS];       /* of the value, then of the result */
    Py_buffer count, tags, times_ns;        /* the recorder's */
    int64_t tag, sweep_mask;
    int fields, bare, gives; /* bare: the one field comes without a dict; gives: this rank gets a result */
} CallObject;

/* Take hold of the arrays of a value: whether it has the fields, in their order and no others. */
static int take(const CallObject *self, PyObject *given, PyObject **arrays) {
    Py_ssize_t at = 0;
    PyObject *key, *array;
    if (self->bare) {
        Py_INCREF(given);
        arrays[0] = given;
        return 1;
    }
    if (!PyDict_CheckExact(given))
        return 0;
    for (int field = 0; field < self->fields; field++) {
        if (!PyDict_Next(given, &at, &key, &array))
            return 0;
        if (key != self->names[field] && (!PyUnicode_CheckExact(key) || PyUnicode_Compare(key, self->names[field]) != 0))
            return 0;
        Py_INCREF(array);
        arrays[field] = array;
    }
    return !PyDict_Next(given, &at, &key, &array);
}

static int fits(const CallObject *self, PyObject *const *arrays, int first, int flags) {
    for (int index = first; index < first + self->fields; index++)
        if (!is_of_kind(arrays[index], &self->kinds[index], flags))
            return 0;
    return 1;
}

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + (uint64_t)b_bytes && (uintptr_t)b < (uintptr_t)a + (uint64_t)a_bytes;
}

/* Whether the result's arrays are apart from memory and from all others but the value's of the same field and size;
 * `direct` turns 0 where they are these. */
static int is_apart(const CallObject *self, const EngineObject *engine, PyObject *const *arrays, int *direct) {
    for (int field = self->fields; field < 2 * self->fields; field++) {
        const char *data = ((Array *)arrays[field])->data;
        int64_t bytes = self->kinds[field].bytes;
        if (overlap(data, bytes, engine->memory.buf, engine->memory.len) ||
            overlap(data, bytes, engine->other.buf, engine->other.len))
            return 0;
        for (int other = 0; other < 2 * self->fields; other++) {
            const char *its = ((Array *)arrays[other])->data;
            if (other == field - self->fields && its == data && self->kinds[other].bytes == bytes)
                *direct = 0;
            else if (other != field && overlap(data, bytes, its, self->kinds[other].bytes))
                return 0;
        }
    }
    return 1;
}

/* A new result, whose arrays are held once more; NULL and an error where memory is out. */
static PyObject *make_result(const CallObject *self, PyObject **arrays) {
    PyObject *result = self->bare ? NULL : PyDict_New();
    if (!self->bare && result == NULL)
        return NULL;
    for (int field = 0; field < self->fields; field++) {
        arrays[field] = new_array(&self->kinds[self->fields + field]);
        if (arrays[field] == NULL || (result != NULL && PyDict_SetItem(result, self->names[field], arrays[field]) < 0)) {
            Py_XDECREF(result);
            return NULL;
        }
    }
    if (result == NULL) {
        result = arrays[0];
        Py_INCREF(result);
    }
    return result;
}

/* Note a call in the recorder; whether it is time for a sweep. */
static int note(const CallObject *self) {
    struct timespec now;
    int64_t number = ++*(int64_t *)self->count.buf;
    int64_t place = number & (self->tags.len / 8 - 1);
    clock_gettime(CLOCK_MONOTONIC, &now);
    ((int64_t *)self->tags.buf)[place] = self->tag;
    ((int64_t *)self->times_ns.buf)[place] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return (number & self->sweep_mask) == 0;
}

/* The arrays of a call, held, and its result, which is new; NULL without an error where something does not fit. */
static PyObject *prepare(const CallObject *self, const EngineObject *engine, PyObject *const *args, PyObject **arrays,
                         int *direct) {
    PyObject *result = self->gives ? args[1] : self->nothing;
    if (engine->running || !take(self, args[0], arrays) || !fits(self, arrays, 0, PLAIN))
        return NULL;
    if (self->gives && args[1] == Py_None)
        return make_result(self, arrays + self->fields);
    if (self->gives && (!take(self, args[1], arrays + self->fields) || !fits(self, arrays, self->fields, PLAIN | WRITEABLE) ||
                        !is_apart(self, engine, arrays, direct)))
        return NULL;
    Py_INCREF(result);
    return result;
}

static PyObject *call_run(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    CallObject *self = (CallObject *)object;
    PyObject *arrays[2 * MOST_FIELDS] = {NULL};
    int direct = 1;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "run takes a value and where its result goes, got %zd arguments", count);
    EngineObject *engine = self->engines[(*self->engines[0]->engine.epoch + 1) & 1];
    PyObject *result = prepare(self, engine, args, arrays, &direct);
    if (result == NULL) {
        for (int index = 0; index < 2 * MOST_FIELDS; index++)
            Py_XDECREF(arrays[index]);
        if (PyErr_Occurred())
            return NULL;
        return Py_NewRef(Py_None); /* not Py_RETURN_NONE: built with 3.12's headers it takes no reference, which 3.11 needs */
    }
    int sweep = note(self);
    int state = begin_call(engine, arrays, direct);
    if (state == THROUGH && !sweep)
        return result;
    return Py_BuildValue("(iN)", state == THROUGH ? SWEEP : state, result);
}

static int take_kinds(CallObject *self, PyObject *described, int first) {
    if (PyTuple_Size(described) != self->fields)
        return 0;
    for (int field = 0; field < self->fields; field++)
        if (take_kind(PyTuple_GetItem(described, field), &self->kinds[first + field]) < 0)
            return 0;
    return 1;
}

/* Whether the engines were made for such arrays. */
static int engines_fit(const CallObject *self) {
    for (int turn = 0; turn < 2; turn++) {
        const EngineObject *engine = self->engines[turn];
        if (engine->engine.fields != self->fields || (engine->gives_result && !self->gives) ||
            engine->epoch.buf != self->engines[0]->epoch.buf)
            return 0;
        for (int index = 0; index < 2 * self->fields; index++)
            if ((index < self->fields || self->gives) && engine->engine.array_bytes[index] != self->kinds[index].bytes)
                return 0;
    }
    return 1;
}

static int recorder_fits(const CallObject *self) {
    int64_t places = self->tags.len / 8;
    return self->count.len == 8 && self->tags.len % 8 == 0 && self->times_ns.len == self->tags.len && places > 0 &&
           (places & (places - 1)) == 0;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"engines", "names", "value", "result",   "bare",       "gives", "nothing",
                            "tag",     "count", "tags",  "times_ns", "sweep_mask", NULL};
    PyObject *first, *second, *fields, *value, *result, *nothing;
    long long tag, sweep_mask;
    const ModuleState *state = PyType_GetModuleState(type);
    CallObject *self = (CallObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, named, "(O!O!)O!O!O!ppOLw*w*w*L:Call", names, state->engine, &first,
                                     state->engine, &second, &PyTuple_Type, &fields, &PyTuple_Type, &value,
                                     &PyTuple_Type, &result, &self->bare, &self->gives, &nothing, &tag, &self->count,
                                     &self->tags, &self->times_ns, &sweep_mask)) {
        Py_DECREF(self);
        return NULL;
    }
    self->tag = tag, self->sweep_mask = sweep_mask;
    Py_INCREF(nothing), Py_INCREF(first), Py_INCREF(second);
    self->nothing = nothing, self->engines[0] = (EngineObject *)first, self->engines[1] = (EngineObject *)second;
    Py_ssize_t count = PyTuple_Size(fields);
    self->fields = count >= 1 && count <= MOST_FIELDS ? (int)count : 0;
    for (int field = 0; field < self->fields; field++) {
        self->names[field] = PyTuple_GetItem(fields, field);
        Py_INCREF(self->names[field]);
        if (!PyUnicode_CheckExact(self->names[field]))
            self->fields = 0;
    }
    if (self->fields == 0 || (self->bare && self->fields > 1) || !take_kinds(self, value, 0) ||
        !take_kinds(self, result, self->fields) || !engines_fit(self) || !recorder_fits(self)) {
        if (!PyErr_Occurred())
            fail("a call takes engines, fields and a recorder that fit each other");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void call_dealloc(PyObject *object) {
    CallObject *self = (CallObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(self->kinds[index].dtype);
    for (int field = 0; field < MOST_FIELDS; field++)
        Py_XDECREF(self->names[field]);
    Py_XDECREF((PyObject *)self->engines[0]);
    Py_XDECREF((PyObject *)self->engines[1]);
    Py_XDECREF(self->nothing);
    PyBuffer_Release(&self->count);
    PyBuffer_Release(&self->tags);
    PyBuffer_Release(&self->times_ns);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(run_doc, "run(value, out, /)\n--\n\n"
                      "Return the result of a call: `out`, or what is new where that is None. Where something does not "
                      "fit, None, and nothing\nis done; where the call is not through, or it is time for a sweep, a tuple "
                      "of its state and the result.");

static PyMethodDef call_methods[] = {
    {"run", (PyCFunction)(void (*)(void))call_run, METH_FASTCALL, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_methods, call_methods},
    {Py_tp_doc, "A call that two engines serve in turn."},
    {0, NULL},
};

PyType_Spec call_spec = {
    "topocomm.native._native.Call", sizeof(CallObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, call_slots,
};
