/* The places of a schedule by number: planning/schedule/place_numbers.py says what for. */
#define _GNU_SOURCE
#include "types.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { /* the arrays that number_places takes; from RANK_OF on written */
    TRANSFERS, COMBINES, OPERAND_SLOTS, FOLD_OF, INPUTS, OUTPUTS, READ_ONLY,
    RANK_OF = READ_ONLY, CHUNK_OF, SENT, RECEIVED, FOLDED, OPERANDS, GIVEN, RESULTS, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {4, 4, 4, 8, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8};
enum { LARGE_PAGE = 1 << 21 };
enum { WRITES = 3, PARTS = 6, AT_ONCE = 32 }; /* the writes come first; keys that are looked up together */

typedef struct { /* the (rank, slot, chunk) of reads or writes, and where their numbers go */
    const int32_t *rank, *slot, *chunk;
    const int64_t *row; /* of rank and chunk; NULL: as of the slot */
    int64_t count, step, slot_step, *number;
} Part;

typedef struct {
    int64_t low[3], size[3]; /* of the ranks, chunks and slots that are written */
    uint64_t *entries;       /* open addressing: a key above a number; 0 where there is none */
    int bits, shift;         /* of a number; of a hash */
    uint64_t mask;           /* of the table */
} Places;

static int64_t row_of(const Part *part, int64_t at) { return (part->row == NULL ? at : part->row[at]) * part->step; }

static void place_of(const Part *part, int64_t at, int64_t place[3]) {
    int64_t row = row_of(part, at);
    place[0] = part->rank[row], place[1] = part->chunk[row], place[2] = part->slot[at * part->slot_step];
}

/* The key of a place, above 0; 0 where nothing can have written it. */
static uint64_t key_of(const Places *places, const Part *part, int64_t at) {
    int64_t place[3], key = 0;
    place_of(part, at, place);
    for (int column = 0; column < 3; column++) {
        int64_t own = place[column] - places->low[column];
        if (own < 0 || own >= places->size[column])
            return 0;
        key = key * places->size[column] + own;
    }
    return (uint64_t)key + 1;
}

/* Keys are products of small numbers: mixed once alone, many would follow each other. */
static uint64_t first_of(const Places *places, uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) * 0xD6E8FEB86659FD93u >> places->shift;
}

/* Find the ranges of what is written: 0, or -1 where keys and numbers have too many bits for one word. */
static int measure(Places *places, const Part *parts, int64_t written) {
    int64_t place[3], high[3] = {INT32_MIN, INT32_MIN, INT32_MIN};
    double keys = 1.0;
    for (int column = 0; column < 3; column++)
        places->low[column] = INT32_MAX;
    for (int each = 0; each < WRITES; each++)
        for (int64_t at = 0; at < parts[each].count; at++) {
            place_of(&parts[each], at, place);
            for (int column = 0; column < 3; column++) {
                if (place[column] < places->low[column])
                    places->low[column] = place[column];
                if (place[column] > high[column])
                    high[column] = place[column];
            }
        }
    for (int column = 0; column < 3; column++) {
        places->size[column] = high[column] < places->low[column] ? 0 : high[column] - places->low[column] + 1;
        keys *= (double)places->size[column];
    }
    for (places->bits = 1; (int64_t)1 << places->bits <= written; places->bits++)
        ;
    int table_bits = places->bits + 1;
    places->shift = 64 - table_bits;
    places->mask = ((uint64_t)1 << table_bits) - 1;
    return keys < (double)((uint64_t)1 << (62 - places->bits)) ? 0 : -1;
}

/* Number all writes: whether two are of one place, of which the last stays. */
static int number_writes(Places *places, const Part *parts, int64_t *rank_of, int64_t *chunk_of) {
    uint64_t number = 0, keys[AT_ONCE];
    int again = 0;
    for (int each = 0; each < WRITES; each++)
        for (int64_t low = 0; low < parts[each].count; low += AT_ONCE) {
            int64_t some = parts[each].count - low < AT_ONCE ? parts[each].count - low : AT_ONCE;
            for (int64_t at = 0; at < some; at++) {
                keys[at] = key_of(places, &parts[each], low + at);
                __builtin_prefetch(&places->entries[first_of(places, keys[at])]);
            }
            for (int64_t at = 0; at < some; at++, number++) {
                uint64_t entry = first_of(places, keys[at]), row = (uint64_t)row_of(&parts[each], low + at);
                while (places->entries[entry] && places->entries[entry] >> places->bits != keys[at])
                    entry = (entry + 1) & places->mask;
                again |= places->entries[entry] != 0;
                places->entries[entry] = keys[at] << places->bits | number;
                rank_of[number] = parts[each].rank[row];
                chunk_of[number] = parts[each].chunk[row];
            }
        }
    return again;
}

