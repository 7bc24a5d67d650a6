/* The types of the module: an engine, and a call that two engines serve in turn. */
#ifndef TOPOCOMM_TYPES_H
#define TOPOCOMM_TYPES_H

#include "arrays.h"
#include "engine.h"

typedef struct {
    PyObject_HEAD
    Engine engine;
    Py_buffer memory, other, counters, epoch; /* other: the memory of the engine that takes turns with this one */
    PyObject *arrays[2 * MOST_FIELDS];        /* what the call under way works on, held */
    int64_t most_looks;                       /* in one go */
    int takes_value, gives_result, running;
} EngineObject;

typedef struct {
    PyTypeObject *engine;
} ModuleState;

extern PyType_Spec engine_spec, call_spec;

/* Raise TopocommError; NULL. */
PyObject *fail(const char *text);

/* Begin a call, counted, on arrays whose references become the engine's, and run it. Another may not be running. */
State begin_call(EngineObject *self, PyObject *const *arrays, int direct);

#endif
