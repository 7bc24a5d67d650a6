/* Waiting of an engine (engine.h): looks at counters, then gives the core away a few times, then sleeps.
 *
 * Ranks that only give their core away take it in turns with each other, at the cost of the share that the system grants
 * them, while the rank that they await has to wait for a core that another program uses. One that sleeps costs nothing,
 * and is run at once when it wakes up. A change of processes is cheaper than a sleep, so it comes first, for as long as it
 * does not take long; after one that does, a rank that shares its core with others sleeps early for a while.
 *
 * A rank that sleeps says in its own line which ranks it awaits, and at which value of their counters: in a mask, of
 * which each of them takes its bit when its counter is there. The last one wakes it up, so it wakes up once. Bits may be
 * taken too early, by a rank 32 positions on or for an earlier sleep: it then looks, and sleeps again. All of this is
 * sequentially consistent: a rank either sees that another one sleeps, or was seen before that slept.
 *
 * All sleep on one word, the number of times that ranks were woken up, and are told apart by the bits of a futex. So the
 * last rank wakes all the others by one call of the system: with a call for each of them the first one awake may take
 * the core of the rank that wakes, and the others sleep on until that has it again. */
#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Words of a line after the counter; SLEEPERS, WAKES in the first only. */
enum { MASK = 1, TARGET, SLEEPERS, CORE, WAKES, CROWDED };

#if defined(__linux__)
static _Atomic int64_t *word_of(const Engine *engine, int64_t rank, int64_t word) {
    return &engine->counters[rank * COUNTER_WORDS + word];
}

static _Atomic int64_t *mask_of(const Engine *engine, int64_t rank) { return word_of(engine, rank, MASK); }

/* A futex has 32 bits: the first half of the word. */
static _Atomic uint32_t *wakes_of(const Engine *engine) { return (_Atomic uint32_t *)(void *)word_of(engine, 0, WAKES); }

static uint32_t bit_of(int64_t rank) { return 1u << (rank & 31); }

/* Wake up ranks that await no other one any more. */
static void wake(const Engine *engine, int64_t value) {
    int64_t own = bit_of(engine->position);
    uint32_t woken = 0;
    for (int64_t rank = 0; rank < engine->ranks; rank++) {
        _Atomic int64_t *mask = mask_of(engine, rank);
        if ((atomic_load(mask) & own) && atomic_load(word_of(engine, rank, TARGET)) <= value &&
            (atomic_fetch_and(mask, ~own) & ~own) == 0)
            woken |= bit_of(rank);
    }
    if (woken != 0) {
        atomic_fetch_add(wakes_of(engine), 1);
        syscall(SYS_futex, wakes_of(engine), FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, woken);
    }
}

void publish(const Engine *engine, int64_t progress) {
    int64_t value = *engine->epoch * STRIDE + progress;
    if (engine->looks > 0)
        atomic_store_explicit(word_of(engine, engine->position, CORE), 1 + sched_getcpu(), memory_order_relaxed);
    atomic_store(word_of(engine, engine->position, 0), value);
    if (atomic_load(word_of(engine, 0, SLEEPERS)) > 0)
        wake(engine, value);
}

/* Whether the rank was last on the core that this one runs on: it cannot go on while this one looks. */
static int needs_this_core(const Engine *engine, int64_t rank) {
    return atomic_load_explicit(word_of(engine, rank, CORE), memory_order_relaxed) == 1 + sched_getcpu();
}

static struct timespec after_us(long long us) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t ns = time.tv_nsec + us * 1000;
    return (struct timespec){time.tv_sec + ns / 1000000000, ns % 1000000000};
}

