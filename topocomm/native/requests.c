/* The type Requests: persistent requests of MPI, started and tested without Python (see _native.pyi).
 *
 * MPI is called by two addresses, which Python finds in the library that mpi4py loaded. Requests and statuses are opaque
 * memory, so that no header of a library is needed. */
#define _GNU_SOURCE
#include "types.h"

#include <sched.h>
#include <structmember.h>
#include <time.h>

static const struct timespec NAP = {0, 20000}; /* of a rank that shares its core, once it has waited */

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void start_requests(Requests *requests) {
    requests->code = requests->start_all((int)requests->count, requests->handles);
}

int test_requests(Requests *requests, long long tests) {
    int through = 0;
    for (long long i = 0; i < tests && requests->code == 0 && !through; i++)
        requests->code = requests->test_all((int)requests->count, requests->handles, &through, requests->statuses);
    return through && requests->code == 0;
}

int await_requests(Requests *requests, long long limit_us) {
    if (test_requests(requests, limit_us > 0 ? requests->tests : 1))
        return 1;
    int64_t began_us = limit_us > 0 ? now_us() : 0, now = began_us;
    for (; requests->code == 0 && now < began_us + limit_us; now = now_us()) {
        if (requests->tests > 1 || now < began_us + PATIENCE_NS / 1000)
            sched_yield();
        else
            nanosleep(&NAP, NULL);
        if (test_requests(requests, 1))
            return 1;
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

static PyMemberDef requests_members[] = {
    {"code", T_INT, offsetof(RequestsObject, requests.code), READONLY, NULL},
    {"count", T_LONGLONG, offsetof(RequestsObject, requests.count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot requests_slots[] = {
    {Py_tp_new, requests_new},
    {Py_tp_dealloc, requests_dealloc},
    {Py_tp_members, requests_members},
    {0, NULL},
};

PyType_Spec requests_spec = {
    "topocomm.native._native.Requests", sizeof(RequestsObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    requests_slots,
};
