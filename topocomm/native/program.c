/* Reads the words of a program (engine.h) and checks them: whatever they say, a run stays inside memory, arrays and
 * counters. */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t RECORD_WORDS[SECTIONS] = {4, 4, 4, 4, 3, 3, 2, 2, 4, 0};
static const char *const NAMES[SECTIONS] = {"PACK",    "PACK_OWN", "UNPACK", "MADE",   "OWN",
                                            "TARGETS", "CREDITS",  "WAITS",  "STAGES", "TASKS"};

typedef struct {
    Engine *engine;
    char *wrong;
    size_t wrong_bytes;
} Reader;

__attribute__((format(printf, 2, 3))) static int refuse(const Reader *reader, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(reader->wrong, reader->wrong_bytes, format, values);
    va_end(values);
    return -1;
}

/* Whether [at, at + bytes) lies in [0, all). */
static int inside(int64_t at, int64_t bytes, int64_t all) { return at >= 0 && bytes >= 0 && bytes <= all && at <= all - bytes; }

/* Bytes of so many rows of a field; -1 where no memory has so many. */
static int64_t rows_bytes(const Engine *engine, int field, int64_t rows) {
    int64_t bytes;
    if (rows < 0 || __builtin_mul_overflow(rows, engine->row_items[field], &bytes) ||
        __builtin_mul_overflow(bytes, engine->item_bytes[field], &bytes))
        return -1;
    return bytes;
}

static int find_sections(const Reader *reader, int64_t all) {
    Engine *engine = reader->engine;
    int64_t at = SECTIONS;
    for (int section = 0; section < SECTIONS; section++) {
        int64_t count = engine->words[section];
        if (count < 0 || count > all)
            return refuse(reader, "%s: %lld records in %lld words", NAMES[section], (long long)count, (long long)all);
        engine->count[section] = count;
        engine->section[section] = engine->words + at;
        at += count * RECORD_WORDS[section]; /* under 2^7 sections of 2^60 words */
        if (at > all)
            return refuse(reader, "%s: ends at word %lld of %lld", NAMES[section], (long long)at, (long long)all);
    }
    return 0;
}

static int check_copies(const Reader *reader, Section section) {
    const Engine *engine = reader->engine;
    int64_t first = section == PACK || section == PACK_OWN ? 0 : engine->fields;
    const Copy *copy = (const Copy *)engine->section[section];
    for (int64_t index = 0; index < engine->count[section]; index++, copy++) {
        if (copy->array < first || copy->array >= first + engine->fields)
            return refuse(reader, "%s %lld: array %lld", NAMES[section], (long long)index, (long long)copy->array);
        if (!inside(copy->at, copy->bytes, engine->array_bytes[copy->array]))
            return refuse(reader, "%s %lld: %lld bytes at %lld of an array of %lld", NAMES[section], (long long)index,
                          (long long)copy->bytes, (long long)copy->at, (long long)engine->array_bytes[copy->array]);
        if (!inside(copy->place, copy->bytes, engine->memory_bytes))
            return refuse(reader, "%s %lld: %lld bytes at %lld of %lld in memory", NAMES[section], (long long)index,
                          (long long)copy->bytes, (long long)copy->place, (long long)engine->memory_bytes);
    }
    return 0;
}

static int check_waits(const Reader *reader, Section section) {
    const Engine *engine = reader->engine;
    const Wait *wait = (const Wait *)engine->section[section];
    for (int64_t index = 0; index < engine->count[section]; index++, wait++) {
        if (wait->rank < 0 || wait->rank >= engine->ranks)
            return refuse(reader, "%s %lld: rank %lld of %lld", NAMES[section], (long long)index,
                          (long long)wait->rank, (long long)engine->ranks);
        if (wait->progress < -2 * STRIDE || wait->progress >= STRIDE)
            return refuse(reader, "%s %lld: progress %lld", NAMES[section], (long long)index, (long long)wait->progress);
    }
    return 0;
}

static int check_stages(const Reader *reader) {
    const Engine *engine = reader->engine;
    const Stage *stage = (const Stage *)engine->section[STAGES];
    int64_t waits = 0, tasks = 0, copies = 0, before = -1;
    for (int64_t index = 0; index < engine->count[STAGES]; index++, stage++) {
        if (stage->progress <= before || stage->progress > FINISHED)
            return refuse(reader, "STAGES %lld: progress %lld after %lld", (long long)index,
                          (long long)stage->progress, (long long)before);
        if (!inside(waits, stage->waits, engine->count[WAITS]) || !inside(tasks, stage->tasks, engine->count[TASKS]) ||
            !inside(copies, stage->copies, engine->count[MADE]))
            return refuse(reader, "STAGES %lld: %lld waits, %lld tasks and %lld copies", (long long)index,
                          (long long)stage->waits, (long long)stage->tasks, (long long)stage->copies);
        waits += stage->waits, tasks += stage->tasks, copies += stage->copies;
        before = stage->progress;
    }
    if (waits != engine->count[WAITS] || tasks != engine->count[TASKS] || copies != engine->count[MADE])
        return refuse(reader, "STAGES: %lld waits, %lld tasks and %lld copies in all stages", (long long)waits,
                      (long long)tasks, (long long)copies);
    return 0;
}

