/* Most pieces of a rank that are alive at once: planning/program/scratch.py says by which rules. */
#include "scratch.h"
#include "types.h"

#include <stdlib.h>
#include <string.h>

enum { /* the arrays that most_alive takes; the last is written */
    MOVES, FOLDS, TRANSFERS, COMBINES, OPERAND_STARTS, SENT, RECEIVED, FOLDED, OPERANDS, GIVEN, RESULTS,
    RANK_OF, CHUNK_OF, COUNTED, SLICES, MESSAGE, SIZES, MOST, ARRAYS
};
static const Py_ssize_t ITEMS[ARRAYS] = {8, 8, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 1, 8, 8, 8, 8};

static int64_t src_of(const Pieces *p, int64_t move) { return p->transfers[7 * move + 1]; }
static int64_t dst_of(const Pieces *p, int64_t move) { return p->transfers[7 * move + 3]; }
static int64_t folder_of(const Pieces *p, int64_t fold) { return p->combines[4 * fold + 1]; }

/* Where the places of a slice begin; where its combines do. */
static int64_t places_of(const Pieces *p, int64_t slice) { return slice % p->blocks * p->places; }
static int64_t folds_of(const Pieces *p, int64_t slice) { return slice % p->blocks * p->folds[p->rounds]; }

/* Whether ranks begin a stage with the messages of a slice's round: with one after a fold, or of what has just come. */
static void see_round(Pieces *p, int64_t slice, int64_t round) {
    const int32_t *arrived = p->arrived + places_of(p, slice);
    for (int64_t move = p->moves[round]; move < p->moves[round + 1]; move++) {
        int64_t src = src_of(p, move), dst = dst_of(p, move);
        p->begins[src] |= p->folding[src] | (arrived[p->sent[move]] == p->now[src]);
        p->begins[dst] |= p->folding[dst];
    }
}

static void begin_stages(Pieces *p, int64_t round) {
    for (int64_t move = p->moves[round]; move < p->moves[round + 1]; move++)
        for (int end = 0; end < 2; end++) {
            int64_t rank = end ? dst_of(p, move) : src_of(p, move);
            if (p->begins[rank]) {
                p->now[rank]++;
                p->begins[rank] = p->folding[rank] = 0;
            }
        }
}

static void move_pieces(Pieces *p, int64_t slice, int64_t round) {
    int64_t first = places_of(p, slice);
    for (int64_t move = p->moves[round]; move < p->moves[round + 1]; move++) {
        int64_t to = first + p->received[move];
        int32_t sends = p->now[src_of(p, move)], hears = p->now[dst_of(p, move)];
        p->sent_in[first + p->sent[move]] = sends;
        p->born[to] = p->arrived[to] = hears;
    }
}

static void fold_pieces(Pieces *p, int64_t slice, int64_t round) {
    int64_t first = places_of(p, slice), folds = folds_of(p, slice);
    for (int64_t fold = p->folds[round]; fold < p->folds[round + 1]; fold++) {
        int64_t rank = folder_of(p, fold);
        p->born[first + p->folded[fold]] = p->fold_stage[folds + fold] = p->now[rank];
        p->folding[rank] = 1;
        for (int64_t at = p->operand_starts[fold]; at < p->operand_starts[fold + 1]; at++)
            p->last_fold[first + p->operands[at]] = (int32_t)fold;
    }
}

/* Whether the result of a fold takes the place of an operand that nothing reads later. */
static int inherits(const Pieces *p, int64_t slice, int64_t fold) {
    int64_t first = p->operand_starts[fold], end = p->operand_starts[fold + 1], places = places_of(p, slice);
    for (int64_t at = first; at < (end - first == 2 ? end : first + 1) && at < end; at++) {
        int64_t place = p->operands[at];
        if (!p->kept[place] && p->last_fold[places + place] == fold &&
            p->sent_in[places + place] <= p->fold_stage[folds_of(p, slice) + fold])
            return 1;
    }
    return 0;
}

static void begin_slice(Pieces *p, int64_t slice) {
    size_t first = (size_t)places_of(p, slice), bytes = (size_t)p->places * sizeof(int32_t);
    memset(p->born + first, 0, bytes);
    memset(p->arrived + first, -1, bytes);
    memset(p->sent_in + first, -1, bytes);
    memset(p->last_fold + first, -1, bytes);
}

/* Count the pieces of a slice that is through. */
static void end_slice(Pieces *p, int64_t slice) {
    int64_t first = places_of(p, slice), folds = folds_of(p, slice);
    for (int64_t place = 0; place < p->places; place++) {
        int32_t born = p->born[first + place], dies = p->sent_in[first + place], fold = p->last_fold[first + place];
        if (!p->counted[p->chunk_of[place] * p->slices + slice])
            continue;
        int32_t *own = p->alive + p->rank_of[place] * p->width;
        own[born]++;
        if (p->kept[place])
            continue;
        if (fold >= 0 && p->fold_stage[folds + fold] > dies)
            dies = p->fold_stage[folds + fold];
        own[(dies > born ? dies : born) + 1]--;
    }
    for (int64_t fold = 0; fold < p->folds[p->rounds]; fold++)
        if (p->counted[p->combines[4 * fold + 3] * p->slices + slice] && inherits(p, slice, fold)) {
            int32_t *own = p->alive + folder_of(p, fold) * p->width + p->fold_stage[folds + fold];
            own[0]--;
            own[1]++;
        }
}

