/* Messages and folds of an exchange of nodes: planning/algorithms/gossip_schedule.py, NodeExchange, says by which rules. */
#include "numbers.h"
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { TREE, HELD, MESSAGES, READ_ONLY, NEXT_SLOT = READ_ONLY, RESULTS, ARRAYS }; /* the arrays; from NEXT_SLOT on written */
static const Py_ssize_t ITEMS[ARRAYS] = {4, 4, 4, 4, 4};
enum { LOW, HIGH, LEFT, RIGHT, PARENT, TREE_COLUMNS };
enum { MOVES, FOLDS, OPERANDS, WIDTHS, COLUMNS, NO_PATH = -1 };
enum { DONE, LACKS, NO_MEMORY = -1, UNFIT = -2 };

typedef struct {
    const int32_t *tree[TREE_COLUMNS], *held, *messages;
    int32_t *next_slot, *results;
    int64_t nodes, leaves, ranks, held_count, message_count, node_words, leaf_words;
    int32_t chunk;
    int32_t *slot, *since;             /* [ranks, nodes]: the slot of each node, or -1; the round at whose end it is there */
    uint64_t *tops, *before, *known;   /* [ranks, words]: largest nodes, now and before this round; values in these */
    int32_t *round_of;                 /* of each rank, plus 1: for which round `before` is */
    List columns[COLUMNS], stack, arriving;
} Exchange;

static int has(const uint64_t *bits, int64_t place) { return (int)(bits[place >> 6] >> (place & 63) & 1); }
static void set(uint64_t *bits, int64_t place) { bits[place >> 6] |= (uint64_t)1 << (place & 63); }
static void unset(uint64_t *bits, int64_t place) { bits[place >> 6] &= ~((uint64_t)1 << (place & 63)); }

/* How many of the values of a node the rank knows: 0 none, 2 all, 1 others. */
static int knows(const Exchange *e, int64_t rank, int64_t node) {
    const uint64_t *known = e->known + rank * e->leaf_words;
    int any = 0, all = 1;
    for (int64_t leaf = e->tree[LOW][node]; leaf < e->tree[HIGH][node]; leaf++)
        if (has(known, leaf))
            any = 1;
        else
            all = 0;
    return any + (any && all);
}

static int64_t sibling(const Exchange *e, int64_t node) {
    int64_t above = e->tree[PARENT][node];
    if (above < 0)
        return -1;
    return e->tree[LEFT][above] == node ? e->tree[RIGHT][above] : e->tree[LEFT][above];
}

/* The first node from `node` on; -1 where there is none. */
static int64_t next_node(const Exchange *e, const uint64_t *nodes, int64_t node) {
    for (int64_t word = node >> 6; word < e->node_words; word++) {
        uint64_t rest = word == node >> 6 ? nodes[word] >> (node & 63) << (node & 63) : nodes[word];
        if (rest)
            return word * 64 + __builtin_ctzll(rest);
    }
    return -1;
}

/* Add a node to the largest ones of a rank: nodes below it are removed, and two siblings become their parent. */
static void put(Exchange *e, int64_t rank, int64_t node) {
    uint64_t *tops = e->tops + rank * e->node_words;
    if (knows(e, rank, node))
        for (int64_t other = next_node(e, tops, 0); other >= 0; other = next_node(e, tops, other + 1))
            if (e->tree[LOW][other] >= e->tree[LOW][node] && e->tree[HIGH][other] <= e->tree[HIGH][node])
                unset(tops, other);
    for (int64_t leaf = e->tree[LOW][node]; leaf < e->tree[HIGH][node]; leaf++)
        set(e->known + rank * e->leaf_words, leaf);
    for (int64_t other = sibling(e, node); other >= 0 && has(tops, other); other = sibling(e, node)) {
        unset(tops, other);
        node = e->tree[PARENT][node];
    }
    set(tops, node);
}

static int append(List *list, const int32_t *numbers, int64_t count) {
    if (reserve(list, list->count + count) < 0)
        return NO_MEMORY;
    memcpy(list->at + list->count, numbers, (size_t)count * sizeof *numbers);
    list->count += count;
    return DONE;
}

