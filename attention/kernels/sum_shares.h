/* Function of the module for partials as one SUM; its arguments are described in _native.pyi. */
#ifndef ATTENTION_SUM_SHARES_H
#define ATTENTION_SUM_SHARES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *bind_shares(PyObject *self, PyObject *args);

#endif
