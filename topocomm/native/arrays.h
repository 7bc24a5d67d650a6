/* NumPy's arrays, by the binary interface of NumPy 2: PyArrayObject_fields and three entries of its function table, which
 * extensions of every NumPy 2 are compiled against. Without its headers; `describe` lets Python try that they are so. */
#ifndef TOPOCOMM_ARRAYS_H
#define TOPOCOMM_ARRAYS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

enum {
    MOST_AXES = 64,     /* NPY_MAXDIMS */
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
    int64_t bytes;
} ArrayKind;

/* Find NumPy's interface: 0, or -1 and ImportError. */
int find_numpy(void);

/* Whether an object is a NumPy array, of no subclass, with these flags. */
int is_array(PyObject *object, int flags);

/* Whether it is so, and of a kind. */
int is_of_kind(PyObject *object, const ArrayKind *kind, int flags);

/* The bytes of an array; -1 and an error where it does not say. */
int64_t array_bytes(PyObject *array);

/* A new array of a kind, without contents; NULL and an error where memory is out. */
PyObject *new_array(const ArrayKind *kind);

/* Take a kind from (dtype, sizes): 0, or -1 and an error. `kind->dtype` is held then. */
int take_kind(PyObject *described, ArrayKind *kind);

/* describe(array): (address, whether it is a NumPy array, sizes, dtype, flags), as this code sees them. */
PyObject *describe(PyObject *module, PyObject *array);

#endif
