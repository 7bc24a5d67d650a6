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
    for (int index = 0; index < 2 * self->engine.fields; index++) {
        PyObject *before = self->arrays[index];
        self->arrays[index] = arrays[index];
        self->engine.data[index] = arrays[index] == NULL ? NULL : ((Array *)arrays[index])->data;
        arrays[index] = before;
    }
}

static State go_on(EngineObject *self, long long sleep_us) {
    PyObject *arrays[2 * MOST_FIELDS] = {NULL};
    self->running = 1;
    self->engine.sleep_us = sleep_us;
    PyThreadState *thread = PyEval_SaveThread();
    State state = run(&self->engine);
    PyEval_RestoreThread(thread);
    self->running = 0;
    if (state == THROUGH)
        exchange(self, arrays);
    release(arrays);
    return state;
}

State begin_call(EngineObject *self, PyObject **arrays, int direct, long long sleep_us) {
    exchange(self, arrays); /* for those of a call that failed */
    ++*(int64_t *)self->epoch.buf;
    start(&self->engine, direct);
    State state = go_on(self, sleep_us);
    release(arrays);
    return state;
}

/* Take one array a field, or none where they are not needed; whether they fit. */
static int take_arrays(EngineObject *self, PyObject *given, int needed, int first, int flags, PyObject **arrays) {
    int fields = self->engine.fields;
    if (PyTuple_Size(given) != fields)
        return !needed && PyTuple_Size(given) == 0;
    for (int field = 0; field < fields; field++)
        arrays[first + field] = PyTuple_GetItem(given, field);
    return fits(self, arrays, first, flags);
}

static PyObject *engine_begin(PyObject *object, PyObject *args) {
    EngineObject *self = (EngineObject *)object;
    PyObject *value, *result, *arrays[2 * MOST_FIELDS] = {NULL};
    int direct;
    if (!PyArg_ParseTuple(args, "O!O!p:begin", &PyTuple_Type, &value, &PyTuple_Type, &result, &direct))
        return NULL;
    if (!take_arrays(self, value, self->takes_value, 0, PLAIN, arrays) ||
        !take_arrays(self, result, self->gives_result, self->engine.fields, PLAIN | WRITEABLE, arrays))
        return fail("an engine takes aligned C-contiguous NumPy arrays of the shapes and dtypes that it was made for");
    if (self->running)
        return fail("an engine runs one call at a time");
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XINCREF(arrays[index]);
    return PyLong_FromLong(begin_call(self, arrays, direct, 0));
}

static PyObject *engine_start(PyObject *object, PyObject *none) {
    EngineObject *self = (EngineObject *)object;
    (void)none;
    if (self->takes_value || self->gives_result || self->running)
        return fail("an engine of arrays begins with them");
    start(&self->engine, 0);
    return Py_NewRef(Py_None);
}

static PyObject *engine_go_on(PyObject *object, PyObject *args) {
    EngineObject *self = (EngineObject *)object;
    long long sleep_us = 0;
    if (!PyArg_ParseTuple(args, "|L:go_on", &sleep_us))
        return NULL;
    return self->running ? fail("an engine runs one call at a time") : PyLong_FromLong(go_on(self, sleep_us));
}

static PyObject *engine_behind(PyObject *object, PyObject *none) {
    const Engine *engine = &((EngineObject *)object)->engine;
    const Stage *stages = engine->section[STAGES];
    int64_t base = *engine->epoch * STRIDE, stage = peek(&engine->stage);
    int waiting = peek(&engine->state) == WAITING && stage < engine->count[STAGES];
    const Wait *wait = engine->section[stage < 0 ? CREDITS : WAITS];
    int64_t count = !waiting ? 0 : stage < 0 ? engine->count[CREDITS] : stages[stage].waits;
    PyObject *behind = PyList_New(0);
    (void)none;
    for (int64_t before = 0; waiting && before < stage; before++)
        wait += stages[before].waits;
    for (const Wait *end = wait + count; behind != NULL && wait < end; wait++) {
        if (!engine->unread && progress_of(engine, wait->rank) >= base + wait->progress)
            continue;
        PyObject *rank = PyLong_FromLongLong(wait->rank);
        if (rank == NULL || PyList_Append(behind, rank) < 0)
            Py_CLEAR(behind);
        Py_XDECREF(rank);
    }
    return behind;
}

