/* Reads the words of a program (engine.h) and checks them: whatever they say, a run stays inside memory, arrays and
 * counters. */
#include "engine.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t RECORD_WORDS[SECTIONS] = {4, 4, 4, 4, 3, 3, 2, 2, 4, 2}; /* a task has more */
static const char *const NAMES[SECTIONS] = {"PACK",    "PACK_OWN", "UNPACK", "MADE",   "OWN",
                                            "TARGETS", "CREDITS",  "WAITS",  "STAGES", "TASKS"};

__attribute__((format(printf, 2, 3))) static int refuse(Engine *engine, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(engine->wrong, sizeof engine->wrong, format, values);
    va_end(values);
    return -1;
}

/* The beginning of what is wrong with a record: names of its section and its index. */
#define RECORD "%s %" PRId64 ": "

/* Whether [at, at + bytes) lies in [0, all). */
static int inside(int64_t at, int64_t bytes, int64_t all) {
    return at >= 0 && bytes >= 0 && bytes <= all && at <= all - bytes;
}

/* Bytes of so many rows of a field; -1 where no memory has so many. */
static int64_t rows_bytes(const Engine *engine, int field, int64_t rows) {
    int64_t bytes;
    if (rows < 0 || __builtin_mul_overflow(rows, engine->row_items[field], &bytes) ||
        __builtin_mul_overflow(bytes, engine->item_bytes[field], &bytes))
        return -1;
    return bytes;
}

static int find_sections(Engine *engine, int64_t all) {
    int64_t at = SECTIONS;
    for (int section = 0; section < SECTIONS; section++) {
        int64_t count = engine->words[section];
        if (count < 0 || count > all)
            return refuse(engine, "%s: %" PRId64 " records in %" PRId64 " words", NAMES[section], count, all);
        engine->count[section] = count;
        engine->section[section] = engine->words + at;
        at += count * RECORD_WORDS[section]; /* under 2^7 sections of 2^60 words */
        if (at > all)
            return refuse(engine, "%s: ends at word %" PRId64 " of %" PRId64, NAMES[section], at, all);
    }
    return 0;
}

static int check_copies(Engine *engine, Section section) {
    const char *name = NAMES[section];
    int64_t first = section == PACK || section == PACK_OWN ? 0 : engine->fields;
    const Copy *copy = engine->section[section];
    for (int64_t index = 0; index < engine->count[section]; index++, copy++) {
        if (copy->array < first || copy->array >= first + engine->fields)
            return refuse(engine, RECORD "array %" PRId64, name, index, copy->array);
        int64_t array_bytes = engine->array_bytes[copy->array];
        if (!inside(copy->at, copy->bytes, array_bytes))
            return refuse(engine, RECORD "%" PRId64 " bytes at %" PRId64 " of an array of %" PRId64, name, index,
                          copy->bytes, copy->at, array_bytes);
        if (!inside(copy->place, copy->bytes, engine->memory_bytes))
            return refuse(engine, RECORD "%" PRId64 " bytes at %" PRId64 " of %" PRId64 " in memory", name, index,
                          copy->bytes, copy->place, engine->memory_bytes);
    }
    return 0;
}

static int check_waits(Engine *engine, Section section) {
    const Wait *wait = engine->section[section];
    for (int64_t index = 0; index < engine->count[section]; index++, wait++) {
        if (wait->rank < 0 || wait->rank >= engine->ranks)
            return refuse(engine, RECORD "rank %" PRId64 " of %" PRId64, NAMES[section], index, wait->rank, engine->ranks);
        if (wait->progress < -2 * STRIDE || wait->progress >= STRIDE)
            return refuse(engine, RECORD "progress %" PRId64, NAMES[section], index, wait->progress);
    }
    return 0;
}

static int check_stages(Engine *engine) {
    const Stage *stage = engine->section[STAGES];
    int64_t waits = 0, tasks = 0, copies = 0, before = -1;
    for (int64_t index = 0; index < engine->count[STAGES]; index++, stage++) {
        if (stage->progress <= before || stage->progress > FINISHED)
            return refuse(engine, RECORD "progress %" PRId64 " after %" PRId64, "STAGES", index, stage->progress, before);
        if (!inside(waits, stage->waits, engine->count[WAITS]) || !inside(tasks, stage->tasks, engine->count[TASKS]) ||
            !inside(copies, stage->copies, engine->count[MADE]))
            return refuse(engine, RECORD "%" PRId64 " waits, %" PRId64 " tasks and %" PRId64 " copies", "STAGES", index,
                          stage->waits, stage->tasks, stage->copies);
        waits += stage->waits, tasks += stage->tasks, copies += stage->copies;
        before = stage->progress;
    }
    if (waits != engine->count[WAITS] || tasks != engine->count[TASKS] || copies != engine->count[MADE])
        return refuse(engine, "STAGES: %" PRId64 " waits, %" PRId64 " tasks and %" PRId64 " copies in all stages", waits,
                      tasks, copies);
    return 0;
}