/* Follow all slices, each of which begins `stagger` rounds after the one before. */
static void follow_slices(Pieces *p) {
    int64_t first = 0, end = 0; /* slices under way */
    for (int64_t now = 0; first < p->slices; now++) {
        for (; end < p->slices && end * p->stagger <= now; end++)
            begin_slice(p, end);
        while (first < end && now - first * p->stagger >= p->rounds)
            end_slice(p, first++);
        for (int64_t slice = first; slice < end; slice++)
            see_round(p, slice, now - slice * p->stagger);
        for (int64_t slice = first; slice < end; slice++)
            begin_stages(p, now - slice * p->stagger);
        for (int64_t slice = first; slice < end; slice++)
            move_pieces(p, slice, now - slice * p->stagger);
        for (int64_t slice = first; slice < end; slice++)
            fold_pieces(p, slice, now - slice * p->stagger);
    }
}

static void take_most(const Pieces *p, int64_t *most) {
    for (int64_t rank = 0; rank < p->ranks; rank++) {
        int64_t alive = 0;
        most[rank] = 0;
        for (int64_t stage = 0; stage <= p->now[rank] + 1; stage++) {
            alive += p->alive[rank * p->width + stage];
            most[rank] = alive > most[rank] ? alive : most[rank];
        }
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
    const int64_t *slices = views[SLICES].buf; /* how many, and the rounds from one to the next */
    if (items(&views[SLICES]) != 2 || slices[0] < 1 || slices[0] > INT32_MAX || slices[1] < 0 || slices[1] > INT32_MAX)
        return -1;
    *p = (Pieces){
        .moves = views[MOVES].buf, .folds = views[FOLDS].buf, .sent = views[SENT].buf, .received = views[RECEIVED].buf,
        .folded = views[FOLDED].buf, .operands = views[OPERANDS].buf, .rank_of = views[RANK_OF].buf,
        .chunk_of = views[CHUNK_OF].buf,
        .transfers = views[TRANSFERS].buf, .combines = views[COMBINES].buf, .operand_starts = views[OPERAND_STARTS].buf,
        .counted = views[COUNTED].buf, .rounds = items(&views[MOVES]) - 1, .ranks = items(&views[MOST]),
        .places = items(&views[RANK_OF]), .slices = slices[0], .stagger = slices[1],
    };
    int64_t read = items(&views[OPERANDS]), chunks = items(&views[COUNTED]) / p->slices;
    int fits = items(&views[COUNTED]) == chunks * p->slices && cuts(p->moves, p->rounds + 1, moves) && items(&views[FOLDS]) == p->rounds + 1 &&
               cuts(p->folds, p->rounds + 1, folds) && items(&views[SENT]) == moves &&
               items(&views[RECEIVED]) == moves && items(&views[FOLDED]) == folds && p->places < INT32_MAX && p->rounds + (p->slices - 1) * p->stagger < INT32_MAX &&
               items(&views[OPERAND_STARTS]) == folds + 1 && p->operand_starts[0] == 0 && p->operand_starts[folds] == read;
    int64_t sizes = items(&views[SIZES]), messages = items(&views[MESSAGE]);
    fits = fits && (sizes ? sizes == chunks && p->slices == 1 && messages == moves : messages == 0) &&
           within(views[MESSAGE].buf, messages, moves) && within(views[SIZES].buf, sizes, INT64_MAX);
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
    int64_t at_once = p->stagger ? p->rounds / p->stagger + 2 : p->slices;
    p->blocks = at_once < p->slices ? at_once : p->slices;
    p->width = p->rounds + (p->slices - 1) * p->stagger + 3;
    int32_t *numbers = malloc((size_t)p->blocks * (4 * places + folds) * sizeof *numbers + 1);
    p->now = calloc(ranks * ((size_t)p->width + 1) + 1, sizeof *p->now);
    p->folding = calloc(2 * ranks + places + 1, 1);
    int state = numbers == NULL || p->now == NULL || p->folding == NULL ? -1 : 0;
    if (state == 0) {
        p->begins = p->folding + ranks, p->kept = p->begins + ranks, p->alive = p->now + ranks;
        p->born = numbers, p->arrived = p->born + (size_t)p->blocks * places;
        p->sent_in = p->arrived + (size_t)p->blocks * places, p->last_fold = p->sent_in + (size_t)p->blocks * places;
        p->fold_stage = p->last_fold + (size_t)p->blocks * places;
        for (int part = GIVEN; part <= RESULTS; part++)
            for (int64_t at = 0; at < items(&views[part]); at++)
                p->kept[((const int64_t *)views[part].buf)[at]] = 1;
        follow_slices(p);
        if (items(&views[SIZES]))
            state = assign_memory(p, views[GIVEN].buf, items(&views[GIVEN]), views[MESSAGE].buf, views[SIZES].buf, most);
        else
            take_most(p, most);
    }
    free(numbers);
    free(p->now);
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