/* Set the numbers of a part, `none` where nothing writes a place: whether there is one. */
static int look_up(const Places *places, const Part *part, int64_t none) {
    uint64_t keys[AT_ONCE], number_mask = ((uint64_t)1 << places->bits) - 1;
    int lacking = 0;
    for (int64_t low = 0; low < part->count; low += AT_ONCE) {
        int64_t some = part->count - low < AT_ONCE ? part->count - low : AT_ONCE;
        for (int64_t at = 0; at < some; at++) {
            keys[at] = key_of(places, part, low + at);
            __builtin_prefetch(&places->entries[first_of(places, keys[at])]);
        }
        for (int64_t at = 0; at < some; at++) {
            uint64_t entry = first_of(places, keys[at]);
            while (places->entries[entry] && places->entries[entry] >> places->bits != keys[at])
                entry = (entry + 1) & places->mask;
            int missing = keys[at] == 0 || places->entries[entry] == 0;
            lacking |= missing;
            part->number[low + at] = missing ? none : (int64_t)(places->entries[entry] & number_mask);
        }
    }
    return lacking;
}

/* Zeros, where they are many in large pages if the system has them: the table is read all over. */
static void *new_table(size_t bytes) {
#ifdef MADV_HUGEPAGE
    void *table;
    if (bytes >= LARGE_PAGE && posix_memalign(&table, LARGE_PAGE, bytes) == 0) {
        madvise(table, bytes, MADV_HUGEPAGE);
        return memset(table, 0, bytes);
    }
#endif
    return calloc(bytes, 1);
}

/* 1 or 0: whether something reads what nothing writes; -1: keys are too long; -2: no memory. */
static int number_parts(const Part *parts, int64_t written, int64_t *rank_of, int64_t *chunk_of) {
    Places places = {.entries = NULL};
    int lacking = 0;
    if (measure(&places, parts, written) < 0)
        return -1;
    places.entries = new_table(((size_t)places.mask + 1) * sizeof *places.entries);
    if (places.entries == NULL)
        return -2;
    int again = number_writes(&places, parts, rank_of, chunk_of);
    int64_t number = 0;
    for (int each = 0; each < PARTS; each++)
        if (each >= WRITES || again)
            lacking |= look_up(&places, &parts[each], written);
        else
            for (int64_t at = 0; at < parts[each].count; at++)
                parts[each].number[at] = number++;
    free(places.entries);
    return lacking;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

/* The parts of these arrays: 0, or -1 where their lengths do not fit. */
static int parts_of(const Py_buffer *views, Part *parts) {
    const int32_t *moves = views[TRANSFERS].buf, *folds = views[COMBINES].buf;
    const int32_t *inputs = views[INPUTS].buf, *outputs = views[OUTPUTS].buf;
    int64_t given = items(&views[INPUTS]) / 4, sent = items(&views[TRANSFERS]) / 7, made = items(&views[COMBINES]) / 4;
    int64_t read = items(&views[OPERAND_SLOTS]), results = items(&views[OUTPUTS]) / 3;
    const Part every[PARTS] = {
        {inputs, inputs + 1, inputs + 2, NULL, given, 4, 4, views[GIVEN].buf},
        {moves + 3, moves + 4, moves + 5, NULL, sent, 7, 7, views[RECEIVED].buf},
        {folds + 1, folds + 2, folds + 3, NULL, made, 4, 4, views[FOLDED].buf},
        {moves + 1, moves + 2, moves + 5, NULL, sent, 7, 7, views[SENT].buf},
        {folds + 1, views[OPERAND_SLOTS].buf, folds + 3, views[FOLD_OF].buf, read, 4, 1, views[OPERANDS].buf},
        {outputs, outputs + 1, outputs + 2, NULL, results, 3, 3, views[RESULTS].buf},
    };
    const int64_t wanted[] = {given + sent + made, given + sent + made, sent, sent, made, read, given, results};
    memcpy(parts, every, sizeof every);
    for (int array = RANK_OF; array < ARRAYS; array++)
        if (items(&views[array]) != wanted[array - RANK_OF])
            return -1;
    for (int64_t at = 0; at < read; at++)
        if (every[4].row[at] < 0 || every[4].row[at] >= made)
            return -1;
    return items(&views[FOLD_OF]) == read ? 0 : -1;
}

static PyObject *number_views(Py_buffer *views) {
    Part parts[PARTS];
    int state;
    if (items(&views[FOLD_OF]) != items(&views[OPERAND_SLOTS]) || parts_of(views, parts) < 0)
        return PyErr_Format(PyExc_ValueError, "number_places: the lengths of its arrays do not fit each other");
    Py_BEGIN_ALLOW_THREADS
    state = number_parts(parts, items(&views[RANK_OF]), views[RANK_OF].buf, views[CHUNK_OF].buf);
    Py_END_ALLOW_THREADS
    return state == -2 ? PyErr_NoMemory() : PyLong_FromLong(state);
}

PyObject *number_places(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    PyObject *result;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, ARRAYS - READ_ONLY) < 0)
        return NULL;
    result = number_views(views);
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return result;
}
