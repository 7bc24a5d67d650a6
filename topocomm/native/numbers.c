/* Lists of numbers. */
#include "numbers.h"

#include <stdlib.h>

enum { FEW = 16 }; /* numbers that are sorted by insertion */

int reserve(List *list, int64_t count) {
    if (count <= list->room)
        return 0;
    int64_t room = 2 * count + FEW;
    int32_t *at = realloc(list->at, (size_t)room * sizeof *at);
    if (at == NULL)
        return -1;
    list->at = at, list->room = room;
    return 0;
}

int add(List *list, int32_t number) {
    if (list->count == list->room && reserve(list, list->count + 1) < 0)
        return -1;
    list->at[list->count++] = number;
    return 0;
}

static int compare_numbers(const void *a, const void *b) {
    int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;
    return (one > other) - (one < other);
}

void sort_numbers(int32_t *numbers, int64_t count) {
    int64_t at = 1;
    while (at < count && numbers[at - 1] <= numbers[at])
        at++;
    if (at >= count)
        return;
    if (count > FEW) {
        qsort(numbers, (size_t)count, sizeof *numbers, compare_numbers);
        return;
    }
    for (; at < count; at++) {
        int32_t number = numbers[at];
        int64_t before = at;
        for (; before > 0 && numbers[before - 1] > number; before--)
            numbers[before] = numbers[before - 1];
        numbers[before] = number;
    }
}
