/* One rank's part of a plan in memory that the ranks of a host share: write the value, publish progress, await others,
 * fold, copy the result out. Nothing here needs Python: it runs without the interpreter's lock.
 *
 * An engine is read from int64 words (program.c), which are checked once; a run checks nothing. The words: the number of
 * records of every section, in the order of `Section`, then the sections. Offsets in memory and arrays are in bytes.
 * Arrays are numbered: the value's fields in the operator's order, then those of the result. */
#ifndef TOPOCOMM_ENGINE_H
#define TOPOCOMM_ENGINE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "folds.h"

enum { MOST_FIELDS = 16, COUNTER_WORDS = 8 }; /* a progress counter has a cache line of its own */
enum {
    STRIDE = 1 << 16,      /* counter values of one call: epoch * STRIDE + progress */
    FINISHED = STRIDE - 1, /* the progress of a rank that is through: more than any stage's */
    YIELDS = 2,            /* of the core in one stage, before this rank sleeps */
    PATIENCE_NS = 50000,   /* of a rank before it sleeps */
    CROWDED_NS = 500000,   /* over its patience after which other programs have the cores */
    CROWDED_WAITS = 256,   /* in which a rank then sleeps early, where ranks share cores */
    CALL_SLEEP_US = 1000,  /* limit of a sleep in a call that blocks, before the caller sees how long it waited */
    CALLS_A_TRIAL = 4,     /* calls on trial past the caches, then by plain stores; the first of each warms up */
    CALLS_A_CHOICE = 512   /* calls until the way to write is chosen anew, the last ones on trial */
};
enum { COMING, GOING, DIRECTIONS, CALLS_AHEAD = 2 }; /* words of receivers; own words to senders: see credits.py */
#define NO_TIME ((int64_t)1 << 62)

typedef enum {
    PACK,     /* Copy: pieces of the value that other ranks read, or that are a result */
    PACK_OWN, /* Copy: pieces that only folds of this rank read: written if these may not read the caller's arrays */
    UNPACK,   /* Copy: pieces of the result that no fold makes in the caller's arrays */
    KEPT,     /* Kept: pieces of the value that are pieces of the result, and that nothing else reads */
    MADE,     /* Copy, by stage: pieces of the result that its folds made in the caller's arrays and other ranks read */
    ADDRESSES, /* Address: where others that pull find this rank's value */
    PULLS,     /* Pull, by stage: pieces of the result, read from the values of ranks where these lie */
    OWN,      /* Redirect: operands of folds that are this rank's own value */
    TARGETS,  /* Redirect: results of folds that are a piece of the result and that no fold of this rank reads */
    CREDITS,  /* Wait: ranks that must have finished an earlier call before this one writes */
    WAITS,    /* Wait, by stage */
    STAGES,   /* Stage */
    TASKS,    /* by stage: as folds.h has them, with offsets in memory for addresses */
    SECTIONS
} Section;

typedef struct {
    int64_t array, at, place, bytes; /* an array and an offset in it; an offset in memory */
} Copy;

typedef struct {
    Copy from;                 /* in the value; `place` is used where the result may lie in the value's memory */
    int64_t result, result_at; /* an array and an offset in it */
} Kept;

/* A field of a place of a task, 0 its result, then its operands, that is a piece of an array. Once read, `task` is the
 * address of that word and `place` what it says, the address in memory. */
typedef struct {
    int64_t task, place, array, at;
} Redirect;

typedef struct {
    int64_t array, place; /* of the value, or -1 for the process; an offset in memory */
} Address;

typedef struct {
    int64_t process, address; /* offsets in memory where these of another rank's array are */
    int64_t at;               /* in that array: not checked, since its size is not known here */
    int64_t array, to, bytes; /* an array of the result and an offset in it */
} Pull;

typedef struct {
    int64_t rank, progress;
} Wait;

typedef struct {
    int64_t progress, waits, tasks, copies, pulls; /* to publish; records of four sections that are the stage's */
    int64_t messages; /* whether messages with other hosts belong to it */
} Stage;

/* TO_FOLD: the folds of the stage are to be run outside. TO_EXCHANGE: its messages are not through; those that the engine
 * has no requests of are to be sent and received outside. Before the first stage: credits have not come. */
typedef enum { THROUGH, WAITING, TO_FOLD, TO_EXCHANGE } State;

