/* The recorder's memory, as recorder.py describes it: calls so far, then tag and time of the last ones in turn. */
#ifndef TOPOCOMM_RECORD_H
#define TOPOCOMM_RECORD_H

#include <stdint.h>
#include <time.h>

/* Calls that a record of so many bytes keeps: a power of two where it fits. */
static inline int64_t places_of(int64_t record_bytes) { return (record_bytes / 8 - 1) / 2; }

/* Note a call; whether it is time for a sweep. */
static inline int note_call(int64_t *record, int64_t places, long long tag, long long sweep_mask) {
    struct timespec now;
    int64_t number = ++*record, *place = record + 1 + 2 * (number & (places - 1));
    clock_gettime(CLOCK_MONOTONIC, &now);
    place[0] = tag, place[1] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return (number & sweep_mask) == 0;
}

#endif
