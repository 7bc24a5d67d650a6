/* Tensors that Python gives, as DLPack capsules: sizes, strides and addresses are their owners'. Capsules are looked into,
 * not consumed: whoever has them holds the memory. Functions that take one give 0 and an error where it does not fit. */
#ifndef ATTENTION_TENSORS_H
#define ATTENTION_TENSORS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "kernels.h"

struct DLTensor;

#define FAIL(...) (PyErr_Format(PyExc_ValueError, __VA_ARGS__), 0)

/* In host memory, with this many axes; of a dtype, or 0: of any that is loaded. */
int take_tensor(const char *name, PyObject *capsule, int dtype, int axes, Tensor *tensor);

/* Contiguous float32 of this many items. */
int take_floats(const char *name, PyObject *capsule, int64_t items, float **floats);

/* What reads a tensor of a class without a capsule: 0 where it does. The tensor's holder holds what it gives. */
typedef int (*LookAtTensor)(void *tensor, struct DLTensor *array);

/* That of a class, from its `__dlpack_c_exchange_api__`. */
LookAtTensor take_exchange(PyObject *capsule);

/* As `take_tensor`, four axes, and as `take_floats`. */
int look_at(LookAtTensor look, PyObject *given, int dtype, Tensor *tensor);
int look_at_floats(LookAtTensor look, PyObject *given, int64_t items, float **floats);

/* Whether q, k and v fit each other; the rows that share a key head follow. */
int fit_tensors(Attention *call, int paged);

/* The kernel for a processor; NULL: the best. */
AttendItem find_kernel(const char *name);

/* See _native.pyi. */
PyObject *bind_step(PyObject *module, PyObject *args);

#endif
