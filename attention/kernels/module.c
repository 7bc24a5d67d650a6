/* The module attention.kernels._native: what Python asks of the compiled part. Limited API of Python 3.11. */
#include "attend_call.h"
#include "merge_fold.h"

PyDoc_STRVAR(merge_fold_address_doc, "merge_fold_address()\n--\n\nReturn the address of the fold of LOGSUMEXP.");
PyDoc_STRVAR(attend_doc, "attend(q, k, v, out, lse, scale, *, softcap=0.0, slopes=None, visible=None, order=None,\n"
                         "       pages=None, segments=None, first=0, end=-1, threads=1, processor=None)\n--\n\n"
                         "Write the attention of query rows over keys; the stub says what the arguments are.");
PyDoc_STRVAR(processors_doc, "processors()\n--\n\nReturn the kinds of processors whose kernels run here, best first.");

static PyObject *merge_fold_address(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromVoidPtr((void *)(intptr_t)BEST(merge_fold));
}

static PyMethodDef methods[] = {
    {"merge_fold_address", merge_fold_address, METH_NOARGS, merge_fold_address_doc},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_VARARGS | METH_KEYWORDS, attend_doc},
    {"processors", processors, METH_NOARGS, processors_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "attention.kernels._native", "Kernels of attention, in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
