/* Tensors that Python gives: see tensors.h. */
#include "tensors.h"

#include "vectors.h"

/* https://dmlc.github.io/dlpack/latest/c_api.html, the capsule "dltensor". */
typedef struct DLTensor {
    void *data;
    int32_t device_kind, device_number, ndim;
    uint8_t code, bits; /* of the dtype */
    uint16_t lanes;
    int64_t *shape, *strides; /* strides NULL: contiguous */
    uint64_t byte_offset;
} DLTensor;

/* Likewise, the capsule "dlpack_exchange_api" of a class of tensors. */
typedef struct {
    uint32_t major, minor;
    void *older, *allocate, *to_managed, *from_managed;
    LookAtTensor look;
} Exchange;

enum {
    DLPACK_MAJOR = 1,
    DL_CPU = 1,
    MOST_WIDTH = 1 << 30, /* elements of a head; no product of sizes then overflows */
};

static int dtype_of(const DLTensor *array) { return (array->lanes - 1) << 16 | array->code << 8 | array->bits; }

/* The array, where it is in host memory and of a dtype, 0: of any that is loaded; NULL and an error where it is not. */
static const DLTensor *checked(const char *name, const DLTensor *array, int dtype) {
    if (array == NULL)
        return NULL;
    int its = dtype_of(array), right = dtype != 0 ? its == dtype : its == FLOAT32 || its == BFLOAT16 || its == FLOAT16;
    if (right && array->device_kind == DL_CPU)
        return array;
    const char *wanted = dtype == 0 ? "float32, bfloat16 or float16" : dtype == FLOAT32 ? "float32" : "int64";
    PyErr_Format(PyExc_ValueError, "attend: %s must be %s in host memory", name, wanted);
    return NULL;
}

static const DLTensor *take_array(const char *name, PyObject *capsule, int dtype) {
    return checked(name, PyCapsule_GetPointer(capsule, "dltensor"), dtype);
}

static int read_tensor(const char *name, const DLTensor *array, int axes, Tensor *tensor) {
    if (array == NULL)
        return 0;
    if (array->ndim != axes)
        return FAIL("attend: %s must have %d axes, got %d", name, axes, array->ndim);
    tensor->dtype = dtype_of(array);
    tensor->data = array->data != NULL ? (const char *)array->data + array->byte_offset : "";
    int64_t contiguous = 1;
    for (int axis = axes - 1; axis >= 0; axis--) {
        tensor->sizes[axis] = array->shape[axis];
        tensor->strides[axis] = array->strides != NULL ? array->strides[axis] : contiguous;
        contiguous *= array->strides != NULL ? 1 : array->shape[axis];
    }
    return 1;
}

int take_tensor(const char *name, PyObject *capsule, int dtype, int axes, Tensor *tensor) {
    return read_tensor(name, take_array(name, capsule, dtype), axes, tensor);
}

LookAtTensor take_exchange(PyObject *capsule) {
    const Exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (exchange == NULL || (exchange->major == DLPACK_MAJOR && exchange->look != NULL))
        return exchange == NULL ? NULL : exchange->look;
    PyErr_Format(PyExc_ValueError, "attend: torch exchanges tensors by another version of DLPack");
    return NULL;
}

int look_at(LookAtTensor look, PyObject *given, int dtype, Tensor *tensor) {
    DLTensor array;
    return look(given, &array) == 0 && read_tensor("a tensor", checked("a tensor", &array, dtype), 4, tensor);
}

static int read_floats(const char *name, const DLTensor *array, int64_t items, float **floats) {
    if (array == NULL)
        return 0;
    uint64_t count = 1; /* may overflow where strides do not fit */
    int dense = 1;
    for (int axis = array->ndim - 1; axis >= 0; axis--) {
        dense = dense && (array->strides == NULL || array->shape[axis] == 1 || array->strides[axis] == (int64_t)count);
        count *= (uint64_t)array->shape[axis];
    }
    *floats = (float *)(void *)((char *)array->data + array->byte_offset);
    if (count != (uint64_t)items || (items > 0 && (!dense || (uintptr_t)*floats % sizeof **floats != 0)))
        return FAIL("attend: %s must have %zd aligned contiguous items", name, (Py_ssize_t)items);
    return 1;
}

int take_floats(const char *name, PyObject *capsule, int64_t items, float **floats) {
    return read_floats(name, take_array(name, capsule, FLOAT32), items, floats);
}

int look_at_floats(LookAtTensor look, PyObject *given, int64_t items, float **floats) {
    DLTensor array;
    return look(given, &array) == 0 && read_floats("a tensor", checked("a tensor", &array, FLOAT32), items, floats);
}

int fit_tensors(Attention *call, int paged) {
    const int64_t *q = call->q.sizes, *k = call->k.sizes, *v = call->v.sizes;
    int dense = k[0] == 0 || k[1] == 0 || k[2] == 0 ||
                ((k[3] <= 1 || call->k.strides[3] == 1) && (v[3] <= 1 || call->v.strides[3] == 1));
    if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || call->k.dtype != call->v.dtype || q[3] != k[3] || !dense ||
        (!paged && q[0] != k[0]) || k[1] == 0 || q[1] % k[1] != 0 || k[3] > MOST_WIDTH || v[3] > MOST_WIDTH)
        return FAIL("attend: q, k and v do not fit each other");
    call->rows = q[1] / k[1] * q[2];
    call->tiles = (call->rows + TILE_ROWS - 1) / TILE_ROWS;
    return 1;
}
