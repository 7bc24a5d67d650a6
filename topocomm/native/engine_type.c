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

/* Release the arrays of a call. The engine holds none of them by then: the end of an array may run Python code, which
 * may begin another call. */
static void let_go(EngineObject *self) {
    PyObject *arrays[2 * MOST_FIELDS];
    memcpy(arrays, self->arrays, sizeof arrays);
    memset(self->arrays, 0, sizeof arrays);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(arrays[index]);
}

static State go_on(EngineObject *self) {
    self->running = 1;
    PyThreadState *thread = PyEval_SaveThread();
    State state = run(&self->engine, self->most_looks);
    PyEval_RestoreThread(thread);
    self->running = 0;
    if (state == THROUGH)
        let_go(self);
    return state;
}

State begin_call(EngineObject *self, PyObject *const *arrays, int direct) {
    PyObject *failed[2 * MOST_FIELDS]; /* arrays of a call that failed, released at the end for the same reason */
    memcpy(failed, self->arrays, sizeof failed);
    for (int index = 0; index < 2 * self->engine.fields; index++) {
        self->arrays[index] = arrays[index];
        self->engine.data[index] = arrays[index] == NULL ? NULL : ((Array *)arrays[index])->data;
    }
    ++*(int64_t *)self->epoch.buf;
    start(&self->engine, direct);
    State state = go_on(self);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(failed[index]);
    return state;
}

/* Take one array a field; 0, or -1 and an error. */
static int take_arrays(EngineObject *self, PyObject *given, int first, int flags, PyObject **arrays) {
    int fields = self->engine.fields;
    if (!PyTuple_Check(given) || PyTuple_Size(given) != fields) {
        fail("an engine takes a tuple of one array a field");
        return -1;
    }
    for (int field = 0; field < fields; field++) {
        PyObject *array = PyTuple_GetItem(given, field);
        int64_t bytes = is_array(array, flags) ? number_of(array, "nbytes") : -1;
        int64_t item = self->engine.item_bytes[field] & -self->engine.item_bytes[field];
        int64_t alignment = self->engine.fold == NULL ? 1 : item < 8 ? item : 8; /* complex128 is aligned to 8 */
        if (bytes != self->engine.array_bytes[first + field] || (intptr_t)((Array *)array)->data % alignment != 0) {
            if (!PyErr_Occurred())
                fail("an engine takes aligned C-contiguous NumPy arrays of the bytes that it was made for");
            return -1;
        }
        arrays[first + field] = array;
    }
    return 0;
}