/* Read one task: `words` from its rows on, of which `left` are there. Returns the words that it takes, or -1. */
static int64_t read_task(const Reader *reader, int64_t index, const int64_t *words, int64_t left, int64_t *task) {
    const Engine *engine = reader->engine;
    int64_t fields = engine->fields;
    if (left < 2 || words[0] < 0 || words[1] < 1 || words[1] >= left || 2 + (1 + words[1]) * fields > left)
        return refuse(reader, "TASKS %lld: rows and operands do not fit the %lld words left", (long long)index,
                      (long long)left);
    int64_t places = 1 + words[1];
    *task++ = words[0], *task++ = words[1];
    for (int field = 0; field < fields; field++)
        *task++ = engine->row_items[field];
    for (int64_t place = 0; place < places; place++)
        for (int field = 0; field < fields; field++) {
            int64_t at = words[2 + place * fields + field], bytes = rows_bytes(engine, field, words[0]);
            int64_t alignment = engine->item_bytes[field] & -engine->item_bytes[field];
            if (!inside(at, bytes, engine->memory_bytes) || at % alignment != 0)
                return refuse(reader, "TASKS %lld: %lld rows of field %d at %lld of %lld in memory", (long long)index,
                              (long long)words[0], field, (long long)at, (long long)engine->memory_bytes);
            *task++ = (intptr_t)engine->memory + at;
        }
    return 2 + places * fields;
}

static int read_tasks(const Reader *reader, int64_t all) {
    Engine *engine = reader->engine;
    const int64_t *words = engine->section[TASKS], *end = engine->words + all;
    int64_t count = engine->count[TASKS], fields = engine->fields;
    if (count > (end - words) / 2)
        return refuse(reader, "TASKS: %lld records in %lld words", (long long)count, (long long)(end - words));
    engine->task_words = malloc((size_t)(end - words + count * fields + 1) * sizeof(int64_t)); /* with their row_items */
    engine->tasks = malloc((size_t)(count + 1) * sizeof(int64_t *));
    if (engine->task_words == NULL || engine->tasks == NULL)
        return refuse(reader, "out of memory");
    int64_t *task = engine->task_words;
    for (int64_t index = 0; index < count; index++) {
        int64_t taken = read_task(reader, index, words, end - words, task);
        if (taken < 0)
            return -1;
        engine->tasks[index] = task;
        words += taken, task += taken + fields;
    }
    return words == end ? 0 : refuse(reader, "%lld words follow the last task", (long long)(end - words));
}

static int read_redirects(const Reader *reader, Section section, Field *found) {
    Engine *engine = reader->engine;
    const Redirect *redirect = (const Redirect *)engine->section[section];
    int fields = engine->fields, first = section == OWN ? 0 : fields;
    for (int64_t index = 0; index < engine->count[section]; index++, redirect++) {
        if (redirect->task < 0 || redirect->task >= engine->count[TASKS])
            return refuse(reader, "%s %lld: task %lld", NAMES[section], (long long)index, (long long)redirect->task);
        int64_t *task = engine->tasks[redirect->task];
        if (section == OWN ? redirect->place < 1 || redirect->place > task[1] : redirect->place != 0)
            return refuse(reader, "%s %lld: place %lld", NAMES[section], (long long)index, (long long)redirect->place);
        for (int field = 0; field < fields; field++, found++) {
            int64_t at = rows_bytes(engine, field, redirect->row), bytes = rows_bytes(engine, field, task[0]);
            if (!inside(at, bytes, engine->array_bytes[first + field]))
                return refuse(reader, "%s %lld: row %lld", NAMES[section], (long long)index, (long long)redirect->row);
            int64_t *word = task + 2 + (1 + redirect->place) * fields + field;
            *found = (Field){word, first + field, at, *word - (intptr_t)engine->memory};
        }
    }
    return 0;
}

int read_program(Engine *engine, const int64_t *words, int64_t count, char *wrong, size_t wrong_bytes) {
    const Reader reader = {engine, wrong, wrong_bytes};
    engine->words = NULL, engine->task_words = NULL, engine->tasks = NULL, engine->redirected = NULL;
    if (count < SECTIONS)
        return refuse(&reader, "%lld words; expected %d at least", (long long)count, SECTIONS);
    engine->words = malloc((size_t)count * sizeof(int64_t));
    if (engine->words == NULL)
        return refuse(&reader, "out of memory");
    memcpy(engine->words, words, (size_t)count * sizeof(int64_t));
    if (find_sections(&reader, count) < 0 || check_stages(&reader) < 0 || read_tasks(&reader, count) < 0)
        return -1;
    for (Section section = PACK; section <= MADE; section++)
        if (check_copies(&reader, section) < 0)
            return -1;
    if (check_waits(&reader, CREDITS) < 0 || check_waits(&reader, WAITS) < 0)
        return -1;
    int64_t own = engine->count[OWN] * engine->fields;
    engine->redirected = malloc((size_t)(own + engine->count[TARGETS] * engine->fields + 1) * sizeof(Field));
    if (engine->redirected == NULL)
        return refuse(&reader, "out of memory");
    if (read_redirects(&reader, OWN, engine->redirected) < 0)
        return -1;
    return read_redirects(&reader, TARGETS, engine->redirected + own);
}

void release_program(Engine *engine) {
    free(engine->words);
    free(engine->task_words);
    free(engine->tasks);
    free(engine->redirected);
}