static int read_tasks(Engine *engine, int64_t all) {
    const int64_t *words = engine->section[TASKS], *end = engine->words + all;
    int64_t *task = engine->task_words, fields = engine->fields;
    for (int64_t index = 0; index < engine->count[TASKS]; index++) {
        int64_t left = end - words;
        if (left < 2 || words[0] < 0 || words[1] < 1 || words[1] >= left || 2 + (1 + words[1]) * fields > left)
            return refuse(engine, RECORD "rows and operands do not fit the %" PRId64 " words left", "TASKS", index, left);
        int64_t rows = *words++, places = 1 + *words++;
        engine->tasks[index] = task;
        *task++ = rows, *task++ = places - 1;
        for (int field = 0; field < fields; field++)
            *task++ = engine->row_items[field];
        for (int64_t place = 0; place < places * fields; place++) {
            int field = (int)(place % fields);
            int64_t at = *words++, alignment = engine->item_bytes[field] & -engine->item_bytes[field];
            if (!inside(at, rows_bytes(engine, field, rows), engine->memory_bytes) || at % alignment != 0)
                return refuse(engine, RECORD "%" PRId64 " rows of field %d at %" PRId64 " of %" PRId64 " in memory",
                              "TASKS", index, rows, field, at, engine->memory_bytes);
            *task++ = (intptr_t)engine->memory + at;
        }
    }
    return words == end ? 0 : refuse(engine, "%" PRId64 " words follow the last task", (int64_t)(end - words));
}

static int read_redirects(Engine *engine, Section section, Field *found) {
    const Redirect *redirect = engine->section[section];
    const char *name = NAMES[section];
    int fields = engine->fields, first = section == OWN ? 0 : fields;
    for (int64_t index = 0; index < engine->count[section]; index++, redirect++) {
        if (redirect->task < 0 || redirect->task >= engine->count[TASKS])
            return refuse(engine, RECORD "task %" PRId64, name, index, redirect->task);
        int64_t *task = engine->tasks[redirect->task];
        if (section == OWN ? redirect->place < 1 || redirect->place > task[1] : redirect->place != 0)
            return refuse(engine, RECORD "place %" PRId64, name, index, redirect->place);
        for (int field = 0; field < fields; field++, found++) {
            int64_t at = rows_bytes(engine, field, redirect->row), bytes = rows_bytes(engine, field, task[0]);
            if (!inside(at, bytes, engine->array_bytes[first + field]))
                return refuse(engine, RECORD "row %" PRId64, name, index, redirect->row);
            int64_t *word = task + 2 + (1 + redirect->place) * fields + field;
            *found = (Field){word, first + field, at, *word - (intptr_t)engine->memory};
        }
    }
    return 0;
}

int read_program(Engine *engine, const int64_t *words, int64_t count) {
    if (count < SECTIONS)
        return refuse(engine, "%" PRId64 " words; expected %d at least", count, SECTIONS);
    engine->words = malloc((size_t)count * sizeof(int64_t));
    if (engine->words == NULL)
        return refuse(engine, "out of memory");
    memcpy(engine->words, words, (size_t)count * sizeof(int64_t));
    if (find_sections(engine, count) < 0 || check_stages(engine) < 0)
        return -1;
    int64_t tasks = engine->count[TASKS], own = engine->count[OWN] * engine->fields;
    engine->task_words = malloc((size_t)(count + tasks * engine->fields) * sizeof(int64_t)); /* with their row_items */
    engine->tasks = malloc((size_t)(tasks + 1) * sizeof(int64_t *));
    engine->redirected = malloc((size_t)(own + engine->count[TARGETS] * engine->fields + 1) * sizeof(Field));
    if (engine->task_words == NULL || engine->tasks == NULL || engine->redirected == NULL)
        return refuse(engine, "out of memory");
    if (read_tasks(engine, count) < 0)
        return -1;
    for (Section section = PACK; section <= MADE; section++)
        if (check_copies(engine, section) < 0)
            return -1;
    int right = check_waits(engine, CREDITS) == 0 && check_waits(engine, WAITS) == 0 &&
                read_redirects(engine, OWN, engine->redirected) == 0 &&
                read_redirects(engine, TARGETS, engine->redirected + own) == 0;
    return right ? 0 : -1;
}

void release_program(Engine *engine) {
    free(engine->words);
    free(engine->task_words);
    free(engine->tasks);
    free(engine->redirected);
}
