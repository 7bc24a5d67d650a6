/* Runs an engine: see engine.h. */
#include "engine.h"

#include <sched.h>

#include "copies.h"

static const void *records(const Engine *engine, Section section) { return engine->section[section]; }

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
        write_pieces(engine, records(engine, PACK_OWN), engine->count[PACK_OWN], 0);
    write_pieces(engine, records(engine, PACK), engine->count[PACK], engine->streaming);
    Field *field = engine->redirected, *targets = field + engine->count[OWN] * engine->fields;
    for (; field < targets; field++)
        *field->word = (intptr_t)(direct ? engine->data[field->array] + field->at : engine->memory + field->place);
    for (Field *end = targets + engine->count[TARGETS] * engine->fields; field < end; field++)
        *field->word = (intptr_t)(engine->data[field->array] + field->at);
}

/* The clock, in calls on trial. */
static int64_t now(const Engine *engine) { return engine->until_choice <= 2 * CALLS_A_TRIAL ? cycles() : 0; }

/* Take note of how long a call on trial worked; after the last one, choose how to write. */
static void learn(Engine *engine) {
    int64_t *quickest = &engine->quickest[engine->streaming != 0];
    if (engine->until_choice <= 2 * CALLS_A_TRIAL && engine->until_choice % CALLS_A_TRIAL != 0)
        *quickest = engine->worked < *quickest ? engine->worked : *quickest;
    if (engine->until_choice == 1) {
        engine->streaming = engine->quickest[1] < engine->quickest[0];
        engine->quickest[0] = engine->quickest[1] = NO_TIME;
        engine->until_choice = CALLS_A_CHOICE;
    }
    engine->until_choice--;
}

static void publish(const Engine *engine, int64_t progress) {
    _Atomic int64_t *own = &engine->counters[engine->position * COUNTER_WORDS];
    atomic_store_explicit(own, *engine->epoch * STRIDE + progress, memory_order_release);
}

const Wait *awaited(const Engine *engine, int64_t *count) {
    const Stage *stages = records(engine, STAGES);
    const Wait *waits = records(engine, WAITS);
    *count = 0;
    int64_t stage = __atomic_load_n(&engine->stage, __ATOMIC_RELAXED); /* another thread may run the engine */
    if (engine->state != WAITING || stage >= engine->count[STAGES])
        return NULL;
    *count = stage < 0 ? engine->count[CREDITS] : stages[stage].waits;
    for (int64_t before = 0; before < stage; before++)
        waits += stages[before].waits;
    return stage < 0 ? records(engine, CREDITS) : waits;
}

/* The looks that are left when all counters stand where they must; 0 if they do not. */
static int64_t await_counters(const Engine *engine, const Wait *wait, int64_t count, int64_t looks) {
    int64_t base = *engine->epoch * STRIDE, patient = looks - engine->looks;
    for (const Wait *end = wait + count; wait < end; wait++)
        while (progress_of(engine, wait->rank) < base + wait->progress) {
            if (--looks <= 0)
                return 0;
            if (looks <= patient)
                sched_yield();
        }
    return looks;
}

void start(Engine *engine, int direct) {
    engine->direct = direct;
    engine->state = WAITING;
    engine->stage = -1;
    engine->wait = engine->task = engine->made = 0;
}

static State finish(Engine *engine) {
    const Copy *piece = records(engine, UNPACK);
    for (const Copy *end = piece + engine->count[UNPACK]; piece < end; piece++)
        memmove(engine->data[piece->array] + piece->at, engine->memory + piece->place, (size_t)piece->bytes);
    engine->worked += now(engine);
    learn(engine);
    if (engine->final)
        publish(engine, engine->final);
    return engine->state = THROUGH;
}

State run(Engine *engine, int64_t looks) {
    const Stage *stages = records(engine, STAGES);
    if (engine->state == THROUGH)
        return THROUGH;
    if (engine->stage < 0) {
        if (engine->count[CREDITS] > 0 && await_counters(engine, records(engine, CREDITS), engine->count[CREDITS], looks) <= 0)
            return WAITING;
        engine->worked = 0;
    }
    engine->worked -= now(engine);
    if (engine->stage < 0) {
        write_value(engine);
        engine->stage = 0;
    }
    for (; engine->stage < engine->count[STAGES]; engine->stage++) {
        const Stage *stage = &stages[engine->stage];
        if (engine->state == WAITING) {
            publish(engine, stage->progress);
            if (stage->waits > 0) {
                engine->worked += now(engine);
                looks = await_counters(engine, (const Wait *)records(engine, WAITS) + engine->wait, stage->waits, looks);
                if (looks <= 0)
                    return WAITING;
                engine->worked -= now(engine);
            }
            if (engine->fold == NULL && stage->tasks > 0) {
                engine->worked += now(engine);
                return engine->state = TO_FOLD;
            }
            for (int64_t task = 0; task < stage->tasks; task++)
                engine->fold(engine->tasks[engine->task + task]);
        }
        engine->state = WAITING;
        write_pieces(engine, (const Copy *)records(engine, MADE) + engine->made, stage->copies, engine->streaming);
        engine->wait += stage->waits, engine->task += stage->tasks, engine->made += stage->copies;
    }
    return finish(engine);
}
