/* Schedules as JSON text, as `json.dumps` writes them without spaces: planning/formats/schedule_json.py says what. */
#include "types.h"

#include <stdlib.h>

enum { LONGEST = 12, BRACES = 32 }; /* characters of an int32 and its comma; of what stands around rows and rounds */
enum { MOVE_EDGES, TRANSFERS, FOLD_EDGES, COMBINES, OPERANDS, STARTS, ARRAYS };
enum { MOVE_COLUMNS = 7, FOLD_COLUMNS = 4 };
static const Py_ssize_t ITEMS[ARRAYS] = {8, 4, 8, 4, 4, 4};

typedef struct {
    const int64_t *move_edges, *fold_edges;
    const int32_t *transfers, *combines, *operands, *starts;
    int64_t rounds;
} Rounds;

static char *put_number(char *at, int32_t number) {
    char digits[LONGEST];
    int count = 0;
    uint32_t rest = number < 0 ? 0u - (uint32_t)number : (uint32_t)number;
    if (number < 0)
        *at++ = '-';
    do
        digits[count++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

static char *put_text(char *at, const char *text) {
    while (*text)
        *at++ = *text++;
    return at;
}

/* A list of numbers; a comma before it unless it is the first. */
static char *put_row(char *at, const int32_t *row, int64_t count, int first) {
    at = put_text(at, first ? "[" : ",[");
    for (int64_t each = 0; each < count; each++) {
        if (each)
            *at++ = ',';
        at = put_number(at, row[each]);
    }
    *at++ = ']';
    return at;
}

/* [rank, slot, [operands], chunk] */
static char *put_fold(char *at, const Rounds *r, int64_t fold, int first) {
    const int32_t *row = r->combines + FOLD_COLUMNS * fold;
    at = put_text(at, first ? "[" : ",[");
    at = put_number(at, row[1]);
    *at++ = ',';
    at = put_number(at, row[2]);
    at = put_row(at, r->operands + r->starts[fold], r->starts[fold + 1] - r->starts[fold], 0);
    *at++ = ',';
    at = put_number(at, row[3]);
    *at++ = ']';
    return at;
}

static char *put_round(char *at, const Rounds *r, int64_t round) {
    at = put_text(at, round ? ",{\"combines\":[" : "{\"combines\":[");
    for (int64_t fold = r->fold_edges[round]; fold < r->fold_edges[round + 1]; fold++)
        at = put_fold(at, r, fold, fold == r->fold_edges[round]);
    at = put_text(at, "],\"transfers\":[");
    for (int64_t move = r->move_edges[round]; move < r->move_edges[round + 1]; move++) {
        const int32_t *row = r->transfers + MOVE_COLUMNS * move;
        int named = row[MOVE_COLUMNS - 1] != -1; /* NO_PATH */
        at = put_row(at, row + 1, MOVE_COLUMNS - 2 + named, move == r->move_edges[round]);
    }
    return put_text(at, "]}");
}

/* Text up to `end`, whose memory is freed. */
static PyObject *as_text(char *text, const char *end) {
    PyObject *result = text == NULL ? PyErr_NoMemory() : PyUnicode_FromStringAndSize(text, end - text);
    free(text);
    return result;
}

PyObject *table_text(PyObject *module, PyObject *args) {
    static const Py_ssize_t size = 4;
    Py_buffer view;
    (void)module;
    if (take_columns(args, &view, &size, 1, 0) < 0)
        return NULL;
    if (view.ndim != 2) {
        PyBuffer_Release(&view);
        return PyErr_Format(PyExc_ValueError, "table_text: expected 2 axes");
    }
    int64_t rows = view.shape[0], columns = view.shape[1];
    char *text = malloc((size_t)(rows * (LONGEST * columns + 3)) + BRACES), *at = text;
    if (text != NULL) {
        Py_BEGIN_ALLOW_THREADS
        *at++ = '[';
        for (int64_t row = 0; row < rows; row++)
            at = put_row(at, (const int32_t *)view.buf + columns * row, columns, row == 0);
        *at++ = ']';
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    return as_text(text, at);
}

/* Whether `edges`, which end in their places [0, count], cut what has `count` entries. */
static int cuts(const void *edges, Py_ssize_t itemsize, int64_t places, int64_t count) {
    int64_t before = 0;
    for (int64_t at = 0; at < places; at++) {
        int64_t edge = itemsize == 8 ? ((const int64_t *)edges)[at] : ((const int32_t *)edges)[at];
        if (edge < before || edge > count || (at == 0 && edge) || (at == places - 1 && edge != count))
            return 0;
        before = edge;
    }
    return places > 0;
}

PyObject *rounds_text(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    int64_t n[ARRAYS];
    char *text = NULL, *at = NULL;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, 0) < 0)
        return NULL;
    for (int array = 0; array < ARRAYS; array++)
        n[array] = views[array].len / ITEMS[array];
    int64_t moves = n[TRANSFERS] / MOVE_COLUMNS, folds = n[COMBINES] / FOLD_COLUMNS, rounds = n[MOVE_EDGES] - 1;
    int fits = n[FOLD_EDGES] == n[MOVE_EDGES] && n[STARTS] == folds + 1 &&
               cuts(views[MOVE_EDGES].buf, 8, rounds + 1, moves) && cuts(views[FOLD_EDGES].buf, 8, rounds + 1, folds) &&
               cuts(views[STARTS].buf, 4, folds + 1, n[OPERANDS]);
    if (fits) {
        const Rounds all = {views[MOVE_EDGES].buf, views[FOLD_EDGES].buf, views[TRANSFERS].buf, views[COMBINES].buf,
                            views[OPERANDS].buf,   views[STARTS].buf,     rounds};
        int64_t numbers = n[TRANSFERS] + n[COMBINES] + n[OPERANDS] + moves + 2 * folds;
        text = malloc((size_t)(LONGEST * numbers + BRACES * (rounds + 1)));
        at = text;
        if (text != NULL) {
            Py_BEGIN_ALLOW_THREADS
            *at++ = '[';
            for (int64_t round = 0; round < rounds; round++)
                at = put_round(at, &all, round);
            *at++ = ']';
            Py_END_ALLOW_THREADS
        }
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    return fits ? as_text(text, at) : PyErr_Format(PyExc_ValueError, "rounds_text: its arrays do not fit each other");
}
