/* Memory of slots, by first fit over the life of each piece: planning/program/slot_memory.py says by which rules. */
#include "scratch.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_PLACED = -2 };

typedef struct { /* free ranges in order, no two adjacent */
    int64_t *starts, *sizes, count;
} Gaps;

typedef struct { /* of one rank after the other */
    const Pieces *p;
    const int64_t *sizes;
    Gaps gaps;
    int64_t top, forever;
    int64_t *offset;       /* by place */
    int32_t *next, *until; /* places that are read last at one time, one after the other; the first by time, or -1 */
    uint8_t *passed;       /* by place: another has its range */
} Arena;

typedef struct { /* numbers by rank, in their order */
    int64_t *starts, *numbers;
} ByRank;

static void drop(Gaps *gaps, int64_t index) {
    size_t rest = (size_t)(--gaps->count - index) * sizeof *gaps->starts;
    memmove(gaps->starts + index, gaps->starts + index + 1, rest);
    memmove(gaps->sizes + index, gaps->sizes + index + 1, rest);
}

static void free_range(Gaps *gaps, int64_t start, int64_t size) {
    int64_t index = 0, high = gaps->count;
    while (index < high) {
        int64_t middle = (index + high) / 2;
        if (gaps->starts[middle] < start)
            index = middle + 1;
        else
            high = middle;
    }
    int joins = index && gaps->starts[index - 1] + gaps->sizes[index - 1] == start;
    int joined = index < gaps->count && gaps->starts[index] == start + size;
    if (joins) {
        gaps->sizes[index - 1] += size + (joined ? gaps->sizes[index] : 0);
        if (joined)
            drop(gaps, index);
        return;
    }
    if (!joined) {
        size_t rest = (size_t)(gaps->count++ - index) * sizeof *gaps->starts;
        memmove(gaps->starts + index + 1, gaps->starts + index, rest);
        memmove(gaps->sizes + index + 1, gaps->sizes + index, rest);
        gaps->sizes[index] = 0;
    }
    gaps->starts[index] = start;
    gaps->sizes[index] += size;
}

/* The start of the first free range that has room, or of new memory behind the last one that is in use. */
static int64_t take_range(Arena *arena, int64_t size) {
    Gaps *gaps = &arena->gaps;
    int64_t index = 0, last = gaps->count - 1, start = arena->top;
    while (index < gaps->count && gaps->sizes[index] < size)
        index++;
    if (index < gaps->count) {
        start = gaps->starts[index];
        gaps->starts[index] += size;
        gaps->sizes[index] -= size;
        if (gaps->sizes[index] == 0)
            drop(gaps, index);
        return start;
    }
    if (last >= 0 && gaps->starts[last] + gaps->sizes[last] == arena->top)
        start = gaps->starts[gaps->count = last];
    arena->top = start + size;
    return start;
}

/* When a piece is read last: 2i while stage i communicates, 2i + 1 while it folds; `none` where nothing reads it. */
static int64_t last_use(const Arena *arena, int64_t place, int64_t none) {
    const Pieces *p = arena->p;
    int64_t use = p->sent_in[place] < 0 ? -1 : 2 * (int64_t)p->sent_in[place];
    if (p->last_fold[place] >= 0 && 2 * (int64_t)p->fold_stage[p->last_fold[place]] + 1 > use)
        use = 2 * (int64_t)p->fold_stage[p->last_fold[place]] + 1;
    return p->kept[place] ? arena->forever : use < none ? none : use;
}

/* Give a piece memory, once: a schedule that is not proved yet may write it again. */
static void put(Arena *arena, int64_t place, int64_t until, int64_t heir_of) {
    if (arena->next[place] != NOT_PLACED)
        return;
    arena->next[place] = -1;
    int64_t size = arena->sizes[arena->p->chunk_of[place]];
    arena->offset[place] = heir_of < 0 ? take_range(arena, size) : arena->offset[heir_of];
    if (heir_of >= 0)
        arena->passed[heir_of] = 1;
    if (size) {
        arena->next[place] = arena->until[until];
        arena->until[until] = (int32_t)place;
    }
}

static void expire(Arena *arena, int64_t time) {
    for (int64_t place = arena->until[time]; place >= 0; place = arena->next[place])
        if (!arena->passed[place])
            free_range(&arena->gaps, arena->offset[place], arena->sizes[arena->p->chunk_of[place]]);
}

/* The operand whose range the result of a fold takes; -1: none. */
static int64_t heir_of(const Arena *arena, int64_t fold) {
    const Pieces *p = arena->p;
    int64_t first = p->operand_starts[fold], end = p->operand_starts[fold + 1];
    for (int64_t at = first; at < (end - first == 2 ? end : first + 1) && at < end; at++) {
        int64_t place = p->operands[at];
        if (p->last_fold[place] == fold && last_use(arena, place, 0) == 2 * (int64_t)p->fold_stage[fold] + 1)
            return place;
    }
    return -1;
}

