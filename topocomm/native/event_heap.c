/* Events to come, the earliest first: planning/cost/events.py says which are one batch. */
#include "event_heap.h"

#include <math.h>
#include <stdlib.h>

static int is_before(const Batch *one, const Batch *other) {
    return one->us < other->us || (one->us == other->us && one->number < other->number);
}

/* Add a batch; `timed` or `tasks` has its tasks: 0, or -1 without memory. */
static int push_batch(EventHeap *heap, double us, int kind, const Timed *timed, const int32_t *tasks, int64_t count) {
    if (heap->count == heap->room) {
        int64_t room = 2 * heap->room + 64;
        Batch *batches = realloc(heap->batches, (size_t)room * sizeof *batches);
        if (batches == NULL)
            return -1;
        heap->batches = batches, heap->room = room;
    }
    Batch batch = {us, ++heap->pushed, malloc((size_t)count * sizeof(int32_t)), (int32_t)count, kind};
    if (batch.tasks == NULL)
        return -1;
    for (int64_t each = 0; each < count; each++)
        batch.tasks[each] = timed == NULL ? tasks[each] : timed[each].task;
    int64_t at = heap->count++;
    for (; at > 0 && is_before(&batch, &heap->batches[(at - 1) / 2]); at = (at - 1) / 2)
        heap->batches[at] = heap->batches[(at - 1) / 2];
    heap->batches[at] = batch;
    return 0;
}

Batch pop_batch(EventHeap *heap) {
    Batch top = heap->batches[0], batch = heap->batches[--heap->count];
    int64_t at = 0, child;
    while ((child = 2 * at + 1) < heap->count) {
        if (child + 1 < heap->count && is_before(&heap->batches[child + 1], &heap->batches[child]))
            child++;
        if (!is_before(&heap->batches[child], &batch))
            break;
        heap->batches[at] = heap->batches[child];
        at = child;
    }
    heap->batches[at] = batch;
    return top;
}

static int compare_timed(const void *a, const void *b) {
    const Timed *one = a, *other = b;
    if (one->us != other->us)
        return one->us < other->us ? -1 : 1;
    return (one->place > other->place) - (one->place < other->place);
}

int push_events(EventHeap *heap, int kind, const int32_t *tasks, int64_t count, const double *us, double now,
                double same_us) {
    double low = INFINITY, high = -INFINITY;
    if (!count)
        return 0;
    if (count > heap->timed_room) {
        Timed *timed = realloc(heap->timed, (size_t)(2 * count) * sizeof *timed);
        if (timed == NULL)
            return -1;
        heap->timed = timed, heap->timed_room = 2 * count;
    }
    for (int64_t each = 0; each < count; each++) {
        double at = now + us[tasks[each]];
        heap->timed[each] = (Timed){at, tasks[each], (int32_t)each};
        low = at < low ? at : low;
        high = at > high ? at : high;
    }
    if (high - low <= same_us)
        return push_batch(heap, high, kind, NULL, tasks, count);
    qsort(heap->timed, (size_t)count, sizeof *heap->timed, compare_timed);
    int64_t first = 0;
    for (int64_t each = 0; each < count; each++)
        if (each == count - 1 || heap->timed[each + 1].us - heap->timed[each].us > same_us) {
            if (push_batch(heap, heap->timed[each].us, kind, heap->timed + first, NULL, each + 1 - first) < 0)
                return -1;
            first = each + 1;
        }
    return 0;
}

void close_heap(EventHeap *heap) {
    while (heap->count)
        free(heap->batches[--heap->count].tasks);
    free(heap->batches);
    free(heap->timed);
}
