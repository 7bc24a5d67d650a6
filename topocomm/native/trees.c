/* Expression trees by number: planning/proof/expressions.py says what is one tree. */
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { /* the arrays that fold_trees takes; from TREE_OF on written */
    LEAVES, OPERANDS, STARTS, TREE_OF, LOW, HIGH, LEFT, RIGHT, FLAGS, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {8, 8, 4, 8, 4, 4, 4, 4, 1};
enum { IN_ORDER = 1, CANONICAL = 2, GAPS = 4 };
enum { FIRST_TABLE = 1 << 12, BITS = 64 };
enum { NO_ROOM = -2, TWICE = -1 };

typedef struct {
    int32_t *low, *high, *left, *right; /* of each tree: its contributions lie in [low, high); the trees it is made of */
    uint8_t *flags;
    int64_t count, room;
    int32_t *table; /* open addressing by both parts: a tree, plus 1 */
    int64_t mask;
    uint64_t *words; /* contributions of trees with gaps, from the word of the least to that of the greatest */
    int64_t used, words_room;
    int64_t *first_word; /* of each tree with gaps */
} Trees;

static int64_t entry_of(const Trees *t, int64_t left, int64_t right) {
    uint64_t key = ((uint64_t)left << 32 | (uint64_t)right) * 0x9E3779B97F4A7C15u;
    return (int64_t)((key ^ key >> 32) * 0xD6E8FEB86659FD93u >> 20) & t->mask;
}

static int new_table(Trees *t, int64_t entries, int64_t leaves) {
    int32_t *table = calloc((size_t)entries, sizeof *table);
    if (table == NULL)
        return NO_ROOM;
    free(t->table);
    t->table = table, t->mask = entries - 1;
    for (int64_t tree = leaves; tree < t->count; tree++) {
        int64_t entry = entry_of(t, t->left[tree], t->right[tree]);
        for (; t->table[entry]; entry = (entry + 1) & t->mask)
            ;
        t->table[entry] = (int32_t)tree + 1;
    }
    return 0;
}

/* The contributions word * BITS and following of a tree, one bit each. */
static uint64_t word_of(const Trees *t, int64_t tree, int64_t word) {
    int64_t low = t->low[tree], high = t->high[tree], first = word * BITS, end = first + BITS;
    if (low >= end || high <= first)
        return 0;
    if (t->flags[tree] & GAPS)
        return t->words[t->first_word[tree] + word - low / BITS];
    uint64_t from = low > first ? ~(uint64_t)0 << (low - first) : ~(uint64_t)0;
    return high < end ? from & (((uint64_t)1 << (high - first)) - 1) : from;
}

static int64_t largest_split(int64_t count) {
    int64_t split = 1;
    while (2 * split < count)
        split *= 2;
    return split;
}

/* Set the flags of a tree of these parts, of which one has gaps or which do not abut in order: 0, TWICE or NO_ROOM. */
static int join_sets(Trees *t, int64_t tree, int64_t left, int64_t right) {
    int64_t first = t->low[tree] / BITS, words = (t->high[tree] - 1) / BITS - first + 1, members = 0;
    if (t->used + words > t->words_room) {
        int64_t room = 2 * (t->used + words);
        uint64_t *more = realloc(t->words, (size_t)room * sizeof *more);
        if (more == NULL)
            return NO_ROOM;
        t->words = more, t->words_room = room;
    }
    for (int64_t word = 0; word < words; word++) {
        uint64_t one = word_of(t, left, first + word), other = word_of(t, right, first + word);
        if (one & other)
            return TWICE;
        t->words[t->used + word] = one | other;
        members += __builtin_popcountll(one | other);
    }
    t->flags[tree] = 0;
    if (members < t->high[tree] - t->low[tree]) {
        t->flags[tree] = GAPS;
        t->first_word[tree] = t->used;
        t->used += words;
    }
    return 0;
}

/* Add the tree of two: its number, TWICE or NO_ROOM. */
static int64_t merge(Trees *t, int64_t left, int64_t right) {
    int64_t tree = t->count, low = t->low[left], middle = t->high[left], start = t->low[right], high = t->high[right];
    int gaps = (t->flags[left] | t->flags[right]) & GAPS;
    t->low[tree] = (int32_t)(low < start ? low : start), t->high[tree] = (int32_t)(high > middle ? high : middle);
    t->left[tree] = (int32_t)left, t->right[tree] = (int32_t)right;
    if (!gaps && middle == start) {
        int both = t->flags[left] & t->flags[right];
        int split = middle - low == largest_split(high - low);
        t->flags[tree] = (uint8_t)(both & (split ? IN_ORDER | CANONICAL : IN_ORDER));
    } else if (!gaps && high == low) {
        t->flags[tree] = 0;
    } else {
        int state = join_sets(t, tree, left, right);
        if (state < 0)
            return state;
    }
    return t->count++;
}

/* The tree of two, a new one where there is none. */
static int64_t tree_of_pair(Trees *t, int64_t left, int64_t right, int64_t leaves) {
    int64_t entry = entry_of(t, left, right);
    for (; t->table[entry]; entry = (entry + 1) & t->mask) {
        int64_t tree = t->table[entry] - 1;
        if (t->left[tree] == left && t->right[tree] == right)
            return tree;
    }
    int64_t tree = merge(t, left, right);
    if (tree < 0)
        return tree;
    t->table[entry] = (int32_t)tree + 1;
    if (2 * (t->count - leaves) > t->mask && new_table(t, 2 * (t->mask + 1), leaves) < 0)
        return NO_ROOM;
    return tree;
}

/* Fold all: the number of trees, TWICE or NO_ROOM. */
static int64_t fold_all(Trees *t, const int64_t *operands, const int32_t *starts, int64_t folds, int64_t *tree_of,
                        int64_t inputs) {
    int64_t leaves = t->count;
    t->first_word = malloc((size_t)t->room * sizeof *t->first_word + 1);
    if (t->first_word == NULL || new_table(t, FIRST_TABLE, leaves) < 0)
        return NO_ROOM;
    for (int64_t fold = 0; fold < folds; fold++) {
        int64_t tree = tree_of[operands[starts[fold]]];
        for (int64_t at = starts[fold] + 1; tree >= 0 && at < starts[fold + 1]; at++)
            tree = tree_of_pair(t, tree, tree_of[operands[at]], leaves);
        if (tree < 0)
            return tree;
        tree_of[inputs + fold] = tree;
    }
    return t->count;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

/* The number of leaves, that of the entries of FLAGS that are not 0 at first; -1 where the arrays do not fit. */
static int64_t leaves_of(const Py_buffer *views) {
    int64_t inputs = items(&views[LEAVES]), folds = items(&views[STARTS]) - 1, read = items(&views[OPERANDS]);
    int64_t room = items(&views[FLAGS]), count = 0;
    const int64_t *leaves = views[LEAVES].buf, *operands = views[OPERANDS].buf;
    const int32_t *starts = views[STARTS].buf, *low = views[LOW].buf, *high = views[HIGH].buf;
    if (folds < 0 || starts[0] != 0 || starts[folds] != read || items(&views[TREE_OF]) != inputs + folds)
        return -1;
    for (int array = LOW; array < FLAGS; array++)
        if (items(&views[array]) != room)
            return -1;
    while (count < room && ((const uint8_t *)views[FLAGS].buf)[count]) {
        if (low[count] < 0 || high[count] < low[count])
            return -1;
        count++;
    }
    if (room >= INT32_MAX || room - count < read - folds)
        return -1;
    for (int64_t at = 0; at < inputs; at++)
        if (leaves[at] < 0 || leaves[at] >= count)
            return -1;
    for (int64_t fold = 0; fold < folds; fold++) {
        if (starts[fold] < 0 || starts[fold + 1] > read || starts[fold + 1] <= starts[fold])
            return -1;
        for (int64_t at = starts[fold]; at < starts[fold + 1]; at++)
            if (operands[at] < 0 || operands[at] >= inputs + fold)
                return -1;
    }
    return count;
}

PyObject *fold_trees(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    int64_t state = 0;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, ARRAYS - TREE_OF) < 0)
        return NULL;
    int64_t leaves = leaves_of(views), inputs = items(&views[LEAVES]);
    if (leaves >= 0) {
        Trees t = {
            .low = views[LOW].buf, .high = views[HIGH].buf, .left = views[LEFT].buf, .right = views[RIGHT].buf,
            .flags = views[FLAGS].buf, .count = leaves, .room = items(&views[FLAGS]),
        };
        Py_BEGIN_ALLOW_THREADS
        memcpy(views[TREE_OF].buf, views[LEAVES].buf, (size_t)views[LEAVES].len);
        state = fold_all(&t, views[OPERANDS].buf, views[STARTS].buf, items(&views[STARTS]) - 1, views[TREE_OF].buf,
                         inputs);
        free(t.table);
        free(t.words);
        free(t.first_word);
        Py_END_ALLOW_THREADS
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (leaves < 0)
        return PyErr_Format(PyExc_ValueError, "fold_trees: its arrays do not fit each other");
    return state == NO_ROOM ? PyErr_NoMemory() : PyLong_FromLongLong(state);
}