static void assign_rank(Arena *arena, int64_t rank, const ByRank *given, const ByRank *moves, const ByRank *folds) {
    const Pieces *p = arena->p;
    int64_t move = moves->starts[rank], fold = folds->starts[rank], stages = (int64_t)p->now[rank] + 1;
    arena->top = arena->gaps.count = 0;
    arena->forever = 2 * stages + 1;
    memset(arena->until, -1, (size_t)(arena->forever + 1) * sizeof *arena->until);
    for (int64_t at = given->starts[rank]; at < given->starts[rank + 1]; at++)
        put(arena, given->numbers[at], arena->forever, -1);
    for (int64_t stage = 0; stage < stages; stage++) {
        for (int64_t time = 2 * stage - 2; stage && time < 2 * stage; time++)
            expire(arena, time);
        for (; move < moves->starts[rank + 1] && p->arrived[p->received[moves->numbers[move]]] <= stage; move++)
            put(arena, p->received[moves->numbers[move]], last_use(arena, p->received[moves->numbers[move]], 2 * stage), -1);
        for (; fold < folds->starts[rank + 1] && p->fold_stage[folds->numbers[fold]] <= stage; fold++) {
            int64_t place = p->folded[folds->numbers[fold]];
            put(arena, place, last_use(arena, place, 2 * stage + 1), heir_of(arena, folds->numbers[fold]));
        }
    }
}

/* Sort numbers 0..count - 1, or `order` of them, by their keys, equal ones as they are: 0, or -1 without memory. */
static int by_key(ByRank *sorted, const int64_t *keys, const int64_t *order, int64_t count, int64_t most) {
    sorted->starts = calloc((size_t)most + 2, sizeof *sorted->starts);
    sorted->numbers = malloc((size_t)count * sizeof *sorted->numbers + 1);
    if (sorted->starts == NULL || sorted->numbers == NULL)
        return -1;
    for (int64_t at = 0; at < count; at++)
        sorted->starts[keys[at] + 2]++;
    for (int64_t key = 0; key < most; key++)
        sorted->starts[key + 2] += sorted->starts[key + 1];
    for (int64_t at = 0; at < count; at++) {
        int64_t number = order == NULL ? at : order[at];
        sorted->numbers[sorted->starts[keys[number] + 1]++] = number;
    }
    return 0;
}

static void clear(ByRank *sorted) {
    free(sorted->starts);
    free(sorted->numbers);
}

int assign_memory(const Pieces *p, const int64_t *given, int64_t n_given, const int64_t *message, const int64_t *sizes,
                  int64_t *top) {
    int64_t moves = p->moves[p->rounds], folds = p->folds[p->rounds], most = n_given;
    most = moves > most ? moves : most, most = folds > most ? folds : most;
    size_t places = (size_t)p->places + 1;
    ByRank by_message = {0}, inputs = {0}, arrivals = {0}, combines = {0};
    Arena arena = {.p = p, .sizes = sizes};
    int64_t *keys = malloc((size_t)most * sizeof *keys + 1);
    arena.offset = calloc(3 * (places + 1), sizeof *arena.offset);
    arena.next = malloc((places + 2 * (size_t)p->width + 2) * sizeof *arena.next);
    arena.passed = calloc(places, 1);
    int state = keys && arena.offset && arena.next && arena.passed ? by_key(&by_message, message, NULL, moves, moves) : -1;
    for (int64_t at = 0; state == 0 && at < moves; at++)
        keys[at] = p->transfers[7 * at + 3];
    state = state < 0 ? state : by_key(&arrivals, keys, by_message.numbers, moves, p->ranks);
    for (int64_t at = 0; state == 0 && at < folds; at++)
        keys[at] = p->combines[4 * at + 1];
    state = state < 0 ? state : by_key(&combines, keys, NULL, folds, p->ranks);
    for (int64_t at = 0; state == 0 && at < n_given; at++)
        keys[at] = p->rank_of[given[at]];
    state = state < 0 ? state : by_key(&inputs, keys, NULL, n_given, p->ranks);
    for (int64_t at = 0; state == 0 && at < n_given; at++)
        inputs.numbers[at] = given[inputs.numbers[at]];
    if (state == 0) {
        arena.gaps.starts = arena.offset + places + 1, arena.gaps.sizes = arena.gaps.starts + places + 1;
        arena.until = arena.next + places;
        for (size_t place = 0; place < places; place++)
            arena.next[place] = NOT_PLACED;
        for (int64_t rank = 0; rank < p->ranks; rank++) {
            assign_rank(&arena, rank, &inputs, &arrivals, &combines);
            top[rank] = arena.top;
        }
    }
    free(keys);
    free(arena.offset);
    free(arena.next);
    free(arena.passed);
    clear(&by_message), clear(&inputs), clear(&arrivals), clear(&combines);
    return state;
}
