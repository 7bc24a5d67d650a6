/* The module topocomm.native._native: what Python asks of the compiled part. Limited API of Python 3.11. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "folds.h"

#include <string.h>

static Fold find_in(const FoldEntry *table, const char *name, const char *dtypes) {
    for (; table->operator_name != NULL; table++)
        if (strcmp(table->operator_name, name) == 0 && strcmp(table->dtypes, dtypes) == 0)
            return table->fold;
    return NULL;
}

PyDoc_STRVAR(fold_address_doc, "fold_address(operator, dtypes, /)\n--\n\n"
                               "Return the address of the fold of an operator for these dtypes; 0 where it has none.");

static PyObject *fold_address(PyObject *self, PyObject *args) {
    const char *name, *dtypes;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss:fold_address", &name, &dtypes))
        return NULL;
    Fold fold = find_in(BEST(elementwise_folds), name, dtypes);
    if (fold == NULL)
        fold = find_in(BEST(row_folds), name, dtypes);
    return PyLong_FromVoidPtr((void *)(intptr_t)fold);
}

static PyMethodDef methods[] = {
    {"fold_address", fold_address, METH_VARARGS, fold_address_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "topocomm.native._native", "The compiled part, in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
