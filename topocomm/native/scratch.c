/* Most pieces of a rank that are alive at once: planning/program/scratch.py says by which rules. */
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { /* the arrays that most_alive takes; the last is written */
    MOVES, FOLDS, TRANSFERS, COMBINES, OPERAND_STARTS, SENT, RECEIVED, FOLDED, OPERANDS, GIVEN, RESULTS,
    RANK_OF, CHUNK_OF, COUNTED, MOST, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {8, 8, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 1, 8};

typedef struct {
    const int64_t *moves, *folds, *sent, *received, *folded, *operands, *rank_of, *chunk_of;
    const int32_t *transfers, *combines, *operand_starts;
    const uint8_t *counted;
    int64_t rounds, ranks, places;
    int32_t *now, *fold_stage;                           /* stage of each rank; of each combine */
    int32_t *born, *arrived, *sent_in, *last_fold, last; /* of each place; the last stage */
    uint8_t *folding, *begins;                           /* of each rank */
} Pieces;

static int64_t src_of(const Pieces *p, int64_t move) { return p->transfers[7 * move + 1]; }
static int64_t dst_of(const Pieces *p, int64_t move) { return p->transfers[7 * move + 3]; }
static int64_t folder_of(const Pieces *p, int64_t fold) { return p->combines[4 * fold + 1]; }

/* The stages of a round: a rank begins one where it sends or receives after a fold, or sends what came in this stage. */
static void follow_round(Pieces *p, int64_t round) {
    int64_t low = p->moves[round], high = p->moves[round + 1];
    for (int64_t move = low; move < high; move++) {
        int64_t src = src_of(p, move), dst = dst_of(p, move);
        p->begins[src] |= p->folding[src] | (p->arrived[p->sent[move]] == p->now[src]);
        p->begins[dst] |= p->folding[dst];
    }
    for (int64_t move = low; move < high; move++)
        for (int end = 0; end < 2; end++) {
            int64_t rank = end ? dst_of(p, move) : src_of(p, move);
            if (p->begins[rank]) {
                p->now[rank]++;
                p->begins[rank] = p->folding[rank] = 0;
            }
        }
    for (int64_t move = low; move < high; move++) {
        int32_t sends = p->now[src_of(p, move)], hears = p->now[dst_of(p, move)];
        p->sent_in[p->sent[move]] = sends;
        p->born[p->received[move]] = p->arrived[p->received[move]] = hears;
        p->last = sends > p->last ? sends : p->last;
        p->last = hears > p->last ? hears : p->last;
    }
    for (int64_t fold = p->folds[round]; fold < p->folds[round + 1]; fold++) {
        int64_t rank = folder_of(p, fold);
        p->born[p->folded[fold]] = p->fold_stage[fold] = p->now[rank];
        p->folding[rank] = 1;
        for (int64_t at = p->operand_starts[fold]; at < p->operand_starts[fold + 1]; at++)
            p->last_fold[p->operands[at]] = (int32_t)fold;
    }
}

/* Whether the result of a fold takes the place of an operand that nothing reads later. */
static int inherits(const Pieces *p, int64_t fold) {
    int64_t first = p->operand_starts[fold], end = p->operand_starts[fold + 1];
    for (int64_t at = first; at < (end - first == 2 ? end : first + 1) && at < end; at++) {
        int64_t place = p->operands[at];
        if (p->last_fold[place] == fold && p->sent_in[place] <= p->fold_stage[fold])
            return 1;
    }
    return 0;
}

/* Count the pieces of all ranks by stage, in `alive` [ranks, width] of zeros, and set the most of each rank. */
static void count_alive(const Pieces *p, int32_t *alive, int64_t width, int64_t *most) {
    for (int64_t place = 0; place < p->places; place++) {
        int32_t dies = p->born[place];
        if (!p->counted[p->chunk_of[place]])
            continue;
        if (p->sent_in[place] > dies)
            dies = p->sent_in[place];
        if (p->last_fold[place] >= 0 && p->fold_stage[p->last_fold[place]] > dies)
            dies = p->fold_stage[p->last_fold[place]];
        int32_t *own = alive + p->rank_of[place] * width;
        own[p->born[place]]++;
        own[dies + 1]--;
    }
    for (int64_t rank = 0; rank < p->ranks; rank++)
        for (int64_t stage = 1; stage < width; stage++)
            alive[rank * width + stage] += alive[rank * width + stage - 1];
    for (int64_t fold = 0; fold < p->folds[p->rounds]; fold++)
        if (p->counted[p->combines[4 * fold + 3]] && inherits(p, fold))
            alive[folder_of(p, fold) * width + p->fold_stage[fold]]--;
    for (int64_t rank = 0; rank < p->ranks; rank++) {
        most[rank] = 0;
        for (int64_t stage = 0; stage < width; stage++)
            if (alive[rank * width + stage] > most[rank])
                most[rank] = alive[rank * width + stage];
    }
}

static int within(const int64_t *numbers, int64_t count, int64_t most) {
    for (int64_t at = 0; at < count; at++)
        if (numbers[at] < 0 || numbers[at] >= most)
            return 0;
    return 1;
}

/* Whether `starts` rises from 0 to `end`. */
static int cuts(const int64_t *starts, int64_t count, int64_t end) {
    for (int64_t at = 1; at < count; at++)
        if (starts[at] < starts[at - 1])
            return 0;
    return count > 0 && starts[0] == 0 && starts[count - 1] == end;
}

static int64_t items(const Py_buffer *view) { return view->len / view->itemsize; }

/* The arrays as pieces: 0, or -1 where their lengths or numbers do not fit each other. */
static int pieces_of(const Py_buffer *views, Pieces *p) {
    int64_t moves = items(&views[TRANSFERS]) / 7, folds = items(&views[COMBINES]) / 4;
    *p = (Pieces){
        .moves = views[MOVES].buf, .folds = views[FOLDS].buf, .sent = views[SENT].buf, .received = views[RECEIVED].buf,
        .folded = views[FOLDED].buf, .operands = views[OPERANDS].buf, .rank_of = views[RANK_OF].buf,
        .chunk_of = views[CHUNK_OF].buf,
        .transfers = views[TRANSFERS].buf, .combines = views[COMBINES].buf, .operand_starts = views[OPERAND_STARTS].buf,
        .counted = views[COUNTED].buf, .rounds = items(&views[MOVES]) - 1, .ranks = items(&views[MOST]),
        .places = items(&views[RANK_OF]),
    };
    int64_t read = items(&views[OPERANDS]), chunks = items(&views[COUNTED]);
    int fits = cuts(p->moves, p->rounds + 1, moves) && items(&views[FOLDS]) == p->rounds + 1 &&
               cuts(p->folds, p->rounds + 1, folds) && items(&views[SENT]) == moves &&
               items(&views[RECEIVED]) == moves && items(&views[FOLDED]) == folds && p->places < INT32_MAX &&
               items(&views[OPERAND_STARTS]) == folds + 1 && p->operand_starts[0] == 0 && p->operand_starts[folds] == read;
    for (int64_t fold = 0; fits && fold < folds; fold++)
        fits = p->operand_starts[fold] <= p->operand_starts[fold + 1] && folder_of(p, fold) >= 0 &&
               folder_of(p, fold) < p->ranks && p->combines[4 * fold + 3] >= 0 && p->combines[4 * fold + 3] < chunks;
    for (int64_t move = 0; fits && move < moves; move++)
        fits = src_of(p, move) >= 0 && src_of(p, move) < p->ranks && dst_of(p, move) >= 0 && dst_of(p, move) < p->ranks;
    static const int numbers[] = {SENT, RECEIVED, FOLDED, OPERANDS, GIVEN, RESULTS};
    for (unsigned each = 0; fits && each < sizeof numbers / sizeof *numbers; each++)
        fits = within(views[numbers[each]].buf, items(&views[numbers[each]]), p->places);
    return fits && within(p->rank_of, p->places, p->ranks) && items(&views[CHUNK_OF]) == p->places &&
                   within(p->chunk_of, p->places, chunks) ? 0 : -1;
}

/* Set the most of every rank: 0, or -1 without memory. */
static int follow(Pieces *p, const Py_buffer *views, int64_t *most) {
    size_t places = (size_t)p->places, folds = (size_t)p->folds[p->rounds], ranks = (size_t)p->ranks;
    int32_t *numbers = calloc(ranks + folds + 4 * places + 1, sizeof *numbers), *alive = NULL;
    p->folding = calloc(2 * ranks + 1, 1);
    if (numbers != NULL && p->folding != NULL) {
        p->begins = p->folding + ranks;
        p->now = numbers, p->fold_stage = numbers + ranks, p->born = p->fold_stage + folds;
        p->arrived = p->born + places, p->sent_in = p->arrived + places, p->last_fold = p->sent_in + places;
        memset(p->arrived, -1, 3 * places * sizeof *numbers);
        for (int64_t round = 0; round < p->rounds; round++)
            follow_round(p, round);
        for (int64_t fold = 0; fold < (int64_t)folds; fold++)
            p->last = p->fold_stage[fold] > p->last ? p->fold_stage[fold] : p->last;
        for (int part = GIVEN; part <= RESULTS; part++)
            for (int64_t at = 0; at < items(&views[part]); at++)
                p->sent_in[((const int64_t *)views[part].buf)[at]] = p->last + 1; /* to the end */
        alive = calloc(ranks * ((size_t)p->last + 3) + 1, sizeof *alive);
        if (alive != NULL)
            count_alive(p, alive, (int64_t)p->last + 3, most);
    }
    int state = alive == NULL ? -1 : 0;
    free(alive);
    free(numbers);
    free(p->folding);
    return state;
}

PyObject *most_alive(PyObject *module, PyObject *args) {
    Py_buffer views[ARRAYS];
    Pieces pieces;
    int state = -2;
    (void)module;
    if (take_columns(args, views, ITEMS, ARRAYS, 1) < 0)
        return NULL;
    if (pieces_of(views, &pieces) == 0) {
        Py_BEGIN_ALLOW_THREADS
        state = follow(&pieces, views, views[MOST].buf);
        Py_END_ALLOW_THREADS
    }
    for (int array = 0; array < ARRAYS; array++)
        PyBuffer_Release(&views[array]);
    if (state == -2)
        return PyErr_Format(PyExc_ValueError, "most_alive: its arrays do not fit each other");
    return state < 0 ? PyErr_NoMemory() : Py_NewRef(Py_None);
}
