/* Items of an attention call over threads, which live as long as the call: to start one costs about 20 us, less than to
 * wake one of a Python pool, and there is nothing to keep over a fork. */
#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_THREADS = 1024, ALIGNMENT = 64 };

typedef struct {
    const Attention *call;
    AttendItem attend;
    char *memory;
    size_t bytes; /* of memory of a worker: whole cache lines, since items are */
    _Atomic int64_t workers, next;
    int64_t end;
} Work;

static void *run_worker(void *argument) {
    Work *work = argument;
    int64_t number = atomic_fetch_add_explicit(&work->workers, 1, memory_order_relaxed), item;
    float *memory = (float *)(void *)(work->memory + (size_t)number * work->bytes);
    while ((item = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < work->end)
        work->attend(work->call, item, memory);
    return NULL;
}

int run_items(const Attention *call, AttendItem attend, int64_t first, int64_t end, int threads) {
    int64_t count = end - first < threads ? end - first : threads;
    if (count < 1)
        count = 1;
    if (count > MOST_THREADS)
        count = MOST_THREADS;
    size_t bytes = (size_t)item_floats(call) * sizeof(float); /* at most 2^40: heads have up to 2^30 elements */
    char *memory = aligned_alloc(ALIGNMENT, (size_t)count * bytes + ALIGNMENT);
    if (memory == NULL)
        return 0;
    Work work = {call, attend, memory, bytes, 0, first, end};
    pthread_t workers[MOST_THREADS];
    int64_t started = 1;
    while (started < count && pthread_create(&workers[started], NULL, run_worker, &work) == 0)
        started++; /* where no more can be had, the others do it */
    run_worker(&work);
    for (int64_t i = 1; i < started; i++)
        pthread_join(workers[i], NULL);
    free(memory);
    return 1;
}
