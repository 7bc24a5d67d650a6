/* Items of an attention call over threads. */
#ifndef ATTENTION_RUN_ITEMS_H
#define ATTENTION_RUN_ITEMS_H

#include "attend.h"

/* Run items [first, end) over up to `threads` threads, this one among them; 0: out of memory, and nothing done. Items do
 * not depend on each other, so the result's bits do not depend on the threads. */
int run_items(const Attention *call, AttendItem attend, int64_t first, int64_t end, int threads);

#endif
