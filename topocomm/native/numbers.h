/* Lists of numbers, such as tasks, that grow. */
#ifndef TOPOCOMM_NUMBERS_H
#define TOPOCOMM_NUMBERS_H

#include <stdint.h>

typedef struct {
    int32_t *at;
    int64_t count, room;
} List;

/* Add a number: 0, or -1 without memory. */
int add(List *list, int32_t number);

/* Make room for so many numbers: 0, or -1 without memory. */
int reserve(List *list, int64_t count);

/* Sort numbers, fast where they are sorted already. */
void sort_numbers(int32_t *numbers, int64_t count);

#endif
