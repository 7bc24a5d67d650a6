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
    {"bind_call", (PyCFunction)(void (*)(void))bind_call, METH_VARARGS | METH_KEYWORDS, NULL},
    {"bind_sum", (PyCFunction)(void (*)(void))bind_sum, METH_VARARGS | METH_KEYWORDS, NULL},
    {"bind_view", bind_view, METH_VARARGS, NULL},
    {"bind_group_sum", bind_group_sum, METH_VARARGS, NULL},
    {"describe", describe, METH_O, NULL},
    {"read_process", read_process, METH_VARARGS, NULL},
    {"follow_turns", follow_turns, METH_VARARGS, NULL},
    {"busiest_by_round", busiest_by_round, METH_VARARGS, NULL},
    {"run_events", run_events, METH_VARARGS, NULL},
    {"group_messages", group_messages, METH_VARARGS, NULL},
    {"exchange_nodes", exchange_nodes, METH_VARARGS, NULL},
    {"list_messages", list_messages, METH_VARARGS, NULL},
    {"pack_turns", pack_turns, METH_VARARGS, NULL},
    {"load_places", load_places, METH_VARARGS, NULL},
    {"number_places", number_places, METH_VARARGS, NULL},
    {"most_alive", most_alive, METH_VARARGS, NULL},
    {"cheapest_parents", cheapest_parents, METH_VARARGS, NULL},
    {"least_sums", least_sums, METH_VARARGS, NULL},
    {"leave_in_turn", leave_in_turn, METH_VARARGS, NULL},
    {"pack_intervals", pack_intervals, METH_VARARGS, NULL},
    {"price_steps", price_steps, METH_VARARGS, NULL},
    {"order_slices", order_slices, METH_VARARGS, NULL},
    {"trace_values", trace_values, METH_VARARGS, NULL},
    {"fold_trees", fold_trees, METH_VARARGS, NULL},
    {"table_text", table_text, METH_VARARGS, NULL},
    {"rounds_text", rounds_text, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int wrong = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return wrong;
}

static int fill(PyObject *module) {
    if (PyModule_AddIntMacro(module, THROUGH) < 0 || PyModule_AddIntMacro(module, WAITING) < 0 ||
        PyModule_AddIntMacro(module, TO_FOLD) < 0 || PyModule_AddIntMacro(module, TO_EXCHANGE) < 0 ||
        PyModule_AddIntMacro(module, STRIDE) < 0 ||
        PyModule_AddIntMacro(module, FINISHED) < 0 || PyModule_AddIntMacro(module, MOST_FIELDS) < 0 ||
        PyModule_AddIntMacro(module, CALLS_A_TRIAL) < 0 || PyModule_AddIntMacro(module, CALLS_A_CHOICE) < 0 || add_sum_constants(module))
        return -1;
    return add_type(module, &engine_spec) < 0 || add_type(module, &results_spec) < 0 ||
                   add_type(module, &requests_spec) < 0 ? -1 : add_loans(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "topocomm.native._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
