/* The type of the module, an engine, a call that two engines serve in turn, and the NumPy arrays that they take: by
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

extern PyTypeObject *array_type; /* of NumPy */

/* Find NumPy's interface: 0, or -1 and ImportError. */
int find_numpy(void);

/* A new array like another, without contents; NULL and an error where memory is out. */
PyObject *new_array(const Array *kind);

/* An array on memory that `base` keeps; NULL and an error where memory is out. */
PyObject *array_on(PyObject *dtype, int axes, const Py_ssize_t *sizes, void *data, PyObject *base);

/* describe(array): (address, whether it is a NumPy array, sizes, dtype, flags), as this code sees them. */
PyObject *describe(PyObject *module, PyObject *array);

typedef struct {
    PyObject_HEAD
    Engine engine;
    Array *kinds[2 * MOST_FIELDS]; /* what those of the value, then those of the result, are like */
    Py_buffer memory, counters, epoch;
    PyObject *arrays[2 * MOST_FIELDS]; /* what the call under way works on, held */
    PyObject *requests, *credits;      /* held: tuples of Requests or None, by stage, and by turn and direction */
    int takes_value, gives_result, running;
} EngineObject;

typedef struct {
    PyObject_HEAD
    Requests requests;
    Py_buffer handles, statuses;
} RequestsObject;

extern PyType_Spec engine_spec, results_spec, requests_spec;

/* Prepare what results are lent by: 0, or -1 and an error. */
int add_loans(PyObject *module);

/* An attribute that is a number; -1 and an error where it is none. */
int64_t number_of(PyObject *object, const char *name);

int is_engine(PyObject *object);
int are_requests(PyObject *object);

/* Whether the system lets others pull from the arrays of a value, if they do: memory of a device may be mapped here. */
int can_be_read(const EngineObject *engine, PyObject *const *arrays);

/* read_process(process, address, into): copy from the memory of a process; 0, or why not, as an errno. */
PyObject *read_process(PyObject *module, PyObject *args);

/* Whether arrays, one a field from `first` on, are as the engine takes them: NumPy arrays, of no subclass, with these
 * flags. */
int fits(const EngineObject *engine, PyObject *const *arrays, int first, int flags);

/* Raise TopocommError; NULL. */
PyObject *fail(const char *text);

/* Release arrays, as many as an engine has at most. */
void release(PyObject *const *arrays);

/* Begin a call, counted, on arrays whose references become the engine's, and run it. Another may not be running. */
State begin_call(EngineObject *self, PyObject **arrays, int direct, long long sleep_us);

/* Make a call, a function; see the stub, as for sums and views. */
PyObject *bind_call(PyObject *module, PyObject *args, PyObject *named);
PyObject *bind_sum(PyObject *module, PyObject *args, PyObject *named);
PyObject *bind_view(PyObject *module, PyObject *args);
PyObject *bind_group_sum(PyObject *module, PyObject *args);
int add_sum_constants(PyObject *module);

/* Hold the arrays of a call, `count` of them, the last `written` to write to, with items of so many bytes (NULL: of 8):
 * 0, or -1 and an error, and none is held. */
int take_columns(PyObject *args, Py_buffer *views, const Py_ssize_t *sizes, int count, int written);

/* Times of the messages of a schedule, and of the busiest links of its rounds; see the stub. */
PyObject *follow_turns(PyObject *module, PyObject *args);
PyObject *busiest_by_round(PyObject *module, PyObject *args);
PyObject *load_places(PyObject *module, PyObject *args);

/* The messages of a schedule; see the stub. */
PyObject *group_messages(PyObject *module, PyObject *args);

/* Messages and folds of an exchange of nodes; see the stub. */
PyObject *exchange_nodes(PyObject *module, PyObject *args);

/* Turns of messages in a period, and starts of an open shop; see the stub. */
PyObject *list_messages(PyObject *module, PyObject *args);
PyObject *pack_turns(PyObject *module, PyObject *args);

/* The times of tasks on a machine; see the stub. */
PyObject *run_events(PyObject *module, PyObject *args);

/* The numbers of the places of a schedule; see the stub. */
PyObject *number_places(PyObject *module, PyObject *args);

/* The most pieces of each rank that are alive at once; see the stub. */
PyObject *most_alive(PyObject *module, PyObject *args);

/* The values that a schedule reads, and the expression of each; see the stub. */
PyObject *trace_values(PyObject *module, PyObject *args);
PyObject *fold_trees(PyObject *module, PyObject *args);

/* The cheapest directed spanning tree; see the stub. */
PyObject *cheapest_parents(PyObject *module, PyObject *args);

/* The least sums of weights over links, and when messages leave that have turns; see the stub. */
PyObject *least_sums(PyObject *module, PyObject *args);
PyObject *leave_in_turn(PyObject *module, PyObject *args);

/* The cheapest trees of intervals, and of the steps between two; the order of rows in slices; see the stub. */
PyObject *pack_intervals(PyObject *module, PyObject *args);
PyObject *price_steps(PyObject *module, PyObject *args);
PyObject *order_slices(PyObject *module, PyObject *args);

/* Tables, and the rounds of a schedule, as JSON; see the stub. */
PyObject *table_text(PyObject *module, PyObject *args);
PyObject *rounds_text(PyObject *module, PyObject *args);

#endif
