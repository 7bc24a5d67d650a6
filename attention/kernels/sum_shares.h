/* Functions of the module for partials as one SUM; their arguments are described in _native.pyi. */
#ifndef ATTENTION_SUM_SHARES_H
#define ATTENTION_SUM_SHARES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *encode_shares(PyObject *self, PyObject *args);
PyObject *shares_exact(PyObject *self, PyObject *args);
PyObject *decode_shares(PyObject *self, PyObject *args);

#endif
