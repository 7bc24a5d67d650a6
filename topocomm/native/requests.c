/* The type Requests: persistent requests of MPI, started and tested without Python (see _native.pyi).
 *
 * MPI is called by two addresses, which Python finds in the library that mpi4py loaded. Requests and statuses are opaque
 * memory, so that no header of a library is needed. */
#define _GNU_SOURCE
#include "types.h"

#include <sched.h>
#include <time.h>

enum { CLOCK_EVERY = 64 }; /* tests between two looks at the clock */

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int test(Requests *requests, int *through) {
    requests->code = requests->test_all((int)requests->count, requests->handles, through, requests->statuses);
    return *through || requests->code != 0;
}

void start_requests(Requests *requests) {
    requests->code = requests->start_all((int)requests->count, requests->handles);
}

int await_requests(Requests *requests, long long limit_us) {
    int through = 0;
    for (long long i = 0; i < (limit_us > 0 ? requests->tests : 1) && requests->code == 0; i++)
        if (test(requests, &through))
            return through && requests->code == 0;
    for (int64_t until_us = limit_us > 0 ? now_us() + limit_us : 0; requests->code == 0 && now_us() < until_us;)
        for (int i = 0; i < CLOCK_EVERY; i++) {
            sched_yield(); /* before the test: what comes meanwhile is seen at once */
            if (test(requests, &through))
                return through && requests->code == 0;
        }
    return 0;
}

static PyObject *requests_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    static char *names[] = {"start_all", "test_all", "handles", "statuses", "count", "tests", NULL};
    unsigned long long start_all, test_all;
    RequestsObject *self = (RequestsObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Requests *requests = &self->requests;
    int right = PyArg_ParseTupleAndKeywords(args, named, "KKw*w*LL:Requests", names, &start_all, &test_all,
                                            &self->handles, &self->statuses, &requests->count, &requests->tests);
    if (right) {
        requests->start_all = (StartAll)(uintptr_t)start_all, requests->test_all = (TestAll)(uintptr_t)test_all;
        requests->handles = self->handles.buf, requests->statuses = self->statuses.buf;
        right = requests->start_all != NULL && requests->test_all != NULL && requests->count > 0 &&
                requests->count <= INT32_MAX && self->handles.len % requests->count == 0 && self->handles.len > 0 &&
                self->statuses.len % requests->count == 0 && self->statuses.len > 0 && requests->tests > 0;
        if (!right)
            fail("requests take two functions, and handles and statuses of so many");
    }
    if (!right) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *requests_code(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromLong(((RequestsObject *)object)->requests.code);
}

static void requests_dealloc(PyObject *object) {
    RequestsObject *self = (RequestsObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyBuffer_Release(&self->handles);
    PyBuffer_Release(&self->statuses);
    PyObject_Free(object);
    Py_DECREF(type);
}

int are_requests(PyObject *object) {
    return (destructor)PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == requests_dealloc;
}

static PyGetSetDef requests_properties[] = {{"code", requests_code, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot requests_slots[] = {
    {Py_tp_new, requests_new},
    {Py_tp_dealloc, requests_dealloc},
    {Py_tp_getset, requests_properties},
    {0, NULL},
};

PyType_Spec requests_spec = {
    "topocomm.native._native.Requests", sizeof(RequestsObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    requests_slots,
};
