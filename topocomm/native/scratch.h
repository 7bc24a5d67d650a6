/* The pieces of a schedule while they are followed, and the memory that they take. */
#ifndef TOPOCOMM_SCRATCH_H
#define TOPOCOMM_SCRATCH_H

#include <stdint.h>

typedef struct {
    const int64_t *moves, *folds, *sent, *received, *folded, *operands, *rank_of, *chunk_of;
    const int32_t *transfers, *combines, *operand_starts;
    const uint8_t *counted; /* of each slice of each chunk */
    int64_t rounds, ranks, places, slices, stagger;
    int64_t width, blocks; /* more than the stages of a rank; slices whose pieces are followed at once */
    int32_t *now, *alive;  /* of each rank: its stage; by how many pieces each stage has more than the one before */
    int32_t *born, *arrived, *sent_in, *last_fold, *fold_stage, last; /* of each place and combine; the last stage */
    uint8_t *folding, *begins, *kept;                                 /* of each rank; whether a place stays to the end */
} Pieces;

/* Assign memory to the pieces of a schedule without slices that has been followed, rank by rank: 0, or -1 without memory.
 *
 * `given` are the places of the inputs, `message` the number of the message of each transfer, `sizes` bytes by chunk;
 * `top` is set to the bytes of each rank. */
int assign_memory(const Pieces *p, const int64_t *given, int64_t n_given, const int64_t *message, const int64_t *sizes,
                  int64_t *top);

#endif