static PyObject *engine_withdraw(PyObject *object, PyObject *none) {
    const Engine *engine = &((EngineObject *)object)->engine;
    (void)none;
    if (peek(&engine->state) != THROUGH)
        withdraw_addresses(engine);
    return Py_NewRef(Py_None);
}

static PyObject *engine_stage(PyObject *object, void *none) {
    const Engine *engine = &((EngineObject *)object)->engine;
    (void)none;
    const Stage *stages = engine->section[STAGES];
    int64_t stage = peek(&engine->stage);
    int begun = peek(&engine->state) != THROUGH && stage >= 0 && stage < engine->count[STAGES];
    return PyLong_FromLongLong(begun ? stages[stage].progress - 1 : -1);
}

static PyObject *engine_state(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLongLong(peek(&((EngineObject *)object)->engine.state));
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

int64_t number_of(PyObject *object, const char *name) {
    PyObject *number = PyObject_GetAttrString(object, name);
    int64_t value = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    return value;
}

/* Take (an array that others are to be like, items of a row) of every field of the value, or of the result. */
static int take_kinds(EngineObject *self, PyObject *kinds, int first) {
    Engine *engine = &self->engine;
    if (PyTuple_Size(kinds) != engine->fields)
        return 0;
    for (int field = 0; field < engine->fields; field++) {
        PyObject *like;
        long long row_items;
        if (!PyArg_ParseTuple(PyTuple_GetItem(kinds, field), "O!L", array_type, &like, &row_items))
            return 0;
        self->kinds[first + field] = (Array *)Py_NewRef(like);
        engine->row_items[field] = row_items, engine->item_bytes[field] = number_of(like, "itemsize");
        engine->array_bytes[first + field] = number_of(like, "nbytes");
        if (row_items < 0 || engine->item_bytes[field] < 1)
            return 0;
    }
    return 1;
}

/* Whether a buffer has a whole number of units, from a cache line on if it is not empty: NumPy leaves empty ones
 * anywhere. */
static int is_whole(const Py_buffer *buffer, Py_ssize_t unit) {
    return buffer->len % unit == 0 && (buffer->len == 0 || (uintptr_t)buffer->buf % 64 == 0);
}

/* Take the requests of every stage, None where its messages go outside: whether they fit the stages. */
static int take_requests(EngineObject *self, PyObject *given) {
    Engine *engine = &self->engine;
    const Stage *stages = engine->section[STAGES];
    int64_t count = engine->count[STAGES], right = PyTuple_Size(given) == count;
    engine->requests = PyMem_Calloc((size_t)count + 1, sizeof *engine->requests);
    if (engine->requests == NULL)
        return PyErr_NoMemory(), 0;
    for (int64_t stage = 0; right && stage < count; stage++) {
        PyObject *some = PyTuple_GetItem(given, stage);
        right = some == Py_None || (stages[stage].messages && are_requests(some));
        engine->requests[stage] = some == Py_None || !right ? NULL : &((RequestsObject *)some)->requests;
    }
    self->requests = Py_NewRef(given);
    return right || fail("an engine takes requests for each stage that has messages, or None") != NULL;
}

/* Take the credits by turn and direction, or none: whether they fit. */
static int take_credits(EngineObject *self, PyObject *given) {
    Py_ssize_t count = PyTuple_Size(given), right = count == 0 || count == CALLS_AHEAD * DIRECTIONS;
    for (Py_ssize_t index = 0; right && index < count; index++) {
        PyObject *some = PyTuple_GetItem(given, index);
        right = some == Py_None || are_requests(some);
        if (right && some != Py_None)
            self->engine.credits[index / DIRECTIONS][index % DIRECTIONS] = &((RequestsObject *)some)->requests;
    }
    self->credits = Py_NewRef(given);
    return right || fail("an engine takes requests of credits, or None, by turn and direction") != NULL;
}

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"words",    "value", "result", "memory", "counters",           "epoch",
                            "position", "looks", "final",  "fold",   "calls_before_trial", "requests", "credits", NULL};
    PyObject *value, *result, *requests = NULL, *credits = NULL;
    Py_buffer words;
    unsigned long long fold;
    EngineObject *self = find_numpy() < 0 ? NULL : (EngineObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Engine *engine = &self->engine;
    int right = PyArg_ParseTupleAndKeywords(
        args, named, "y*O!O!w*w*w*LLLKL|O!O!:Engine", names, &words, &PyTuple_Type, &value, &PyTuple_Type, &result,
        &self->memory, &self->counters, &self->epoch, &engine->position, &engine->looks, &engine->final, &fold,
        &engine->until_choice, &PyTuple_Type, &requests, &PyTuple_Type, &credits);
    if (right) {
        Py_ssize_t fields = PyTuple_Size(value);
        engine->fields = fields <= MOST_FIELDS ? (int)fields : 0;
        engine->fold = (Fold)(uintptr_t)fold;
        engine->memory = self->memory.buf;
        engine->memory_bytes = self->memory.len;
        engine->counters = (_Atomic int64_t *)self->counters.buf;
        engine->ranks = self->counters.len / (8 * COUNTER_WORDS);
        engine->epoch = self->epoch.buf;
        engine->streaming = 1;
        engine->until_choice += 2 * CALLS_A_TRIAL;
        engine->quickest[0] = engine->quickest[1] = NO_TIME;
        right = is_whole(&self->memory, 1) && is_whole(&self->counters, 8 * COUNTER_WORDS) && self->epoch.len == 8 &&
                engine->position >= 0 && engine->position < engine->ranks && take_kinds(self, value, 0) &&
                take_kinds(self, result, engine->fields);
        if (!right && !PyErr_Occurred())
            fail("an engine takes fields, memory, counters and numbers that fit each other");
        if (right && read_program(engine, words.buf, words.len / 8) < 0) {
            fail(engine->wrong);
            right = 0;
        }
        right = right && (requests == NULL || take_requests(self, requests)) && (credits == NULL || take_credits(self, credits));
        PyBuffer_Release(&words);
    }
    if (!right) {
        Py_DECREF(self);
        return NULL;
    }
    const int64_t *count = engine->count;
    self->takes_value = count[PACK] + count[PACK_OWN] + count[KEPT] + count[OWN] + count[ADDRESSES] > 0;
    self->gives_result = count[UNPACK] + count[KEPT] + count[MADE] + count[TARGETS] + count[PULLS] > 0;
    return (PyObject *)self;
}

static void engine_dealloc(PyObject *object) {
    EngineObject *self = (EngineObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    release(self->arrays);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF((PyObject *)self->kinds[index]);
    release_program(&self->engine);
    PyMem_Free(self->engine.requests);
    Py_XDECREF(self->requests);
    Py_XDECREF(self->credits);
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
    {"go_on", engine_go_on, METH_VARARGS, NULL},
    {"behind", engine_behind, METH_NOARGS, NULL},
    {"withdraw", engine_withdraw, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_properties[] = {
    {"stage", engine_stage, NULL, NULL, NULL},
    {"state", engine_state, NULL, NULL, NULL},
    {"results", engine_results, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef engine_members[] = {
    {"unread", T_INT, offsetof(EngineObject, engine.unread), READONLY, NULL},
    {"credited", T_LONGLONG, offsetof(EngineObject, engine.credited), READONLY, NULL},
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