/* Fold a node of a rank out of the nodes on the stack from `first` on, the last of which is the left one. */
static int fold(Exchange *e, int64_t rank, int64_t node, int64_t first) {
    int32_t *slot = e->slot + rank * e->nodes, *since = e->since + rank * e->nodes, round = 0;
    int32_t width = (int32_t)(e->stack.count - first);
    for (int64_t at = e->stack.count - 1; at >= first; at--) {
        int32_t operand = e->stack.at[at];
        round = since[operand] > round ? since[operand] : round;
        if (add(&e->columns[OPERANDS], slot[operand]) < 0)
            return NO_MEMORY;
    }
    e->stack.count = first;
    slot[node] = e->next_slot[rank]++, since[node] = round;
    int32_t row[] = {round, (int32_t)rank, slot[node], e->chunk};
    return append(&e->columns[FOLDS], row, 4) < 0 ? NO_MEMORY : add(&e->columns[WIDTHS], width);
}

/* Make a rank have the slot of a node, folded if need be: its left spine, down to the first value that the rank has. */
static int make_value(Exchange *e, int64_t rank, int64_t node) {
    const int32_t *slot = e->slot + rank * e->nodes;
    int64_t first = e->stack.count, below = node;
    if (slot[node] >= 0)
        return DONE;
    for (; slot[below] < 0; below = e->tree[LEFT][below]) {
        if (e->tree[LEFT][below] < 0)
            return LACKS;
        int state = make_value(e, rank, e->tree[RIGHT][below]);
        if (state != DONE || (state = add(&e->stack, e->tree[RIGHT][below])) < 0)
            return state;
    }
    return add(&e->stack, (int32_t)below) < 0 ? NO_MEMORY : fold(e, rank, node, first);
}

/* What a rank had before this round. */
static uint64_t *had(Exchange *e, int64_t rank, int32_t round) {
    return (e->round_of[rank] == round + 1 ? e->before : e->tops) + rank * e->node_words;
}

/* Send what the destination of a message lacks of the largest nodes of the source. */
static int send(Exchange *e, int32_t round, int32_t src, int32_t dst) {
    const uint64_t *sent = had(e, src, round);
    if (e->round_of[dst] != round + 1) {
        memcpy(e->before + dst * e->node_words, e->tops + dst * e->node_words, (size_t)e->node_words * 8);
        e->round_of[dst] = round + 1;
    }
    for (int64_t node = next_node(e, sent, 0); node >= 0; node = next_node(e, sent, node + 1)) {
        if (knows(e, dst, node) == 2)
            continue;
        int state = make_value(e, src, node);
        if (state != DONE)
            return state;
        int32_t slot = e->next_slot[dst]++, arrives[] = {dst, (int32_t)node, slot};
        int32_t row[] = {round, src, e->slot[src * e->nodes + node], dst, slot, e->chunk, NO_PATH};
        if (append(&e->columns[MOVES], row, 7) < 0 || append(&e->arriving, arrives, 3) < 0)
            return NO_MEMORY;
        put(e, dst, node);
    }
    return DONE;
}

/* Send all messages, by round, then fold the whole value on every rank. */
static int exchange(Exchange *e) {
    int64_t root = e->nodes - 1;
    int state = DONE;
    for (int64_t at = 0; at < e->held_count; at++) {
        const int32_t *held = e->held + 3 * at;
        e->slot[held[0] * e->nodes + held[1]] = held[2];
        if (knows(e, held[0], held[1]) < 2)
            put(e, held[0], held[1]);
    }
    for (int64_t at = 0; at < e->message_count && state == DONE; at++) {
        const int32_t *message = e->messages + 3 * at;
        state = send(e, message[0], message[1], message[2]);
        if (at + 1 < e->message_count && message[3] == message[0])
            continue;
        for (int64_t each = 0; each < e->arriving.count; each += 3) {
            const int32_t *arrives = e->arriving.at + each;
            int64_t place = arrives[0] * e->nodes + arrives[1];
            e->slot[place] = arrives[2], e->since[place] = message[0];
        }
        e->arriving.count = 0;
    }
    for (int64_t rank = 0; rank < e->ranks && state == DONE; rank++) {
        state = make_value(e, rank, root);
        e->results[rank] = e->slot[rank * e->nodes + root];
    }
    return state;
}

static int open_exchange(Exchange *e) {
    size_t ranks = (size_t)e->ranks, places = ranks * (size_t)e->nodes, words = ranks * (size_t)e->node_words;
    e->slot = malloc((places + 1) * sizeof *e->slot);
    e->since = calloc(places + 1, sizeof *e->since);
    e->tops = calloc(2 * words + ranks * (size_t)e->leaf_words + 1, sizeof *e->tops);
    e->round_of = calloc(ranks + 1, sizeof *e->round_of);
    if (e->slot == NULL || e->since == NULL || e->tops == NULL || e->round_of == NULL)
        return NO_MEMORY;
    memset(e->slot, -1, places * sizeof *e->slot);
    e->before = e->tops + words, e->known = e->before + words;
    return DONE;
}

