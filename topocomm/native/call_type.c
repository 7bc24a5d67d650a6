/* The type Call: a whole call on two engines in turn, a value in, its result out. */
#include "types.h"

#include <time.h>

enum { SWEEP = TO_FOLD + 1 };

typedef struct {
    PyObject_HEAD
    EngineObject *engines[2];
    PyObject *names, *nothing;       /* names of the fields; what is given where there is no result */
    Py_buffer count, tags, times_ns; /* the recorder's */
    int64_t tag, sweep_mask;
    int fields, bare, gives; /* bare: the one field comes without a dict; gives: this rank gets a result */
} CallObject;

/* Take hold of the arrays of a value: whether it has the fields, in their order and no others. */
static int take(const CallObject *self, PyObject *given, PyObject **arrays) {
    Py_ssize_t at = 0;
    PyObject *key, *array;
    if (self->bare) {
        arrays[0] = Py_NewRef(given);
        return 1;
    }
    if (!PyDict_CheckExact(given))
        return 0;
    for (int field = 0; field < self->fields; field++) {
        if (!PyDict_Next(given, &at, &key, &array))
            return 0;
        PyObject *name = PyTuple_GetItem(self->names, field);
        if (key != name && (!PyUnicode_CheckExact(key) || PyUnicode_Compare(key, name) != 0))
            return 0;
        arrays[field] = Py_NewRef(array);
    }
    return !PyDict_Next(given, &at, &key, &array);
}

static int fits(const EngineObject *engine, PyObject *const *arrays, int first, int flags) {
    for (int index = first; index < first + engine->engine.fields; index++)
        if (!is_of_kind(arrays[index], &engine->kinds[index], flags))
            return 0;
    return 1;
}

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + (uint64_t)b_bytes && (uintptr_t)b < (uintptr_t)a + (uint64_t)a_bytes;
}

/* Whether the result's arrays are apart from both memories and from all others but the value's of the same field and size;
 * `direct` turns 0 where they are these. */
static int is_apart(const CallObject *self, const EngineObject *engine, PyObject *const *arrays, int *direct) {
    const Engine *first = &self->engines[0]->engine, *second = &self->engines[1]->engine;
    int fields = self->fields;
    const int64_t *bytes = engine->engine.array_bytes;
    for (int field = fields; field < 2 * fields; field++) {
        const char *data = ((Array *)arrays[field])->data;
        if (overlap(data, bytes[field], first->memory, first->memory_bytes) ||
            overlap(data, bytes[field], second->memory, second->memory_bytes))
            return 0;
        for (int other = 0; other < 2 * fields; other++) {
            const char *its = ((Array *)arrays[other])->data;
            if (other == field - fields && its == data && bytes[other] == bytes[field])
                *direct = 0;
            else if (other != field && overlap(data, bytes[field], its, bytes[other]))
                return 0;
        }
    }
    return 1;
}

/* A new result, whose arrays are held once more; NULL and an error where memory is out. */
static PyObject *make_result(const CallObject *self, const ArrayKind *kinds, PyObject **arrays) {
    if (self->bare)
        return Py_XNewRef(arrays[0] = new_array(kinds));
    PyObject *result = PyDict_New();
    for (int field = 0; result != NULL && field < self->fields; field++) {
        arrays[field] = new_array(&kinds[field]);
        if (arrays[field] == NULL || PyDict_SetItem(result, PyTuple_GetItem(self->names, field), arrays[field]) < 0)
            Py_CLEAR(result);
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
    int fields = self->fields;
    if (engine->running || !take(self, args[0], arrays) || !fits(engine, arrays, 0, PLAIN))
        return NULL;
    if (!self->gives)
        return Py_NewRef(self->nothing);
    if (args[1] == Py_None)
        return make_result(self, &engine->kinds[fields], &arrays[fields]);
    int right = take(self, args[1], &arrays[fields]) && fits(engine, arrays, fields, PLAIN | WRITEABLE) &&
                is_apart(self, engine, arrays, direct);
    return right ? Py_NewRef(args[1]) : NULL;
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
        release(arrays);
        /* Not Py_RETURN_NONE: built with 3.12's headers it takes no reference, which 3.11 needs. */
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    int sweep = note(self);
    int state = begin_call(engine, arrays, direct);
    if (state == THROUGH && !sweep)
        return result;
    return Py_BuildValue("(iN)", state == THROUGH ? SWEEP : state, result);
}

/* Whether the engines take turns and have as many arrays as there are names, and the recorder a power of two of places. */
static int fit(const CallObject *self) {
    const EngineObject *first = self->engines[0], *second = self->engines[1];
    int64_t places = self->tags.len / 8;
    return self->fields > 0 && PyTuple_Size(self->names) == self->fields && !(self->bare && self->fields > 1) &&
           second->engine.fields == self->fields && first->epoch.buf == second->epoch.buf &&
           (self->gives || !(first->gives_result || second->gives_result)) && self->count.len == 8 && places > 0 &&
           (places & (places - 1)) == 0 && self->times_ns.len >= 8 * places;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *keys[] = {"engines", "names", "bare", "gives",    "nothing",    "tag",
                           "count",   "tags",  "times_ns", "sweep_mask", NULL};
    PyObject *first, *second, *names, *nothing;
    long long tag, sweep_mask;
    CallObject *self = (CallObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "(OO)O!ppOLw*w*w*L:Call", keys, &first, &second, &PyTuple_Type, &names,
                                     &self->bare, &self->gives, &nothing, &tag, &self->count, &self->tags,
                                     &self->times_ns, &sweep_mask)) {
        Py_DECREF(self);
        return NULL;
    }
    self->tag = tag, self->sweep_mask = sweep_mask;
    self->names = Py_NewRef(names), self->nothing = Py_NewRef(nothing);
    if (is_engine(first) && is_engine(second)) {
        self->engines[0] = (EngineObject *)Py_NewRef(first), self->engines[1] = (EngineObject *)Py_NewRef(second);
        self->fields = self->engines[0]->engine.fields;
        if (fit(self))
            return (PyObject *)self;
    }
    Py_DECREF(self);
    return fail("a call takes engines, fields and a recorder that fit each other");
}

static void call_dealloc(PyObject *object) {
    CallObject *self = (CallObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->names);
    Py_XDECREF((PyObject *)self->engines[0]);
    Py_XDECREF((PyObject *)self->engines[1]);
    Py_XDECREF(self->nothing);
    PyBuffer_Release(&self->count);
    PyBuffer_Release(&self->tags);
    PyBuffer_Release(&self->times_ns);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef call_methods[] = {
    {"run", (PyCFunction)(void (*)(void))call_run, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_methods, call_methods},
    {0, NULL},
};

PyType_Spec call_spec = {
    "topocomm.native._native.Call", sizeof(CallObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, call_slots,
};
