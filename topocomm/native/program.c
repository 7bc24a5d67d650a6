/* Reads the words of a program (engine.h) and checks them: whatever they say, a run stays inside memory, arrays and
 * counters, apart from the other ranks' arrays that it pulls from. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether [at, at + bytes) lies in [0, all). */
static int inside(int64_t at, int64_t bytes, int64_t all) {
    return at >= 0 && bytes >= 0 && bytes <= all && at <= all - bytes;
}

/* Whether a number is one of `count` from `first` on. */
static int among(int64_t number, int64_t first, int64_t count) { return number >= first && number < first + count; }

/* Whether so many rows of a field lie in [0, all) from `at` on, where items may begin. */
static int rows_inside(const Engine *engine, int64_t field, int64_t rows, int64_t at, int64_t all) {
    int64_t bytes;
    return rows >= 0 && !__builtin_mul_overflow(rows, engine->row_items[field], &bytes) &&
           !__builtin_mul_overflow(bytes, engine->item_bytes[field], &bytes) && inside(at, bytes, all) &&
           at % alignment_of(engine, field) == 0;
}

/* Whether a word of memory begins here. */
static int word_inside(const Engine *engine, int64_t at) { return inside(at, 8, engine->memory_bytes) && at % 8 == 0; }

static int read_copy(Engine *engine, Section section, void *record) {
    const Copy *copy = record;
    int64_t first = section == PACK || section == PACK_OWN ? 0 : engine->fields;
    return among(copy->array, first, engine->fields) &&
           inside(copy->at, copy->bytes, engine->array_bytes[copy->array]) &&
           inside(copy->place, copy->bytes, engine->memory_bytes);
}

static int read_kept(Engine *engine, Section section, void *record) {
    Kept *kept = record;
    (void)section;
    return read_copy(engine, PACK, &kept->from) && among(kept->result, engine->fields, engine->fields) &&
           inside(kept->result_at, kept->from.bytes, engine->array_bytes[kept->result]);
}

static int read_address(Engine *engine, Section section, void *record) {
    const Address *address = record;
    (void)section;
    return among(address->array, -1, engine->fields + 1) && word_inside(engine, address->place);
}

static int read_pull(Engine *engine, Section section, void *record) {
    const Pull *pull = record;
    (void)section;
    return word_inside(engine, pull->process) && word_inside(engine, pull->address) && pull->at >= 0 &&
           among(pull->array, engine->fields, engine->fields) &&
           inside(pull->to, pull->bytes, engine->array_bytes[pull->array]);
}

/* The tasks are read before. */
static int read_redirect(Engine *engine, Section section, void *record) {
    Redirect *redirect = record;
    int64_t first = section == OWN ? 0 : engine->fields;
    if (!among(redirect->task, 0, engine->count[TASKS]) || !among(redirect->array, first, engine->fields))
        return 0;
    int64_t *task = engine->tasks[redirect->task], field = redirect->array - first;
    int right = section == OWN ? among(redirect->place, 1, task[1]) : redirect->place == 0;
    if (!right || !rows_inside(engine, field, task[0], redirect->at, engine->array_bytes[redirect->array]))
        return 0;
    int64_t *word = task + 2 + (1 + redirect->place) * engine->fields + field;
    redirect->task = (intptr_t)word, redirect->place = *word;
    return 1;
}

static int read_wait(Engine *engine, Section section, void *record) {
    const Wait *wait = record;
    (void)section;
    return among(wait->rank, 0, engine->ranks) && among(wait->progress, -2 * STRIDE, 3 * STRIDE);
}

/* The records of the stages before it are those before `wait`, `task`, `made` and `pull`. */
static int read_stage(Engine *engine, Section section, void *record) {
    const Stage *stage = record;
    int64_t before = stage == engine->section[section] ? -1 : stage[-1].progress;
    if (stage->progress <= before || stage->progress > FINISHED ||
        !inside(engine->wait, stage->waits, engine->count[WAITS]) ||
        !inside(engine->task, stage->tasks, engine->count[TASKS]) ||
        !inside(engine->made, stage->copies, engine->count[MADE]) ||
        !inside(engine->pull, stage->pulls, engine->count[PULLS]))
        return 0;
    engine->wait += stage->waits, engine->task += stage->tasks, engine->made += stage->copies;
    engine->pull += stage->pulls;
    return 1;
}

