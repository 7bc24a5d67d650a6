/* The type Engine: an engine (engine.h) with the memory that it works on. */
#include "types.h"

#include <string.h>
#include <structmember.h>

PyObject *fail(const char *text) {
    PyObject *errors = PyImport_ImportModule("topocomm.errors");
    PyObject *error = errors == NULL ? NULL : PyObject_GetAttrString(errors, "TopocommError");
    if (error != NULL)
        PyErr_SetString(error, text);
    Py_XDECREF(error);
    Py_XDECREF(errors);
    return NULL;
}

void release(PyObject *const *arrays) {
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(arrays[index]);
}

/* Hold other arrays; those held before take their place. They are to be released when the engine is left alone: the end
 * of an array may run Python code, which may begin another call. */
static void exchange(EngineObject *self, PyObject **arrays) {
    for (int index = 0; index < 2 * MOST_FIELDS; index++) {
        PyObject *before = self->arrays[index];
        self->arrays[index] = arrays[index];
        self->engine.data[index] = arrays[index] == NULL ? NULL : ((Array *)arrays[index])->data;
        arrays[index] = before;
    }
}

static State go_on(EngineObject *self) {
    PyObject *arrays[2 * MOST_FIELDS] = {NULL};
    self->running = 1;
    PyThreadState *thread = PyEval_SaveThread();
    State state = run(&self->engine, self->most_looks);
    PyEval_RestoreThread(thread);
    self->running = 0;
    if (state == THROUGH)
        exchange(self, arrays);
    release(arrays);
    return state;
}

State begin_call(EngineObject *self, PyObject **arrays, int direct) {
    exchange(self, arrays); /* for those of a call that failed */
    ++*(int64_t *)self->epoch.buf;
    start(&self->engine, direct);
    State state = go_on(self);
    release(arrays);
    return state;
}

/* Take one array a field, or none where they are not needed; whether they fit, else an error. */
static int take_arrays(EngineObject *self, PyObject *given, int needed, int first, int flags, PyObject **arrays) {
    Py_ssize_t count = PyTuple_Size(given);
    int right = count == self->engine.fields || (count == 0 && !needed);
    for (int field = 0; right && field < count; field++) {
        PyObject *array = arrays[first + field] = PyTuple_GetItem(given, field);
        right = is_array(array, flags) && number_of(array, "nbytes") == self->engine.array_bytes[first + field] &&
                (intptr_t)((Array *)array)->data % alignment_of(&self->engine, field) == 0;
    }
    if (!right && !PyErr_Occurred())
        fail("an engine takes an aligned C-contiguous NumPy array a field, of the bytes that it was made for");
    return right;
}

static PyObject *engine_begin(PyObject *object, PyObject *args) {
    EngineObject *self = (EngineObject *)object;
    PyObject *value, *result, *arrays[2 * MOST_FIELDS] = {NULL};
    int direct;
    if (!PyArg_ParseTuple(args, "O!O!p:begin", &PyTuple_Type, &value, &PyTuple_Type, &result, &direct) ||
        !take_arrays(self, value, self->takes_value, 0, PLAIN, arrays) ||
        !take_arrays(self, result, self->gives_result, self->engine.fields, PLAIN | WRITEABLE, arrays))
        return NULL;
    if (self->running)
        return fail("an engine runs one call at a time");
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XINCREF(arrays[index]);
    return PyLong_FromLong(begin_call(self, arrays, direct));
}

static PyObject *engine_start(PyObject *object, PyObject *none) {
    EngineObject *self = (EngineObject *)object;
    (void)none;
    if (self->takes_value || self->gives_result || self->running)
        return fail("an engine of arrays begins with them");
    start(&self->engine, 0);
    return Py_NewRef(Py_None);
}

static PyObject *engine_go_on(PyObject *object, PyObject *none) {
    EngineObject *self = (EngineObject *)object;
    (void)none;
    return self->running ? fail("an engine runs one call at a time") : PyLong_FromLong(go_on(self));
}

static PyObject *engine_behind(PyObject *object, PyObject *none) {
    const Engine *engine = &((EngineObject *)object)->engine;
    int64_t count, base = *engine->epoch * STRIDE;
    const Wait *wait = awaited(engine, &count);
    PyObject *behind = PyList_New(0);
    (void)none;
    for (const Wait *end = wait + count; behind != NULL && wait < end; wait++) {
        if (progress_of(engine, wait->rank) >= base + wait->progress)
            continue;
        PyObject *rank = PyLong_FromLongLong(wait->rank);
        if (rank == NULL || PyList_Append(behind, rank) < 0)
            Py_CLEAR(behind);
        Py_XDECREF(rank);
    }
    return behind;
}

static PyObject *engine_stage(PyObject *object, void *none) {
    const Engine *engine = &((EngineObject *)object)->engine;
    (void)none;
    const Stage *stages = engine->section[STAGES];
    int64_t stage = stage_of(engine);
    int begun = state_of(engine) != THROUGH && stage >= 0 && stage < engine->count[STAGES];
    return PyLong_FromLongLong(begun ? stages[stage].progress - 1 : -1);
}

static PyObject *engine_state(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLong(state_of(&((EngineObject *)object)->engine));
}

static PyObject *engine_results(PyObject *object, void *none) {
    EngineObject *self = (EngineObject *)object;
    int fields = self->engine.fields, held = fields > 0 && self->arrays[fields] != NULL;
    PyObject *results = PyTuple_New(held ? fields : 0);
    (void)none;
    for (int field = 0; results != NULL && held && field < fields; field++)
        PyTuple_SetItem(results, field, Py_NewRef(self->arrays[fields + field]));
    return results;
}