/* Persistent requests of MPI, in the order of MPI_Startall and MPI_Testall. */
typedef int (*StartAll)(int, void *);
typedef int (*TestAll)(int, void *, int *, void *);
typedef struct {
    StartAll start_all;
    TestAll test_all;
    void *handles, *statuses;
    long long count, tests; /* tests before the core is given away */
    int code;               /* what a function returned last: 0, or an error of MPI's */
} Requests;

typedef struct {
    /* What it was made for; set by who makes it, before `read_program`. */
    Fold fold; /* NULL: folds run outside */
    int fields;
    int64_t item_bytes[MOST_FIELDS], row_items[MOST_FIELDS], array_bytes[2 * MOST_FIELDS];
    char *memory;
    int64_t memory_bytes;
    _Atomic int64_t *counters;
    int64_t ranks;        /* how many counters */
    long long position;   /* which one is this rank's */
    long long looks;      /* at counters in one stage, before the core is given away */
    long long final;      /* progress to publish when through; 0 where no rank waits for it */
    const int64_t *epoch; /* number of calls on this memory, the running one included */
    Requests **requests;  /* by stage, of its messages; NULL where they go outside; NULL: all do */
    Requests *credits[CALLS_AHEAD][DIRECTIONS]; /* by turn, or NULL */
    long long credited;                         /* calls that have taken credits */
    /* The program. */
    int64_t *words, count[SECTIONS];
    void *section[SECTIONS];
    int64_t **tasks;
    char wrong[160];
    /* The call. */
    char *data[2 * MOST_FIELDS];
    long long sleep_us; /* limit of a sleep; 0: this rank does not sleep */
    int direct; /* whether folds may read the caller's arrays: not where the result goes to the same memory */
    _Atomic int64_t state;    /* a State; other threads look at this and at `stage` while the engine runs */
    _Atomic int64_t stage;    /* -1: before the value is written */
    int64_t wait, task, made, pull; /* the first records of the stage */
    int posted, exchanged;          /* whether its messages are under way, whether they are through */
    int unread;                     /* why its pieces could not be pulled, as an errno: ESRCH where a rank is gone */
    /* The trial. A rank that writes its value with plain stores takes every cache line back from the ranks that read
     * it in an earlier call, one after the other: 30 ns a line between cores without a common cache, where stores past
     * the caches do not wait; between cores with one, plain stores are quicker. So every now and then some calls are
     * made either way and timed, waiting apart. All ranks make the same calls, and try the same way in the same call. */
    long long streaming, until_choice, quickest[2];
    int64_t worked;
} Engine;

/* Read a program into zeroed memory and check every word of it. Returns 0, or -1 with what is `wrong`; `release_program`
 * is due either way. */
int read_program(Engine *engine, const int64_t *words, int64_t count);
void release_program(Engine *engine);

/* Begin at the start of the program. Where the program has arrays, `data` must hold all of them. */
void start(Engine *engine, int direct);

/* Go on with a call. */
State run(Engine *engine);

/* Publish this rank's progress; wait until others have theirs: 0 where they have not, in time. */
void publish(const Engine *engine, int64_t progress);
int await_counters(const Engine *engine, const Wait *wait, int64_t count);

/* Write where this rank's value is, for others to pull from; and 0 in its place, after a call that failed. */
void publish_addresses(const Engine *engine);
void withdraw_addresses(const Engine *engine);

/* Start requests; test them so often; test them once or, where a limit is given, for so long after the first tests:
 * whether all are through. An error is their `code`. */
void start_requests(Requests *requests);
int test_requests(Requests *requests, long long tests);
int await_requests(Requests *requests, long long limit_us);

/* Pull the next pieces; 0 where one cannot be read, with what is `unread`. */
int pull_pieces(Engine *engine, int64_t count);

/* Items of a field begin at multiples of this: of the power of two in their size, complex128 of 8. */
static inline int64_t alignment_of(const Engine *engine, int64_t field) {
    int64_t item = engine->item_bytes[field] & -engine->item_bytes[field];
    return engine->fold == NULL ? 1 : item < 8 ? item : 8;
}

/* The state or the stage, also of an engine that runs. */
static inline int64_t peek(const _Atomic int64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static inline int64_t progress_of(const Engine *engine, int64_t rank) {
    return atomic_load_explicit(&engine->counters[rank * COUNTER_WORDS], memory_order_acquire);
}

#endif
