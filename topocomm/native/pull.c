/* Copies pieces of other ranks' values from where these lie, in one copy: see engine.h. From another process by the
 * system (process_vm_readv of Linux, which may refuse it), from a thread of this one as any memory. */
#define _GNU_SOURCE
#include "types.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/uio.h>
#endif

/* Copy bytes at an address in a process: 0, or why that fails, as an errno. */
static int read_memory(int64_t process, int64_t from, char *to, int64_t bytes) {
#if defined(__linux__)
    while (process > 0 && bytes > 0) {
        struct iovec target = {to, (size_t)bytes}, source = {(void *)(intptr_t)from, (size_t)bytes};
        ssize_t got = process_vm_readv((pid_t)process, &target, 1, &source, 1, 0); /* at most 2 GiB */
        if (got <= 0)
            return got < 0 ? errno : EFAULT;
        to += got, from += got, bytes -= got;
    }
    return process > 0 ? 0 : ESRCH;
#else
    (void)process, (void)from, (void)to, (void)bytes;
    return ENOSYS;
#endif
}

static _Atomic int64_t *word_at(const Engine *engine, int64_t place) {
    return (_Atomic int64_t *)(void *)(engine->memory + place);
}

void publish_addresses(const Engine *engine) {
    const Address *address = engine->section[ADDRESSES];
    for (const Address *end = address + engine->count[ADDRESSES]; address < end; address++)
        atomic_store_explicit(word_at(engine, address->place),
                              address->array < 0 ? getpid() : (intptr_t)engine->data[address->array],
                              memory_order_relaxed);
}

/* Who wrote an address takes it back by a process of 0, before its arrays may change: what was read until then counts. */
int pull_pieces(Engine *engine, int64_t count) {
    const Pull *pull = (const Pull *)engine->section[PULLS] + engine->pull;
    for (const Pull *end = pull + count; pull < end; pull++) {
        _Atomic int64_t *owner = word_at(engine, pull->process);
        int64_t process = atomic_load_explicit(owner, memory_order_acquire);
        int64_t from = atomic_load_explicit(word_at(engine, pull->address), memory_order_relaxed) + pull->at;
        char *to = engine->data[pull->array] + pull->to;
        int here = process == getpid();
        engine->unread = here ? 0 : read_memory(process, from, to, pull->bytes);
        if (here && from != (intptr_t)to)
            memcpy(to, (const char *)(intptr_t)from, (size_t)pull->bytes);
        atomic_thread_fence(memory_order_acquire);
        if (!engine->unread && atomic_load_explicit(owner, memory_order_relaxed) != process)
            engine->unread = ESRCH;
        if (engine->unread)
            return 0;
    }
    return 1;
}

void withdraw_addresses(const Engine *engine) {
    const Address *address = engine->section[ADDRESSES];
    for (const Address *end = address + engine->count[ADDRESSES]; address < end; address++)
        if (address->array < 0)
            atomic_store_explicit(word_at(engine, address->place), 0, memory_order_seq_cst);
}

/* Whether the ends of memory can be read, by one call of the system. */
static int ends_can_be_read(char *data, int64_t bytes) {
#if defined(__linux__)
    char got[2];
    struct iovec target = {got, sizeof got}, ends[2] = {{data, 1}, {data + bytes - 1, 1}};
    return process_vm_readv(getpid(), &target, 1, ends, 2, 0) == sizeof got;
#else
    return (void)data, (void)bytes, 0;
#endif
}

/* Memory that could be read when last tried, at places by address: to try takes half as long as to send a short value. */
static struct {
    const char *data;
    int64_t bytes;
} readable[256];

int can_be_read(const EngineObject *self, PyObject *const *arrays) {
    for (int field = 0; field < (self->engine.count[ADDRESSES] > 0 ? self->engine.fields : 0); field++) {
        char *data = ((Array *)arrays[field])->data;
        int64_t bytes = self->engine.array_bytes[field];
        unsigned place = (uint64_t)(uintptr_t)data * 0x9e3779b97f4a7c15 >> 56; /* its bits mixed: Fibonacci hashing */
        if (bytes == 0 || (readable[place].data == data && readable[place].bytes == bytes))
            continue;
        if (!ends_can_be_read(data, bytes))
            return 0;
        readable[place].data = data, readable[place].bytes = bytes;
    }
    return 1;
}

PyObject *read_process(PyObject *module, PyObject *args) {
    long long process, address;
    Py_buffer into;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLw*:read_process", &process, &address, &into))
        return NULL;
    int wrong = read_memory(process, address, into.buf, into.len);
    PyBuffer_Release(&into);
    return PyLong_FromLong(wrong);
}
