/* Runs an engine: see engine.h. */
#include "engine.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Sanitizers do not see stores past the caches. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { VECTOR_BYTES = sizeof(__m128i) };

/* Copy past the caches; `drain` comes before the release store that publishes it. */
static inline void stream(char *to, const char *from, int64_t bytes) {
    int64_t at = -(intptr_t)to & (VECTOR_BYTES - 1);
    at = at < bytes ? at : bytes;
    memcpy(to, from, (size_t)at);
    for (; at + VECTOR_BYTES <= bytes; at += VECTOR_BYTES)
        _mm_stream_si128((__m128i *)(void *)(to + at), _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

static inline void drain(void) { _mm_sfence(); }
#else
static inline void stream(char *to, const char *from, int64_t bytes) { memmove(to, from, (size_t)bytes); }

static inline void drain(void) {}
#endif

/* Copy pieces of arrays to memory; what lies there already is left. */
static void write_pieces(const Engine *engine, const Copy *piece, int64_t count, int64_t streaming) {
    for (const Copy *end = piece + count; piece < end; piece++) {
        char *to = engine->memory + piece->place;
        const char *from = engine->data[piece->array] + piece->at;
        if (from == to)
            continue;
        if (streaming)
            stream(to, from, piece->bytes);
        else
            memmove(to, from, (size_t)piece->bytes);
    }
    if (streaming && count > 0)
        drain();
}

/* Write the value for the others to read, and tell the folds where the caller's arrays are. */
static void write_value(Engine *engine) {
    int direct = engine->direct && engine->fold != NULL;
    if (engine->until_choice <= 2 * CALLS_A_TRIAL)
        engine->streaming = engine->until_choice > CALLS_A_TRIAL;
    if (!direct)
        write_pieces(engine, engine->section[PACK_OWN], engine->count[PACK_OWN], 0);
    write_pieces(engine, engine->section[PACK], engine->count[PACK], engine->streaming);
    publish_addresses(engine);
    const Kept *kept = engine->section[KEPT];
    for (const Kept *end = kept + (engine->direct ? 0 : engine->count[KEPT]); kept < end; kept++)
        write_pieces(engine, &kept->from, 1, 0);
    const Redirect *own = engine->section[OWN], *target = engine->section[TARGETS];
    for (const Redirect *end = own + engine->count[OWN]; own < end; own++)
        *(int64_t *)(intptr_t)own->task = direct ? (intptr_t)(engine->data[own->array] + own->at) : own->place;
    for (const Redirect *end = target + engine->count[TARGETS]; target < end; target++)
        *(int64_t *)(intptr_t)target->task = (intptr_t)(engine->data[target->array] + target->at);
}

/* In calls on trial the processor's clock on x86, where every process may read it; elsewhere 0: plain stores then seem
 * quick. */
static int64_t now(const Engine *engine) {
    if (engine->until_choice > 2 * CALLS_A_TRIAL)
        return 0;
#if defined(__x86_64__)
    return (int64_t)__builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* Take note of how long a call on trial worked; after the last one, choose how to write. */
static void learn(Engine *engine) {
    long long *quickest = &engine->quickest[engine->streaming != 0];
    if (engine->until_choice <= 2 * CALLS_A_TRIAL && engine->until_choice % CALLS_A_TRIAL != 0)
        *quickest = engine->worked < *quickest ? engine->worked : *quickest;
    if (engine->until_choice == 1) {
        engine->streaming = engine->quickest[1] < engine->quickest[0];
        engine->quickest[0] = engine->quickest[1] = NO_TIME;
        engine->until_choice = CALLS_A_CHOICE;
    }
    engine->until_choice--;
}

static int64_t set(_Atomic int64_t *word, int64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
    return value;
}

void start(Engine *engine, int direct) {
    engine->direct = direct;
    set(&engine->state, WAITING);
    set(&engine->stage, -1);
    engine->wait = engine->task = engine->made = engine->pull = 0;
    engine->unread = engine->posted = engine->exchanged = 0;
}

/* Take the credits of a call: whether they are there. */
static int take_credits(Engine *engine) {
    Requests **turn = engine->credits[engine->credited % CALLS_AHEAD];
    for (int way = 0; way < DIRECTIONS && engine->credited >= CALLS_AHEAD; way++)
        if (turn[way] != NULL && !await_requests(turn[way], engine->sleep_us))
            return 0;
    if (turn[COMING] != NULL)
        start_requests(turn[COMING]);
    engine->credited++;
    return turn[COMING] == NULL || turn[COMING]->code == 0;
}

/* Give the senders their credits of the call that is through. */
static void give_credits(const Engine *engine) {
    Requests *going = engine->credited == 0 ? NULL : engine->credits[(engine->credited - 1) % CALLS_AHEAD][GOING];
    if (going != NULL)
        start_requests(going);
}

/* Send and receive the messages of a stage: whether they are through. */
static int exchange(Engine *engine, int64_t stage) {
    Requests *requests = engine->requests == NULL ? NULL : engine->requests[stage];
    if (requests == NULL)
        return 0;
    if (!engine->posted)
        start_requests(requests);
    engine->posted = 1;
    return engine->exchanged = await_requests(requests, engine->sleep_us);
}

State run(Engine *engine) {
    const Wait *waits = engine->section[WAITS];
    const Copy *made = engine->section[MADE];
    const Stage *stage = engine->section[STAGES], *end = stage + engine->count[STAGES];
    int64_t state = peek(&engine->state), number = peek(&engine->stage);
    if (state == THROUGH)
        return THROUGH;
    if (number < 0) {
        if (!await_counters(engine, engine->section[CREDITS], engine->count[CREDITS]))
            return WAITING;
        if (!take_credits(engine))
            return set(&engine->state, TO_EXCHANGE);
        state = set(&engine->state, WAITING);
        engine->worked = -now(engine);
        write_value(engine);
        set(&engine->stage, number = 0);
    } else
        engine->worked -= now(engine);
    for (stage += number; stage < end; stage++) {
        if (state == TO_EXCHANGE)
            engine->exchanged = !engine->posted, state = set(&engine->state, WAITING);
        if (state == WAITING) {
            if (!engine->posted && !engine->exchanged)
                publish(engine, stage->progress);
            engine->worked += now(engine);
            if (stage->messages && !engine->exchanged && !exchange(engine, number))
                return set(&engine->state, TO_EXCHANGE);
            if (!await_counters(engine, waits + engine->wait, stage->waits) || !pull_pieces(engine, stage->pulls))
                return WAITING;
            if (engine->fold == NULL && stage->tasks > 0)
                return set(&engine->state, TO_FOLD);
            engine->worked -= now(engine);
            for (int64_t task = 0; task < stage->tasks; task++)
                engine->fold(engine->tasks[engine->task + task]);
        }
        state = set(&engine->state, WAITING);
        write_pieces(engine, made + engine->made, stage->copies, engine->streaming);
        engine->wait += stage->waits, engine->task += stage->tasks, engine->made += stage->copies;
        engine->pull += stage->pulls, engine->posted = engine->exchanged = 0;
        set(&engine->stage, ++number);
    }
    const Copy *piece = engine->section[UNPACK];
    for (const Copy *last = piece + engine->count[UNPACK]; piece < last; piece++)
        memmove(engine->data[piece->array] + piece->at, engine->memory + piece->place, (size_t)piece->bytes);
    const Kept *kept = engine->section[KEPT];
    for (const Kept *last = kept + engine->count[KEPT]; kept < last; kept++) {
        const Copy *from = &kept->from;
        const char *source = engine->direct ? engine->data[from->array] + from->at : engine->memory + from->place;
        memmove(engine->data[kept->result] + kept->result_at, source, (size_t)from->bytes);
    }
    engine->worked += now(engine);
    learn(engine);
    if (engine->final)
        publish(engine, engine->final);
    give_credits(engine);
    return set(&engine->state, THROUGH);
}
