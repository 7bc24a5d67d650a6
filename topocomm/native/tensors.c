/* NumPy arrays on the memory of torch's tensors, by the C functions of DLPack 1.3 that torch gives out with
 * its type: what `Tensor.numpy()` does, in a fifth of its time, which matters where the caches are cold. */
#include "types.h"

enum { HOST = 1, CODES = 7, WIDTHS = 5, COMPLEX = 5 }; /* kDLCPU; kinds of numbers, bool the last; 8 to 64 bits */

typedef struct { /* DLTensor */
    char *data;
    int32_t device, device_number, axes;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t *sizes, *strides;
    uint64_t offset;
} Tensor;

typedef struct { /* DLPackExchangeAPI */
    uint32_t major, minor;
    const void *earlier;
    void (*others[3])(void);
    int (*look)(PyObject *, Tensor *);
} Exchange;

typedef struct {
    PyObject *type, *strided, *is_negative, *layout, *gradients, *dtypes[CODES * WIDTHS];
    int (*look)(PyObject *, Tensor *);
} View;

/* The place of a kind of numbers in the table; -1 where there is none. */
static int place_of(long code, long bits, long lanes) {
    int known = code >= 0 && code < CODES && (bits == 8 || bits == 16 || bits == 32 || bits == 64) && lanes == 1;
    return known && code != COMPLEX ? (int)(code * WIDTHS + bits / 16) : -1;
}

/* Whether an attribute, or what a function says of a tensor, is this; takes `answer`. */
static int is_this(PyObject *answer, PyObject *wanted) {
    Py_XDECREF(answer);
    return answer == wanted;
}

/* Whether its items lie one after the other in host memory, as they are: torch may note a change of sign instead of
 * making it. The layout comes first: an error of `look` takes milliseconds. */
static int is_plain(const View *self, PyObject *object, Tensor *tensor) {
    if ((PyObject *)Py_TYPE(object) != self->type || !is_this(PyObject_GetAttr(object, self->layout), self->strided) ||
        self->look(object, tensor) != 0 || tensor->device != HOST || tensor->data == NULL || tensor->axes > MOST_AXES)
        return 0;
    int64_t items = 1;
    for (int axis = tensor->axes - 1; axis >= 0; items *= tensor->sizes[axis--])
        if (tensor->sizes[axis] != 1 && tensor->strides != NULL && tensor->strides[axis] != items)
            return 0;
    return items > 0 && is_this(PyObject_GetAttr(object, self->gradients), Py_False) &&
           is_this(PyObject_CallFunctionObjArgs(self->is_negative, object, NULL), Py_False);
}

static PyObject *view(PyObject *capsule, PyObject *const *args, Py_ssize_t count) {
    const View *self = PyCapsule_GetPointer(capsule, NULL);
    Tensor tensor;
    Py_ssize_t sizes[MOST_AXES] = {1};
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "a view takes a tensor and whether it is flat, got %zd arguments", count);
    int plain = is_plain(self, args[0], &tensor), place = plain ? place_of(tensor.code, tensor.bits, tensor.lanes) : -1;
    if (place < 0 || self->dtypes[place] == NULL) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    int flat = args[1] == Py_True;
    for (int axis = 0; axis < tensor.axes; axis++)
        if (flat)
            sizes[0] *= (Py_ssize_t)tensor.sizes[axis];
        else
            sizes[axis] = (Py_ssize_t)tensor.sizes[axis];
    return array_on(self->dtypes[place], flat ? 1 : tensor.axes, sizes, tensor.data + tensor.offset, args[0]);
}

static void free_view(PyObject *capsule) {
    View *self = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(self->type);
    Py_XDECREF(self->strided);
    Py_XDECREF(self->is_negative);
    Py_XDECREF(self->layout);
    Py_XDECREF(self->gradients);
    for (int place = 0; place < CODES * WIDTHS; place++)
        Py_XDECREF(self->dtypes[place]);
    PyMem_Free(self);
}

/* Take what numbers are called, as (code, bits, dtype). */
static int take_dtypes(View *self, PyObject *dtypes) {
    for (Py_ssize_t index = 0; index < PyTuple_Size(dtypes); index++) {
        int code, bits;
        PyObject *dtype;
        if (!PyArg_ParseTuple(PyTuple_GetItem(dtypes, index), "iiO", &code, &bits, &dtype))
            return 0;
        int place = place_of(code, bits, 1);
        if (place < 0 || self->dtypes[place] != NULL)
            return PyErr_Format(PyExc_ValueError, "no kind of numbers, or given twice: %d, %d", code, bits) != NULL;
        self->dtypes[place] = Py_NewRef(dtype);
    }
    return 1;
}

PyObject *bind_view(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"view", (PyCFunction)(void (*)(void))view, METH_FASTCALL, NULL};
    PyObject *type, *functions, *strided, *is_negative, *dtypes, *made = NULL;
    View *self = find_numpy() < 0 ? NULL : PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(self, NULL, free_view);
    (void)module;
    if (capsule != NULL && PyArg_ParseTuple(args, "OOOOO!:bind_view", &type, &functions, &strided, &is_negative,
                                            &PyTuple_Type, &dtypes)) {
        const Exchange *exchange = PyCapsule_GetPointer(functions, "dlpack_exchange_api");
        self->type = Py_NewRef(type), self->strided = Py_NewRef(strided), self->is_negative = Py_NewRef(is_negative);
        self->layout = PyUnicode_InternFromString("layout");
        self->gradients = PyUnicode_InternFromString("requires_grad");
        self->look = exchange != NULL && exchange->major == 1 ? exchange->look : NULL;
        if (exchange != NULL && self->look == NULL)
            PyErr_Format(PyExc_ImportError, "tensors have version %u of DLPack; expected 1", exchange->major);
        else if (exchange != NULL && self->layout != NULL && self->gradients != NULL && take_dtypes(self, dtypes))
            made = PyCFunction_New(&definition, capsule);
    }
    Py_XDECREF(capsule);
    return made;
}