static PyObject *engine_begin(PyObject *object, PyObject *args) {
    EngineObject *self = (EngineObject *)object;
    PyObject *value, *result, *arrays[2 * MOST_FIELDS] = {NULL};
    int direct, fields = self->engine.fields;
    if (!PyArg_ParseTuple(args, "OOp:begin", &value, &result, &direct))
        return NULL;
    if ((value != Py_None && take_arrays(self, value, 0, PLAIN, arrays) < 0) ||
        (result != Py_None && take_arrays(self, result, fields, PLAIN | WRITEABLE, arrays) < 0))
        return NULL;
    if ((self->takes_value && value == Py_None) || (self->gives_result && result == Py_None))
        return fail("an engine needs arrays of its value and its result");
    if (self->running)
        return fail("an engine runs one call at a time");
    for (int index = 0; index < 2 * fields; index++)
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

/* Whether a buffer is of a whole number of units, and aligned if it is not empty: NumPy leaves empty ones anywhere. */
static int is_whole(const Py_buffer *buffer, Py_ssize_t unit, uintptr_t alignment) {
    return buffer->len % unit == 0 && (buffer->len == 0 || (uintptr_t)buffer->buf % alignment == 0);
}

static int take_memory(EngineObject *self, long long position, long long looks, long long final) {
    Engine *engine = &self->engine;
    if (!is_whole(&self->memory, 1, 64) || !is_whole(&self->counters, 8 * COUNTER_WORDS, 64) ||
        !is_whole(&self->epoch, 8, 8) || self->epoch.len != 8)
        return -1;
    engine->memory = self->memory.buf, engine->memory_bytes = self->memory.len;
    engine->counters = (_Atomic int64_t *)self->counters.buf;
    engine->ranks = self->counters.len / (8 * COUNTER_WORDS);
    engine->epoch = self->epoch.buf;
    engine->position = position, engine->looks = looks, engine->final = final;
    return position < 0 || position >= engine->ranks || looks < 0 || final < 0 || final > FINISHED ? -1 : 0;
}

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"words",    "value", "result",     "memory", "other", "counters",           "epoch",
                            "position", "looks", "most_looks", "final",  "fold",  "calls_before_trial", NULL};
    PyObject *value, *result;
    Py_buffer words;
    long long position, looks, most_looks, final, before_trial;
    unsigned long long fold;
    EngineObject *self =
        find_numpy() < 0 ? NULL : (EngineObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    Engine *engine = &self->engine;
    int right = PyArg_ParseTupleAndKeywords(args, named, "y*O!O!w*w*w*w*LLLLKL:Engine", names, &words, &PyTuple_Type,
                                            &value, &PyTuple_Type, &result, &self->memory, &self->other,
                                            &self->counters, &self->epoch, &position, &looks, &most_looks, &final,
                                            &fold, &before_trial);
    if (right) {
        engine->fold = (Fold)(uintptr_t)fold;
        engine->streaming = 1, engine->until_choice = before_trial + 2 * CALLS_A_TRIAL;
        engine->quickest[0] = engine->quickest[1] = NO_TIME;
        self->most_looks = most_looks;
        Py_ssize_t fields = PyTuple_Size(value);
        engine->fields = fields <= MOST_FIELDS ? (int)fields : 0;
        right = is_whole(&words, 8, 8) && most_looks >= 1 && before_trial >= 0 && (fields > 0 || fold == 0) &&
                take_memory(self, position, looks, final) == 0 && take_kinds(self, value, 0) == 0 &&
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
    let_go(self);
    for (int index = 0; index < 2 * MOST_FIELDS; index++)
        Py_XDECREF(self->kinds[index].dtype);
    release_program(&self->engine);
    PyBuffer_Release(&self->memory);
    PyBuffer_Release(&self->other);
    PyBuffer_Release(&self->counters);
    PyBuffer_Release(&self->epoch);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

int is_engine(PyObject *object) { return (destructor)PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == engine_dealloc; }

static PyMethodDef engine_methods[] = {
    {"begin", engine_begin, METH_VARARGS,
     "begin(value, result, direct, /)\n--\n\nBegin a call, counted, on tuples of arrays, or None; its state."},
    {"start", engine_start, METH_NOARGS, "start()\n--\n\nStart at the beginning; of programs without arrays."},
    {"go_on", engine_go_on, METH_NOARGS, "go_on()\n--\n\nGo on with what was begun; its state."},
    {"behind", engine_behind, METH_NOARGS, "behind()\n--\n\nReturn the ranks that it waits for now."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_properties[] = {
    {"stage", engine_stage, NULL, "Number of the stage in which it stands; -1 before the first.", NULL},
    {"state", engine_state, NULL, "THROUGH, WAITING, or TO_FOLD: the folds of the stage are to be run outside.", NULL},
    {"results", engine_results, NULL, "The arrays of the result, while a call is under way.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef engine_members[] = {
    {"streaming", T_LONGLONG, offsetof(EngineObject, engine.streaming), 0, "Whether it writes past the caches."},
    {"until_choice", T_LONGLONG, offsetof(EngineObject, engine.until_choice), 0, "Calls until that is chosen anew."},
    {"quickest_plain", T_LONGLONG, offsetof(EngineObject, engine.quickest), 0, "Cycles of the quickest call on trial."},
    {"quickest_streamed", T_LONGLONG, offsetof(EngineObject, engine.quickest) + 8, 0, "The same past the caches."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_properties},
    {Py_tp_members, engine_members},
    {Py_tp_doc, "One rank's part of a plan in shared memory, as engine.h describes it."},
    {0, NULL},
};

PyType_Spec engine_spec = {
    "topocomm.native._native.Engine", sizeof(EngineObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    engine_slots,
};
