/* The types of the module, an engine and a call that two engines serve in turn, and the NumPy arrays that they take: by
 * the binary interface of NumPy 2, PyArrayObject_fields and three entries of its function table, which extensions of
 * every NumPy 2 are compiled against. Without its headers; `describe` lets Python try that they are so. */
#ifndef TOPOCOMM_TYPES_H
#define TOPOCOMM_TYPES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "engine.h"

enum {
    MOST_AXES = 64,      /* NPY_MAXDIMS */
    PLAIN = 0x1 | 0x100, /* NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED */
    WRITEABLE = 0x400    /* NPY_ARRAY_WRITEABLE */
};

typedef struct {
    PyObject_HEAD
    char *data;
    int axes;
    Py_ssize_t *sizes, *strides;
    PyObject *base, *dtype;
    int flags;
} Array;

/* What an array must be. */
typedef struct {
    PyObject *dtype;
    int axes;
    Py_ssize_t sizes[MOST_AXES];
} ArrayKind;

/* Find NumPy's interface: 0, or -1 and ImportError. */
int find_numpy(void);

/* Whether an object is a NumPy array, of no subclass, with these flags. */
int is_array(PyObject *object, int flags);

/* Whether it is so, and of a kind. */
int is_of_kind(PyObject *object, const ArrayKind *kind, int flags);

/* A number that an object has; -1 and an error where it has none. */
int64_t number_of(PyObject *object, const char *name);

/* A new array of a kind, without contents; NULL and an error where memory is out. */
PyObject *new_array(const ArrayKind *kind);

/* describe(array): (address, whether it is a NumPy array, sizes, dtype, flags), as this code sees them. */
PyObject *describe(PyObject *module, PyObject *array);

typedef struct {
    PyObject_HEAD
    Engine engine;
    ArrayKind kinds[2 * MOST_FIELDS]; /* of the value, then of the result, as calls of the type Call have them */
    Py_buffer memory, counters, epoch;
    PyObject *arrays[2 * MOST_FIELDS]; /* what the call under way works on, held */
    int64_t most_looks;                /* in one go */
    int takes_value, gives_result, running;
} EngineObject;

extern PyType_Spec engine_spec, call_spec;

int is_engine(PyObject *object);

/* Raise TopocommError; NULL. */
PyObject *fail(const char *text);

/* Release arrays, as many as an engine has at most. */
void release(PyObject *const *arrays);

/* Begin a call, counted, on arrays whose references become the engine's, and run it. Another may not be running. */
State begin_call(EngineObject *self, PyObject **arrays, int direct);

#endif
