/* The module topocomm.native._native: what Python asks of the compiled part. Limited API of Python 3.11. */
#include "types.h"

#include <string.h>

PyDoc_STRVAR(fold_address_doc, "fold_address(operator, dtypes, /)\n--\n\n"
                               "Return the address of the fold of an operator for these dtypes; 0 where it has none.");

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

PyDoc_STRVAR(describe_doc, "describe(array, /)\n--\n\n"
                           "Return (address, whether it is of no subclass, sizes, dtype, flags) as C sees an array.");

static PyMethodDef methods[] = {
    {"fold_address", fold_address, METH_VARARGS, fold_address_doc},
    {"describe", describe, METH_O, describe_doc},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
    ModuleState *state = PyModule_GetState(module);
    state->engine = (PyTypeObject *)PyType_FromModuleAndSpec(module, &engine_spec, NULL);
    PyObject *call = PyType_FromModuleAndSpec(module, &call_spec, NULL);
    if (state->engine == NULL || call == NULL)
        return -1;
    int wrong = PyModule_AddType(module, state->engine) + PyModule_AddType(module, (PyTypeObject *)call);
    Py_DECREF(call);
    wrong += PyModule_AddIntConstant(module, "THROUGH", THROUGH) + PyModule_AddIntConstant(module, "WAITING", WAITING);
    wrong += PyModule_AddIntConstant(module, "TO_FOLD", TO_FOLD) + PyModule_AddIntConstant(module, "STRIDE", STRIDE);
    wrong += PyModule_AddIntConstant(module, "FINISHED", FINISHED);
    wrong += PyModule_AddIntConstant(module, "MOST_FIELDS", MOST_FIELDS);
    wrong += PyModule_AddIntConstant(module, "CALLS_A_TRIAL", CALLS_A_TRIAL);
    wrong += PyModule_AddIntConstant(module, "CALLS_A_CHOICE", CALLS_A_CHOICE);
    return wrong;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    Py_VISIT(((ModuleState *)PyModule_GetState(module))->engine);
    return 0;
}

static int clear(PyObject *module) {
    Py_CLEAR(((ModuleState *)PyModule_GetState(module))->engine);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "topocomm.native._native", "The compiled part, in C.", sizeof(ModuleState), methods, slots,
    traverse, clear, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