/* The kinds of records. A task has more words, and is read by `read_tasks`. */
static const struct {
    const char *name;
    int64_t words;
    int (*read)(Engine *engine, Section section, void *record); /* whether it is right */
} KINDS[SECTIONS] = {
    [PACK] = {"PACK", 4, read_copy},
    [PACK_OWN] = {"PACK_OWN", 4, read_copy},
    [UNPACK] = {"UNPACK", 4, read_copy},
    [KEPT] = {"KEPT", 6, read_kept},
    [MADE] = {"MADE", 4, read_copy},
    [ADDRESSES] = {"ADDRESSES", 2, read_address},
    [PULLS] = {"PULLS", 6, read_pull},
    [OWN] = {"OWN", 4, read_redirect},
    [TARGETS] = {"TARGETS", 4, read_redirect},
    [CREDITS] = {"CREDITS", 2, read_wait},
    [WAITS] = {"WAITS", 2, read_wait},
    [STAGES] = {"STAGES", 6, read_stage},
    [TASKS] = {"TASKS", 2, NULL},
};

static int refuse_record(Engine *engine, Section section, int64_t index) {
    snprintf(engine->wrong, sizeof engine->wrong, "%s %" PRId64 " does not fit memory, arrays, counters and the others",
             KINDS[section].name, index);
    return -1;
}

static int refuse(Engine *engine, const char *what, int64_t words) {
    snprintf(engine->wrong, sizeof engine->wrong, "%" PRId64 " words %s", words, what);
    return -1;
}

static int find_sections(Engine *engine, int64_t all) {
    int64_t at = SECTIONS;
    for (int section = 0; section < SECTIONS; section++) {
        int64_t count = engine->words[section];
        if (!inside(at, count, all) || !inside(at, count * KINDS[section].words, all)) /* at most 2^60 words */
            return refuse(engine, "do not hold the records of all sections", all);
        engine->count[section] = count;
        engine->section[section] = engine->words + at;
        at += count * KINDS[section].words;
    }
    return 0;
}

/* Find the tasks, and turn the offsets in them into addresses. */
static int read_tasks(Engine *engine, const int64_t *end) {
    int64_t *word = engine->section[TASKS], fields = engine->fields;
    for (int64_t index = 0; index < engine->count[TASKS]; index++) {
        int64_t *task = engine->tasks[index] = word, *items = task + 2, left = end - task;
        if (left < 2 || task[1] < 1 || task[1] >= left || 2 + (2 + task[1]) * fields > left ||
            memcmp(items, engine->row_items, (size_t)fields * sizeof *items) != 0)
            return refuse_record(engine, TASKS, index);
        word = items + (2 + task[1]) * fields;
        for (int64_t *place = items + fields; place < word; place++) {
            if (!rows_inside(engine, (place - items) % fields, task[0], *place, engine->memory_bytes))
                return refuse_record(engine, TASKS, index);
            *place += (intptr_t)engine->memory;
        }
    }
    return word == end ? 0 : refuse(engine, "follow the last task", end - word);
}

int read_program(Engine *engine, const int64_t *words, int64_t count) {
    if (count < SECTIONS)
        return refuse(engine, "are no program", count);
    engine->words = malloc((size_t)count * sizeof *words);
    engine->tasks = malloc((size_t)count * sizeof *engine->tasks); /* a task has more words than one */
    if (engine->words == NULL || engine->tasks == NULL)
        return refuse(engine, "are too many for this machine's memory", count);
    memcpy(engine->words, words, (size_t)count * sizeof *words);
    if (find_sections(engine, count) < 0 || read_tasks(engine, engine->words + count) < 0)
        return -1;
    for (Section section = 0; section < TASKS; section++) {
        int64_t *record = engine->section[section];
        for (int64_t index = 0; index < engine->count[section]; index++, record += KINDS[section].words)
            if (!KINDS[section].read(engine, section, record))
                return refuse_record(engine, section, index);
    }
    int all = engine->wait == engine->count[WAITS] && engine->task == engine->count[TASKS];
    all = all && engine->made == engine->count[MADE] && engine->pull == engine->count[PULLS];
    return all ? 0 : refuse_record(engine, STAGES, engine->count[STAGES]);
}

void release_program(Engine *engine) {
    free(engine->words);
    free(engine->tasks);
}
