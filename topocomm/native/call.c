/* A call: a function, a value in, its result out, that two engines serve in turn. */
#include "record.h"
#include "types.h"

enum { SWEEP = TO_EXCHANGE + 1, UNSETTLED };

typedef struct {
    EngineObject *engines[2];
    PyObject *names, *nothing; /* names of the fields; what is given where there is no result */
    Py_buffer record;          /* the recorder's: the number of calls, then tag and time of the last ones in turn */
    int64_t places;            /* for as many */
    long long tag, sweep_mask;
    int fields, bare, gives; /* bare: the one field comes without a dict; gives: this rank gets a result */
} Call;

/* Take hold of the arrays of a value: whether it has the fields, in their order and no others. */
static int take(const Call *self, PyObject *given, PyObject **arrays) {
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

static int overlap(const char *a, int64_t a_bytes, const char *b, int64_t b_bytes) {
    return (uintptr_t)a < (uintptr_t)b + (uint64_t)b_bytes && (uintptr_t)b < (uintptr_t)a + (uint64_t)a_bytes;
}

/* Whether the result's arrays are apart from both memories and all arrays but the value's of the same field and size;
 * `direct` turns 0 where they are these. */
static int is_apart(const Call *self, const EngineObject *engine, PyObject *const *arrays, int *direct) {
    const Engine *first = &self->engines[0]->engine, *second = &self->engines[1]->engine;
    int fields = self->fields;
    const int64_t *bytes = engine->engine.array_bytes;
    for (int field = fields; field < 2 * fields; field++) {
        const char *data = ((Array *)arrays[field])->data;
        if (overlap(data, bytes[field], first->memory, first->memory_bytes) ||
            overlap(data, bytes[field], second->memory, second->memory_bytes))
            return 0;
        for (int other = 0; other < 2 * fields; other++) {
            const char *its = arrays[other] == NULL ? NULL : ((Array *)arrays[other])->data;
            if (its == NULL) /* a rank that puts no value in */
                continue;
            if (other == field - fields && its == data && bytes[other] == bytes[field])
                *direct = 0;
            else if (other != field && overlap(data, bytes[field], its, bytes[other]))
                return 0;
        }
    }
    return 1;
}

/* A new result, whose arrays are held once more; NULL and an error where memory is out. */
static PyObject *make_result(const Call *self, const EngineObject *engine, PyObject **arrays) {
    int fields = self->fields;
    if (self->bare)
        return Py_XNewRef(arrays[1] = new_array(engine->kinds[1]));
    PyObject *result = PyDict_New();
    for (int index = fields; result != NULL && index < 2 * fields; index++) {
        PyObject *array = arrays[index] = new_array(engine->kinds[index]);
        if (array == NULL || PyDict_SetItem(result, PyTuple_GetItem(self->names, index - fields), array) < 0)
            Py_CLEAR(result);
    }
    return result;
}

/* This rank's flag, of two in turn, of the next call: its rows have not changed; what the flag says. See row_flags.py. */
static int64_t tell(const Engine *engine, _Atomic int64_t *flags) {
    _Atomic int64_t *own = flags + engine->position * COUNTER_WORDS, *other = own + engine->ranks * COUNTER_WORDS;
    int64_t first = atomic_load(own), second = atomic_load(other);
    int64_t call = ((first > second ? first : second) >> 1) + 1;
    atomic_store(call & 1 ? other : own, 2 * call);
    return 2 * call;
}

/* Whether the flags of all ranks are there and say the same. */
static int is_settled(const Engine *engine, _Atomic int64_t *flags, int64_t told) {
    _Atomic int64_t *flag = flags + (told >> 1 & 1) * engine->ranks * COUNTER_WORDS;
    for (int64_t rank = 0; rank < engine->ranks; rank++)
        if (atomic_load(flag + rank * COUNTER_WORDS) != told)
            return 0;
    return 1;
}

/* Take memory of flags: NULL where there is none, or, with an exception, it does not fit. */
static _Atomic int64_t *take_flags(const Engine *engine, PyObject *given, Py_buffer *buffer) {
    if (given == Py_None || PyObject_GetBuffer(given, buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    if (buffer->len != 2 * engine->ranks * COUNTER_WORDS * (Py_ssize_t)sizeof(int64_t))
        return (void *)fail("flags need two cache lines a rank");
    return buffer->buf;
}

static PyObject *run_call(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
    const Call *self = PyCapsule_GetPointer(capsule, NULL);
    PyObject *arrays[2 * MOST_FIELDS] = {NULL};
    int direct = 1;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "a call takes a value, a result and flags, got %zd arguments", count);
    EngineObject *engine = self->engines[(*self->engines[0]->engine.epoch + 1) & 1];
    PyObject *result = NULL;
    Py_buffer buffer = {NULL};
    _Atomic int64_t *flags = take_flags(&engine->engine, args[2], &buffer);
    int nothing = args[0] == Py_None && !engine->takes_value;
    if (!PyErr_Occurred() && !engine->running && (nothing || (take(self, args[0], arrays) && fits(engine, arrays, 0, PLAIN) &&
                                         can_be_read(engine, arrays)))) {
        if (!self->gives)
            result = Py_NewRef(self->nothing);
        else if (args[1] == Py_None)
            result = make_result(self, engine, arrays);
        else if (take(self, args[1], &arrays[self->fields]) && fits(engine, arrays, self->fields, PLAIN | WRITEABLE) &&
                 is_apart(self, engine, arrays, &direct) &&
                 (direct || (engine->engine.count[ADDRESSES] == 0 && flags == NULL)))
            result = Py_NewRef(args[1]);
    }
    if (result == NULL) {
        release(arrays);
        PyBuffer_Release(&buffer);
        /* Not Py_RETURN_NONE: built with 3.12's headers it takes no reference, which 3.11 needs. */
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    int sweep = note_call(self->record.buf, self->places, self->tag, self->sweep_mask);
    int64_t told = flags == NULL ? 0 : tell(&engine->engine, flags);
    int state = begin_call(engine, arrays, direct, CALL_SLEEP_US);
    int settled = flags == NULL || (state == THROUGH && is_settled(&engine->engine, flags, told));
    PyBuffer_Release(&buffer);
    if (state == THROUGH && !sweep && settled)
        return result;
    return Py_BuildValue("(iN)", state != THROUGH ? state : sweep ? SWEEP : UNSETTLED, result);
}

/* Whether the engines take turns and have as many fields as there are names, and places are a power of two. */
static int fit(const Call *self) {
    const EngineObject *first = self->engines[0], *second = self->engines[1];
    return self->fields > 0 && PyTuple_Size(self->names) == self->fields && !(self->bare && self->fields > 1) &&
           second->engine.fields == self->fields && first->epoch.buf == second->epoch.buf &&
           (self->gives || !(first->gives_result || second->gives_result)) && self->places > 0 &&
           (self->places & (self->places - 1)) == 0;
}

static void free_call(PyObject *capsule) {
    Call *self = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(self->names);
    Py_XDECREF((PyObject *)self->engines[0]);
    Py_XDECREF((PyObject *)self->engines[1]);
    Py_XDECREF(self->nothing);
    PyBuffer_Release(&self->record);
    PyMem_Free(self);
}

PyObject *bind_call(PyObject *module, PyObject *args, PyObject *named) {
    static PyMethodDef definition = {"call", (PyCFunction)(void (*)(void))run_call, METH_FASTCALL, NULL};
    static char *keys[] = {"engines", "names", "bare", "gives", "nothing", "tag", "record", "sweep_mask", NULL};
    PyObject *first, *second, *names, *nothing, *made = NULL;
    Call *self = PyMem_Calloc(1, sizeof *self);
    PyObject *capsule = self == NULL ? PyErr_NoMemory() : PyCapsule_New(self, NULL, free_call);
    (void)module;
    if (capsule != NULL &&
        PyArg_ParseTupleAndKeywords(args, named, "(OO)O!ppOLw*L:bind_call", keys, &first, &second, &PyTuple_Type,
                                    &names, &self->bare, &self->gives, &nothing, &self->tag, &self->record,
                                    &self->sweep_mask)) {
        self->names = Py_NewRef(names), self->nothing = Py_NewRef(nothing);
        self->places = places_of(self->record.len);
        if (is_engine(first) && is_engine(second)) {
            self->engines[0] = (EngineObject *)Py_NewRef(first), self->engines[1] = (EngineObject *)Py_NewRef(second);
            self->fields = self->engines[0]->engine.fields;
        }
        made = fit(self) ? PyCFunction_New(&definition, capsule) : fail("engines, names and record do not fit a call");
    }
    Py_XDECREF(capsule);
    return made;
}
