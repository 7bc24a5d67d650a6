/* The way through the operands of an elementwise fold. More than two are folded block by block, so that the result so
 * far stays in the core's first cache. */
#include "folds.h"

#include <string.h>

enum { BLOCK_BYTES = 8192 }; /* of the result, while more than two operands are folded */

static void copy_rows(const int64_t *out, const int64_t *left, int64_t rows, int fields, const int64_t *row_bytes) {
    for (int field = 0; field < fields; field++)
        if (rows > 0 && out[field] != left[field])
            memmove((void *)(intptr_t)out[field], (const void *)(intptr_t)left[field],
                    (size_t)(rows * row_bytes[field]));
}

void fold_blocks(const int64_t *task, int fields, const int64_t *row_bytes, Step step) {
    int64_t rows = task[0], operands = task[1], all_bytes = 0;
    const int64_t *out = task + 2 + fields, *first = out + fields;
    for (int field = 0; field < fields; field++)
        all_bytes += row_bytes[field];
    if (operands == 1) {
        copy_rows(out, first, rows, fields, row_bytes);
        return;
    }
    int64_t block = operands > 2 ? BLOCK_BYTES / all_bytes : rows; /* two are one pass */
    for (int64_t start = 0; start < rows; start += block) {
        int64_t end = rows - start < block ? rows : start + block;
        step(out, first, first + fields, start, end);
        for (int64_t operand = 2; operand < operands; operand++)
            step(out, out, first + operand * fields, start, end);
    }
}