static void close_exchange(Exchange *e) {
    for (int column = 0; column < COLUMNS; column++)
        free(e->columns[column].at);
    free(e->slot), free(e->since), free(e->tops), free(e->round_of), free(e->stack.at), free(e->arriving.at);
}

static int is_in(int64_t number, int64_t low, int64_t high) { return low <= number && number < high; }

/* Whether nodes are in a tree: the leaves first, then inner nodes, children before parents, of which the root is last. */
static int is_tree(const Exchange *e) {
    for (int64_t node = 0; node < e->nodes; node++) {
        int32_t left = e->tree[LEFT][node], right = e->tree[RIGHT][node], above = e->tree[PARENT][node];
        int leaf = left == -1 && right == -1, inner = is_in(left, 0, node) && is_in(right, 0, node);
        if ((!leaf && !inner) || e->tree[LOW][node] < 0 || e->tree[HIGH][node] > e->leaves ||
            (above != -1 && !is_in(above, node + 1, e->nodes)) || (above == -1 && node + 1 < e->nodes))
            return 0;
    }
    return 1;
}

/* The arrays as an exchange: DONE, or UNFIT. */
static int exchange_of(const Py_buffer *views, long chunk, Exchange *e) {
    int64_t nodes = views[TREE].len / (4 * TREE_COLUMNS), ranks = views[NEXT_SLOT].len / 4;
    *e = (Exchange){.held = views[HELD].buf, .messages = views[MESSAGES].buf, .next_slot = views[NEXT_SLOT].buf,
                    .results = views[RESULTS].buf, .nodes = nodes, .ranks = ranks, .leaves = (nodes + 1) / 2,
                    .held_count = views[HELD].len / 12, .message_count = views[MESSAGES].len / 12,
                    .node_words = (nodes + 63) / 64, .leaf_words = (nodes + 127) / 128, .chunk = (int32_t)chunk};
    for (int column = 0; column < TREE_COLUMNS; column++)
        e->tree[column] = (const int32_t *)views[TREE].buf + column * nodes;
    int fits = nodes > 0 && views[TREE].len == 4 * TREE_COLUMNS * nodes && views[RESULTS].len == 4 * ranks && is_tree(e);
    for (int64_t at = 0; fits && at < e->held_count; at++)
        fits = is_in(e->held[3 * at], 0, ranks) && is_in(e->held[3 * at + 1], 0, nodes) && e->held[3 * at + 2] >= 0;
    for (int64_t at = 0; fits && at < e->message_count; at++)
        fits = e->messages[3 * at] >= 0 && is_in(e->messages[3 * at + 1], 0, ranks) && is_in(e->messages[3 * at + 2], 0, ranks);
    return fits ? DONE : UNFIT;
}

static PyObject *bytes_of(const Exchange *e, int column) {
    const List *list = &e->columns[column];
    return PyBytes_FromStringAndSize((const char *)list->at, (Py_ssize_t)((size_t)list->count * sizeof *list->at));
}

PyObject *exchange_nodes(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    Exchange e;
    PyObject *made = NULL;
    (void)module;
    if (PyTuple_Size(args) != ARRAYS + 1)
        return PyErr_Format(PyExc_TypeError, "exchange_nodes takes %d arrays and a chunk", ARRAYS);
    long chunk = PyLong_AsLong(PyTuple_GetItem(args, ARRAYS));
    if (chunk == -1 && PyErr_Occurred())
        return NULL;
    PyObject *arrays = PyTuple_GetSlice(args, 0, ARRAYS);
    int taken = arrays == NULL ? -1 : take_columns(arrays, views, ITEMS, ARRAYS, ARRAYS - READ_ONLY);
    Py_XDECREF(arrays);
    if (taken < 0)
        return NULL;
    int state = exchange_of(views, chunk, &e);
    if (state == DONE) {
        Py_BEGIN_ALLOW_THREADS
        state = open_exchange(&e) < 0 ? NO_MEMORY : exchange(&e);
        Py_END_ALLOW_THREADS
    }
    if (state == DONE)
        made = Py_BuildValue("(NNNN)", bytes_of(&e, MOVES), bytes_of(&e, FOLDS), bytes_of(&e, OPERANDS),
                             bytes_of(&e, WIDTHS));
    close_exchange(&e);
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (state == UNFIT)
        return PyErr_Format(PyExc_ValueError, "exchange_nodes: its arrays do not fit each other");
    if (state == NO_MEMORY)
        return PyErr_NoMemory();
    return state == LACKS ? Py_NewRef(Py_None) : made;
}
