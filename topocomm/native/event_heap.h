/* Events to come, the earliest first. */
#ifndef TOPOCOMM_EVENT_HEAP_H
#define TOPOCOMM_EVENT_HEAP_H

#include <stdint.h>

typedef struct { /* equal events at one time */
    double us;
    int64_t number; /* in the order in which they were pushed */
    int32_t *tasks; /* of the caller, who frees it, once popped */
    int32_t count, kind;
} Batch;

typedef struct { /* a task among others that are pushed together */
    double us;
    int32_t task, place;
} Timed;

typedef struct {
    Batch *batches;
    Timed *timed;
    int64_t count, room, timed_room, pushed;
} EventHeap;

/* Add events of tasks, us[task] after `now`; those within `same_us` are one batch: 0, or -1 without memory. */
int push_events(EventHeap *heap, int kind, const int32_t *tasks, int64_t count, const double *us, double now,
                double same_us);

/* Take the earliest batch of one or more, of equal times that which was pushed first. */
Batch pop_batch(EventHeap *heap);

void close_heap(EventHeap *heap);

#endif
