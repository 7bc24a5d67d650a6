/* The module attention.kernels._native: what Python asks of the compiled part. Limited API of Python 3.11. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "merge_fold.h"

PyDoc_STRVAR(merge_fold_address_doc, "merge_fold_address()\n--\n\nReturn the address of the fold of LOGSUMEXP.");

static PyObject *merge_fold_address(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromVoidPtr((void *)(intptr_t)BEST(merge_fold));
}

static PyMethodDef methods[] = {
    {"merge_fold_address", merge_fold_address, METH_NOARGS, merge_fold_address_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "attention.kernels._native", "Kernels of attention, in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
