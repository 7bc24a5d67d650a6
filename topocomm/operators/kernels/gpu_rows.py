"""The formulas of operators whose rows are arrays, on tiles: TOPK and AFFINE_MATRIX, as their own files have them.

Every step rounds by IEEE 754, so a GPU has the bits of the CPU.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.kernels.gpu_floats import computed


@triton.jit
def _goes_first(value, place, other, other_place):
    """Whether an item stands before another: the greater value, NaN above all, then the lower payload, -1 last."""
    same = (value == other) | ((value != value) & (other != other))
    lower = place.to(tl.uint64, bitcast=True) <= other_place.to(tl.uint64, bitcast=True)
    return (same & lower) | (value > other) | ((value != value) & (other == other))


@triton.jit
def _halves(x, DISTANCE: tl.constexpr):
    """The items [ROWS, groups, DISTANCE] that have a partner so far behind them, and the partners."""
    groups: tl.constexpr = x.shape[1] // (2 * DISTANCE)
    cut = tl.reshape(x, [x.shape[0], groups, 2, DISTANCE])
    return tl.split(tl.permute(cut, (0, 1, 3, 2)))


@triton.jit
def _whole(low, high, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 3, 2)), [ROWS, WIDTH])


@triton.jit
def _backwards(x, LEVELS: tl.constexpr):
    """The items of every row, the last one first: halves change places, of halves too."""
    for level in tl.static_range(LEVELS):
        low, high = _halves(x, x.shape[1] >> (level + 1))
        x = _whole(high, low, x.shape[0], x.shape[1])
    return x


@triton.jit
def _items(value, K: tl.constexpr, LEAST: tl.constexpr):
    """Values and payload as they are compared; what the padding holds becomes places without an item."""
    numbers, places = computed(value[0]), value[1]
    exists = (tl.arange(0, numbers.shape[1]) < K)[None, :]
    if numbers.dtype.is_floating():
        numbers = tl.where(exists, numbers, float("-inf"))
    else:
        numbers = tl.where(exists, numbers, tl.full(numbers.shape, LEAST, numbers.dtype))
    return numbers, tl.where(exists, places, tl.full(places.shape, -1, tl.int64))


@triton.jit
def merge_sorted(left, right, CONSTANTS: tl.constexpr):
    """The greatest of both: item i of one row or item WIDTH - 1 - i of the other, which a bitonic merge then sorts.

    Constants: k, what stands for the least integer, and log2 WIDTH.
    """
    numbers, places = _items(left, CONSTANTS[0], CONSTANTS[1])
    others, other_places = _items(right, CONSTANTS[0], CONSTANTS[1])
    rows: tl.constexpr = numbers.shape[0]
    width: tl.constexpr = numbers.shape[1]
    others, other_places = _backwards(others, CONSTANTS[2]), _backwards(other_places, CONSTANTS[2])
    ahead = _goes_first(numbers, places, others, other_places)
    numbers, places = tl.where(ahead, numbers, others), tl.where(ahead, places, other_places)
    LEVELS: tl.constexpr = CONSTANTS[2]  # by a name, which Triton 3.6 asks for
    for level in tl.static_range(LEVELS):
        low, high = _halves(numbers, width >> (level + 1))
        low_places, high_places = _halves(places, width >> (level + 1))
        ahead = _goes_first(low, low_places, high, high_places)
        numbers = _whole(tl.where(ahead, low, high), tl.where(ahead, high, low), rows, width)
        upper, lower = tl.where(ahead, low_places, high_places), tl.where(ahead, high_places, low_places)
        places = _whole(upper, lower, rows, width)
    return tl.where(numbers == 0, tl.full(numbers.shape, 0, numbers.dtype), numbers), places


@triton.jit
def compose_matrices(left, right, CONSTANTS: tl.constexpr):
    """Matrices row after row, so that item i is (i // D, i % D); sums over ascending indices."""
    left_a, left_b, right_a, right_b = computed(left[0]), computed(left[1]), computed(right[0]), computed(right[1])
    D: tl.constexpr = CONSTANTS[0]
    rows: tl.constexpr = left_a.shape[0]
    item = tl.arange(0, left_a.shape[1])
    inside = item < D * D
    of_row, of_column = tl.where(inside, item // D * D, 0), tl.where(inside, item % D, 0)
    row = tl.arange(0, left_b.shape[1])
    of_b = tl.where(row < D, row * D, 0)
    a = _at(right_a, of_row, rows) * _at(left_a, of_column, rows)
    b = _at(right_a, of_b, rows) * _at(left_b, row * 0, rows)
    for at in range(1, D):
        a = a + _at(right_a, of_row + at, rows) * _at(left_a, of_column + at * D, rows)
        b = b + _at(right_a, of_b + at, rows) * _at(left_b, row * 0 + at, rows)
    return a, b + right_b


@triton.jit
def _at(x, items, ROWS: tl.constexpr):
    """Items of every row of a tile, by index."""
    return tl.gather(x, tl.broadcast_to(items[None, :], [ROWS, items.shape[0]]), axis=1)
