/* Functions of the module that run the attention kernel. */
#ifndef ATTENTION_ATTEND_CALL_H
#define ATTENTION_ATTEND_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *attend(PyObject *self, PyObject *args, PyObject *options);
PyObject *processors(PyObject *self, PyObject *none);

#endif