/* Take (dtype, sizes, items of a row) of every field of the value, or of the result. */
static int take_kinds(EngineObject *self, PyObject *described, int first) {
    Engine *engine = &self->engine;
    if (PyTuple_Size(described) != engine->fields)
        return -1;
    for (int field = 0; field < engine->fields; field++) {
        ArrayKind *kind = &self->kinds[first + field];
        PyObject *dtype, *sizes;
        long long row_items;
        if (!PyArg_ParseTuple(PyTuple_GetItem(described, field), "OO!L", &dtype, &PyTuple_Type, &sizes, &row_items))
            return -1;
        kind->dtype = Py_NewRef(dtype);
        Py_ssize_t axes = PyTuple_Size(sizes);
        int64_t bytes = number_of(dtype, "itemsize");
        if (bytes < 1 || row_items < 0 || axes > MOST_AXES)
            return -1;
        engine->item_bytes[field] = bytes, engine->row_items[field] = row_items;
        for (kind->axes = 0; kind->axes < axes; kind->axes++) {
            Py_ssize_t size = kind->sizes[kind->axes] = PyLong_AsSsize_t(PyTuple_GetItem(sizes, kind->axes));
            if (size < 0 || __builtin_mul_overflow(bytes, (int64_t)size, &bytes))
                return -1;
        }
        engine->array_bytes[first + field] = bytes;
    }
    return 0;
}

/* Whether a buffer has a whole number of units, from a cache line on if it is not empty: NumPy leaves empty ones
 * anywhere. */
static int is_whole(const Py_buffer *buffer, Py_ssize_t unit) {
    return buffer->len % unit == 0 && (buffer->len == 0 || (uintptr_t)buffer->buf % 64 == 0);
}

static int take_memory(EngineObject *self, long long position) {
    Engine *engine = &self->engine;
    engine->memory = self->memory.buf, engine->memory_bytes = self->memory.len;
    engine->counters = (_Atomic int64_t *)self->counters.buf;
    engine->ranks = self->counters.len / (8 * COUNTER_WORDS);
    engine->epoch = self->epoch.buf, engine->position = position;
    return is_whole(&self->memory, 1) && is_whole(&self->counters, 8 * COUNTER_WORDS) && self->epoch.len == 8 &&
           position >= 0 && position < engine->ranks;
}

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"words",    "value", "result",     "memory", "counters", "epoch",
                            "position", "looks", "most_looks", "final",  "fold",     "calls_before_trial", NULL};
    PyObject *value, *result;
    Py_buffer words;
    long long position, looks, most_looks, final, before_trial;
    unsigned long long fold;
    EngineObject *self = find_numpy() < 0 ? NULL : (EngineObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Engine *engine = &self->engine;
    int right = PyArg_ParseTupleAndKeywords(args, named, "y*O!O!w*w*w*LLLLKL:Engine", names, &words, &PyTuple_Type,
                                            &value, &PyTuple_Type, &result, &self->memory, &self->counters,
                                            &self->epoch, &position, &looks, &most_looks, &final, &fold, &before_trial);
    if (right) {
        engine->fold = (Fold)(uintptr_t)fold, engine->looks = looks, engine->final = final;
        engine->streaming = 1, engine->until_choice = before_trial + 2 * CALLS_A_TRIAL;
        engine->quickest[0] = engine->quickest[1] = NO_TIME;
        self->most_looks = most_looks;
        Py_ssize_t fields = PyTuple_Size(value);
        engine->fields = fields <= MOST_FIELDS ? (int)fields : 0;
        right = take_memory(self, position) && take_kinds(self, value, 0) == 0 &&
                take_kinds(self, result, engine->fields) == 0;
        if (!right && !PyErr_Occurred())
            fail("an engine takes fields, memory, counters and numbers that fit each other");
        if (right && read_program(engine, words.buf, words.len / 8) < 0) {
            fail(engine->wrong);
            right = 0;
        }
        PyBuffer_Release(&words);
    }
    if (!right) {
        Py_DECREF(self);
        return NULL;
    }
    self->takes_value = engine->count[PACK] + engine->count[PACK_OWN] + engine->count[OWN] > 0;
    self->gives_result = engine->count[UNPACK] + engine->count[MADE] + engine->count[TARGETS] > 0;
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *object) {
    EngineObject *self = (EngineObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    release(self->arrays);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(self->kinds[index].dtype);
    release_program(&self->engine);
    PyBuffer_Release(&self->memory);
    PyBuffer_Release(&self->counters);
    PyBuffer_Release(&self->epoch);
    PyObject_Free(object);
    Py_DECREF(type);
}

int is_engine(PyObject *object) { return (destructor)PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == engine_dealloc; }

static PyMethodDef engine_methods[] = {
    {"begin", engine_begin, METH_VARARGS, NULL},
    {"start", engine_start, METH_NOARGS, NULL},
    {"go_on", engine_go_on, METH_NOARGS, NULL},
    {"behind", engine_behind, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_properties[] = {
    {"stage", engine_stage, NULL, NULL, NULL},
    {"state", engine_state, NULL, NULL, NULL},
    {"results", engine_results, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef engine_members[] = {
    {"streaming", T_LONGLONG, offsetof(EngineObject, engine.streaming), 0, NULL},
    {"until_choice", T_LONGLONG, offsetof(EngineObject, engine.until_choice), 0, NULL},
    {"quickest_plain", T_LONGLONG, offsetof(EngineObject, engine.quickest), 0, NULL},
    {"quickest_streamed", T_LONGLONG, offsetof(EngineObject, engine.quickest) + 8, 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_properties},
    {Py_tp_members, engine_members},
    {0, NULL},
};

PyType_Spec engine_spec = {
    "topocomm.native._native.Engine", sizeof(EngineObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    engine_slots,
};
