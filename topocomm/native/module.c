/* The module topocomm.native._native: what Python asks of the compiled part. Limited API of Python 3.11. */
#include "types.h"

#include <string.h>

static PyObject *fold_address(PyObject *self, PyObject *args) {
    const char *name, *dtypes;
    (void)self;
    if (!PyArg_ParseTuple(args, "ss:fold_address", &name, &dtypes))
        return NULL;
    for (const FoldEntry *entry = BEST(folds); entry->operator_name != NULL; entry++)
        if (strcmp(entry->operator_name, name) == 0 && strcmp(entry->dtypes, dtypes) == 0)
            return PyLong_FromVoidPtr((void *)(intptr_t)entry->fold);
    return PyLong_FromLong(0);
}

static PyMethodDef methods[] = {
    {"fold_address", fold_address, METH_VARARGS, NULL},
    {"describe", describe, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int wrong = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return wrong;
}

static int fill(PyObject *module) {
    static const struct {
        const char *name;
        long value;
    } NUMBERS[] = {{"THROUGH", THROUGH},
                   {"WAITING", WAITING},
                   {"TO_FOLD", TO_FOLD},
                   {"STRIDE", STRIDE},
                   {"FINISHED", FINISHED},
                   {"MOST_FIELDS", MOST_FIELDS},
                   {"CALLS_A_TRIAL", CALLS_A_TRIAL},
                   {"CALLS_A_CHOICE", CALLS_A_CHOICE}};
    for (size_t index = 0; index < sizeof NUMBERS / sizeof *NUMBERS; index++)
        if (PyModule_AddIntConstant(module, NUMBERS[index].name, NUMBERS[index].value) < 0)
            return -1;
    return add_type(module, &engine_spec) < 0 ? -1 : add_type(module, &call_spec);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "topocomm.native._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
