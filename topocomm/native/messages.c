/* The messages of a schedule: planning/cost/messages.py says which transfers are one. */
#include "types.h"

#include <stdlib.h>

enum { TRANSFERS, CHUNK_BYTES, READ_ONLY, OF_TRANSFER = READ_ONLY, FIRST, SIZE, ARRAYS };
static const Py_ssize_t ITEMS[ARRAYS] = {4, 8, 8, 8, 8};
enum { ROUND, SRC, DST = 3, CHUNK = 5, PATH, COLUMNS };

typedef struct {
    const int32_t *transfers;
    const int64_t *chunk_bytes;
    int64_t *of_transfer, *first, *size; /* of each message: its first transfer, and its bytes */
    int64_t *table;                      /* open addressing: a message, plus 1 */
    int64_t count, chunks, mask;
} Columns;

static const int32_t *row_of(const Columns *c, int64_t transfer) { return c->transfers + COLUMNS * transfer; }

static int are_one(const int32_t *a, const int32_t *b) {
    return a[SRC] == b[SRC] && a[DST] == b[DST] && a[PATH] == b[PATH] && a[ROUND] == b[ROUND];
}

/* Where the table is searched first. */
static int64_t place_of(const Columns *c, const int32_t *row) {
    uint64_t key = (uint64_t)(uint32_t)row[SRC] << 32 | (uint32_t)row[DST];
    key = (key ^ (uint64_t)(uint32_t)row[PATH] << 17) * 0x9E3779B97F4A7C15u;
    return (int64_t)((key ^ key >> 32) * 0xD6E8FEB86659FD93u >> 20) & c->mask;
}

/* The transfers of the longest round. */
static int64_t longest_round(const Columns *c) {
    int64_t longest = 0, begin = 0;
    for (int64_t at = 1; at <= c->count; at++)
        if (at == c->count || row_of(c, at)[ROUND] != row_of(c, begin)[ROUND]) {
            longest = at - begin > longest ? at - begin : longest;
            begin = at;
        }
    return longest;
}

/* The message of a transfer among those before it; a new one where there is none. */
static int64_t message_of(Columns *c, int64_t transfer, int64_t messages) {
    const int32_t *row = row_of(c, transfer);
    int64_t at = place_of(c, row);
    for (; c->table[at]; at = (at + 1) & c->mask)
        if (are_one(row, row_of(c, c->first[c->table[at] - 1])))
            return c->table[at] - 1;
    c->table[at] = messages + 1;
    c->first[messages] = transfer, c->size[messages] = 0;
    return messages;
}

/* Take the messages of a round out of the table, none of which is looked for any more. */
static void forget(Columns *c, int64_t first, int64_t end) {
    for (int64_t message = first; message < end; message++)
        for (int64_t at = place_of(c, row_of(c, c->first[message])); c->table[at]; at = (at + 1) & c->mask)
            c->table[at] = 0;
}

/* Number the messages, by their first transfers: how many; -1 without memory, -2 where a chunk has no size. */
static int64_t group(Columns *c) {
    int64_t messages = 0, begun = 0;
    int64_t longest = longest_round(c);
    for (c->mask = 1; c->mask < 2 * longest; c->mask = 2 * c->mask + 1)
        ;
    c->table = calloc((size_t)c->mask + 1, sizeof *c->table);
    if (c->table == NULL)
        return -1;
    for (int64_t transfer = 0; transfer < c->count; transfer++) {
        const int32_t *row = row_of(c, transfer);
        if (row[CHUNK] < 0 || row[CHUNK] >= c->chunks)
            return -2;
        if (transfer && row[ROUND] != row_of(c, transfer - 1)[ROUND]) {
            forget(c, begun, messages);
            begun = messages;
        }
        int again = transfer && are_one(row, row - COLUMNS);
        int64_t message = again ? c->of_transfer[transfer - 1] : message_of(c, transfer, messages);
        messages += message == messages;
        c->of_transfer[transfer] = message;
        c->size[message] = (int64_t)((uint64_t)c->size[message] + (uint64_t)c->chunk_bytes[row[CHUNK]]);
    }
    return messages;
}

PyObject *group_messages(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    int64_t messages = -2;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, ARRAYS - READ_ONLY) < 0)
        return NULL;
    int64_t count = views[TRANSFERS].len / (4 * COLUMNS);
    Columns columns = {
        views[TRANSFERS].buf, views[CHUNK_BYTES].buf, views[OF_TRANSFER].buf, views[FIRST].buf, views[SIZE].buf, NULL,
        count, views[CHUNK_BYTES].len / 8, 0,
    };
    int fits = views[TRANSFERS].len == 4 * COLUMNS * count;
    for (int array = READ_ONLY; array < ARRAYS; array++)
        fits = fits && views[array].len == 8 * count;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        messages = group(&columns);
        free(columns.table);
        Py_END_ALLOW_THREADS
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (messages == -2)
        return PyErr_Format(PyExc_ValueError, "group_messages: its arrays do not fit each other");
    return messages < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(messages);
}
