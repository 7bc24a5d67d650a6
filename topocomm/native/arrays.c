/* NumPy's arrays: see types.h. */
#include "types.h"

enum { ABI_VERSION = 0, ARRAY_TYPE = 2, NEW_FROM_DESCR = 94 }; /* places in NumPy's function table */

typedef unsigned (*AbiVersion)(void);
typedef PyObject *(*NewFromDescr)(PyTypeObject *, PyObject *, int, const Py_ssize_t *, const Py_ssize_t *, void *, int,
                                  PyObject *);

PyTypeObject *array_type;
static NewFromDescr new_from_descr;

int find_numpy(void) {
    if (array_type != NULL)
        return 0;
    PyObject *core = PyImport_ImportModule("numpy._core._multiarray_umath");
    PyObject *capsule = core == NULL ? NULL : PyObject_GetAttrString(core, "_ARRAY_API");
    void **table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(core);
    Py_XDECREF(capsule); /* the module keeps it */
    if (table == NULL)
        return -1;
    unsigned version = ((AbiVersion)table[ABI_VERSION])();
    if (version >> 24 != 2) {
        PyErr_Format(PyExc_ImportError, "the binary interface of NumPy is 0x%x; expected that of NumPy 2", version);
        return -1;
    }
    new_from_descr = (NewFromDescr)table[NEW_FROM_DESCR];
    array_type = (PyTypeObject *)table[ARRAY_TYPE];
    return 0;
}

int fits(const EngineObject *engine, PyObject *const *arrays, int first, int flags) {
    for (int index = first; index < first + engine->engine.fields; index++) {
        const Array *array = (Array *)arrays[index], *kind = engine->kinds[index];
        if (Py_TYPE(arrays[index]) != array_type || (array->flags & flags) != flags || array->axes != kind->axes ||
            (array->dtype != kind->dtype && PyObject_RichCompareBool(array->dtype, kind->dtype, Py_EQ) != 1))
            return 0;
        for (int axis = 0; axis < kind->axes; axis++)
            if (array->sizes[axis] != kind->sizes[axis])
                return 0;
    }
    return 1;
}

int take_columns(PyObject *args, Py_buffer *views, const Py_ssize_t *sizes, int count, int written) {
    if (PyTuple_Size(args) != count) {
        PyErr_Format(PyExc_TypeError, "expected %d columns, got %zd", count, PyTuple_Size(args));
        return -1;
    }
    for (int taken = 0; taken < count; taken++) {
        Py_ssize_t size = sizes == NULL ? 8 : sizes[taken];
        int flags = taken < count - written ? PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE;
        int wrong = PyObject_GetBuffer(PyTuple_GetItem(args, taken), &views[taken], flags) < 0;
        if (!wrong && views[taken].itemsize == size)
            continue;
        if (!wrong)
            PyErr_Format(PyExc_TypeError, "column %d: expected items of %zd bytes, got %zd", taken, size,
                         views[taken].itemsize);
        for (taken += !wrong; taken-- > 0;)
            PyBuffer_Release(&views[taken]);
        return -1;
    }
    return 0;
}

PyObject *new_array(const Array *kind) {
    Py_INCREF(kind->dtype); /* the function takes one */
    return new_from_descr(array_type, kind->dtype, kind->axes, kind->sizes, NULL, NULL, 0, NULL);
}

PyObject *array_on(PyObject *dtype, int axes, const Py_ssize_t *sizes, void *data, PyObject *base) {
    Py_INCREF(dtype);
    PyObject *array = new_from_descr(array_type, dtype, axes, sizes, NULL, data, PLAIN | WRITEABLE, NULL);
    if (array != NULL)
        ((Array *)array)->base = Py_NewRef(base);
    return array;
}

PyObject *describe(PyObject *module, PyObject *object) {
    (void)module;
    if (find_numpy() < 0)
        return NULL;
    if (!PyObject_TypeCheck(object, array_type))
        return PyErr_Format(PyExc_TypeError, "expected a NumPy array, got %R", (PyObject *)Py_TYPE(object));
    const Array *array = (Array *)object;
    PyObject *sizes = PyTuple_New(array->axes < 0 || array->axes > MOST_AXES ? 0 : array->axes);
    for (int axis = 0; sizes != NULL && axis < PyTuple_Size(sizes); axis++)
        PyTuple_SetItem(sizes, axis, PyLong_FromSsize_t(array->sizes[axis]));
    return Py_BuildValue("(KiNOi)", (unsigned long long)(uintptr_t)array->data, Py_TYPE(object) == array_type, sizes,
                         array->dtype, array->flags);
}
