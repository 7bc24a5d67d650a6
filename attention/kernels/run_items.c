/* Items of an attention call over threads, which live as long as the call: to start one costs about 20 us, less than to
 * wake one of a Python pool, and there is nothing to keep over a fork. */
#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_THREADS = 1024, ALIGNMENT = 64 };

typedef struct {
    const Attention *call;
    AttendItem attend;
    _Atomic int64_t next;
    int64_t end;
} Work;

typedef struct {
    Work *work;
    float *memory;
    pthread_t thread;
} Worker;

static void *run_worker(void *argument) {
    Worker *worker = argument;
    Work *work = worker->work;
    int64_t item;
    while ((item = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < work->end)
        work->attend(work->call, item, worker->memory);
    return NULL;
}

int run_items(const Attention *call, AttendItem attend, int64_t first, int64_t end, int threads) {
    int64_t count = end - first < threads ? end - first : threads;
    if (count < 1)
        count = 1;
    if (count > MOST_THREADS)
        count = MOST_THREADS;
    size_t bytes, all; /* of a worker: whole cache lines, since items are */
    if (__builtin_mul_overflow((size_t)item_floats(call), sizeof(float), &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)count, &all))
        return 0;
    char *memory = aligned_alloc(ALIGNMENT, all + ALIGNMENT);
    Worker *workers = malloc((size_t)count * sizeof *workers);
    int enough = memory != NULL && workers != NULL;
    if (enough) {
        Work work = {call, attend, first, end};
        int64_t started = 1;
        for (int64_t i = 0; i < count; i++)
            workers[i] = (Worker){.work = &work, .memory = (float *)(memory + (size_t)i * bytes)};
        while (started < count && pthread_create(&workers[started].thread, NULL, run_worker, &workers[started]) == 0)
            started++; /* where no more can be had, the others do it */
        run_worker(&workers[0]);
        for (int64_t i = 1; i < started; i++)
            pthread_join(workers[i].thread, NULL);
    }
    free(workers);
    free(memory);
    return enough;
}
