/* torch.distributed's all_reduce as most programs make it, a sum of one plain tensor that they wait for: what Python
 * would do around the call. Each step costs three times as much where another rank had the core meanwhile. */
#include "types.h"

/* Arguments of `bind_group_sum`, then names of attributes. */
enum { OPTIONS, UNSET, KIND, VIEW, LEFT, ACQUIRE, RELEASE, RUN, OPERATOR, GIVEN };
enum { IS_ISSUED = GIVEN, LIMIT, REDUCTION, PARTS };

static PyObject *part(PyObject *self, int index) { return PyTuple_GetItem(self, index); }

/* Whether an attribute of the options is equal to what is expected; -1 and an error where that cannot be said. */
static int says(PyObject *options, PyObject *name, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(options, name);
    int same = value == NULL ? -1 : value == expected ? 1 : PyObject_RichCompareBool(value, expected, Py_EQ);
    Py_XDECREF(value);
    return same;
}

/* Whether it is such a call: 1, 0, or -1 and an error. */
static int is_usual(PyObject *self, PyObject *tensors, PyObject *options) {
    if (!PyList_CheckExact(tensors) || PyList_Size(tensors) != 1 || (PyObject *)Py_TYPE(options) != part(self, OPTIONS))
        return 0;
    int usual = says(options, part(self, IS_ISSUED), Py_False);
    usual = usual <= 0 ? usual : says(options, part(self, LIMIT), part(self, UNSET));
    return usual <= 0 ? usual : says(options, part(self, REDUCTION), part(self, KIND));
}

/* Run it, with the turn, which is given back; NULL and an error where it fails. */
static PyObject *run_in_turn(PyObject *self, PyObject *items) {
    PyObject *kind, *error, *trace;
    PyObject *result = PyObject_CallFunctionObjArgs(part(self, RUN), part(self, OPERATOR), items, items, NULL);
    PyErr_Fetch(&kind, &error, &trace);
    Py_XDECREF(PyObject_CallFunctionObjArgs(part(self, RELEASE), NULL));
    if (kind != NULL)
        PyErr_Restore(kind, error, trace);
    Py_XDECREF(result);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_True);
}

static PyObject *group_sum(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "a sum takes tensors and options, got %zd arguments", count);
    int usual = is_usual(self, args[0], args[1]);
    if (usual <= 0)
        return usual < 0 ? NULL : Py_NewRef(Py_False);
    PyObject *items = PyObject_CallFunctionObjArgs(part(self, VIEW), PyList_GetItem(args[0], 0), Py_True, NULL);
    PyObject *outcome = items == NULL ? NULL : Py_NewRef(Py_False);
    if (items != NULL && items != Py_None && PyObject_Size(part(self, LEFT)) == 0) {
        PyObject *turn = PyObject_CallFunctionObjArgs(part(self, ACQUIRE), Py_False, NULL);
        if (turn != Py_False) {
            Py_DECREF(outcome);
            outcome = turn == NULL ? NULL : run_in_turn(self, items);
        }
        Py_XDECREF(turn);
    }
    Py_XDECREF(items);
    return outcome;
}

PyObject *bind_group_sum(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"group_sum", (PyCFunction)(void (*)(void))group_sum, METH_FASTCALL, NULL};
    static const char *names[] = {"asyncOp", "timeout", "reduceOp"};
    PyObject *self = PyTuple_New(PARTS), *made = NULL;
    (void)module;
    if (PyTuple_Size(args) != GIVEN)
        PyErr_Format(PyExc_TypeError, "a sum is bound to %d things, got %zd", GIVEN, PyTuple_Size(args));
    else if (self != NULL) {
        for (int index = 0; index < PARTS; index++)
            PyTuple_SetItem(self, index, index < GIVEN ? Py_NewRef(PyTuple_GetItem(args, index))
                                                       : PyUnicode_InternFromString(names[index - GIVEN]));
        made = PyErr_Occurred() ? NULL : PyCFunction_New(&definition, self);
    }
    Py_XDECREF(self);
    return made;
}