/* Sleep until the first rank that is behind and those awaited alike stand where they must; 0 where time is over. */
static int sleep_until_there(const Engine *engine, const Wait *wait, const Wait *end) {
    _Atomic int64_t *mask = mask_of(engine, engine->position);
    int64_t base = *engine->epoch * STRIDE, target = wait->progress, left = 0;
    struct timespec limit = after_us(engine->sleep_us);
    long outcome = 0;
    for (const Wait *other = wait; other < end; other++)
        if (other->progress == target && progress_of(engine, other->rank) < base + target)
            left |= bit_of(other->rank);
    atomic_store(word_of(engine, engine->position, TARGET), base + target);
    atomic_store(mask, left);
    atomic_fetch_add(word_of(engine, 0, SLEEPERS), 1);
    for (const Wait *other = wait; other < end; other++)
        if (other->progress == target && atomic_load(word_of(engine, other->rank, 0)) >= base + target)
            atomic_fetch_and(mask, ~(int64_t)bit_of(other->rank));
    while (outcome == 0) { /* also where other ranks were woken up meanwhile */
        _Atomic uint32_t *wakes = wakes_of(engine);
        uint32_t seen = atomic_load(wakes), own = bit_of(engine->position);
        if (atomic_load(mask) == 0)
            break;
        outcome = syscall(SYS_futex, wakes, FUTEX_WAIT_BITSET, seen, &limit, NULL, own) < 0 && errno != EAGAIN;
    }
    atomic_fetch_sub(word_of(engine, 0, SLEEPERS), 1);
    atomic_store(mask, 0);
    return outcome == 0;
}
#else
static int needs_this_core(const Engine *engine, int64_t rank) { return (void)engine, (void)rank, 0; }

void publish(const Engine *engine, int64_t progress) {
    _Atomic int64_t *own = &engine->counters[engine->position * COUNTER_WORDS];
    atomic_store_explicit(own, *engine->epoch * STRIDE + progress, memory_order_release);
}

static int sleep_until_there(const Engine *engine, const Wait *wait, const Wait *end) {
    return (void)engine, (void)wait, (void)end, sched_yield(), 1;
}
#endif

/* Waits in which this rank sleeps early, since other programs want the cores: they keep for long what it gives away. */
static _Atomic int64_t *crowded_of(const Engine *engine) {
    return &engine->counters[engine->position * COUNTER_WORDS + CROWDED];
}

static int is_crowded(const Engine *engine) {
    return engine->looks <= 0 && atomic_load_explicit(crowded_of(engine), memory_order_relaxed) > 0;
}

/* Whether a rank has not waited long: one that slept would come back later than by a look. The time of a rank with a core
 * of its own is up at once where another program had the core, or the rank awaited needs it: the system puts both on one
 * core where other programs use the others, and a core given away may go to one of those. */
static int is_early(const Engine *engine, int64_t rank, int64_t *until_ns) {
    struct timespec now;
    if (engine->looks > 0 ? needs_this_core(engine, rank) : is_crowded(engine))
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    *until_ns = *until_ns ? *until_ns : now_ns + PATIENCE_NS;
    if (now_ns >= *until_ns + CROWDED_NS)
        atomic_store_explicit(crowded_of(engine), CROWDED_WAITS, memory_order_relaxed);
    return now_ns < *until_ns;
}

int await_counters(const Engine *engine, const Wait *wait, int64_t count) {
    int64_t base = *engine->epoch * STRIDE, looks = engine->looks, until_ns = 0;
    for (const Wait *end = wait + count; wait < end; wait++) {
        if (progress_of(engine, wait->rank) >= base + wait->progress)
            continue;
        if (is_crowded(engine))
            atomic_fetch_sub_explicit(crowded_of(engine), 1, memory_order_relaxed);
        looks = looks > 0 && needs_this_core(engine, wait->rank) ? 0 : looks; /* it cannot come while this one looks */
        while (progress_of(engine, wait->rank) < base + wait->progress) {
            if (looks-- > 0)
                continue;
            if (looks >= -YIELDS || is_early(engine, wait->rank, &until_ns))
                sched_yield();
            else if (engine->sleep_us <= 0 || !sleep_until_there(engine, wait, end))
                return 0;
        }
    }
    return 1;
}
