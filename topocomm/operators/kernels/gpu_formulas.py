"""The formulas of the built-in operators on tiles, each as its namesake in the operator's own file.

Every step rounds by IEEE 754 and none is a call into a math library, so with FP fusion off a GPU has the bits of the
CPU. A complex field comes as its halves side by side, [ROWS, 2].
"""

# mypy: ignore-errors
# ruff: noqa: D103
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.builtins import formula as series
from topocomm.operators.kernels.gpu_tiles import computed, wide

LOG2_E = tl.constexpr(series.LOG2_E)
LN2_HIGH, LN2_LOW = tl.constexpr(series.LN2_HIGH), tl.constexpr(series.LN2_LOW)
ROUNDING, LEAST = tl.constexpr(series.ROUNDING), tl.constexpr(series.LEAST)
EXPONENTIAL, INVERSE_TANH = tl.constexpr(series.EXPONENTIAL), tl.constexpr(series.INVERSE_TANH)
LAST_POWER, LAST_TERM = tl.constexpr(len(series.EXPONENTIAL) - 1), tl.constexpr(len(series.INVERSE_TANH) - 1)


@triton.jit
def add(left, right):
    return (computed(left[0]) + computed(right[0]),)


@triton.jit
def multiply(left, right):
    return (computed(left[0]) * computed(right[0]),)


@triton.jit
def _halves(x):
    """The real and the imaginary part [ROWS, 1] of complex numbers [ROWS, 2]."""
    real, imaginary = tl.split(x)
    return real[:, None], imaginary[:, None]


@triton.jit
def _whole(real, imaginary):
    return tl.reshape(tl.join(real, imaginary), [real.shape[0], 2])


@triton.jit
def multiply_complex(left, right):
    left_r, left_i = _halves(left[0])
    right_r, right_i = _halves(right[0])
    return (_whole(left_r * right_r - left_i * right_i, left_r * right_i + left_i * right_r),)


@triton.jit
def bitwise_and(left, right):
    return (left[0] & right[0],)


@triton.jit
def bitwise_or(left, right):
    return (left[0] | right[0],)


@triton.jit
def bitwise_xor(left, right):
    return (left[0] ^ right[0],)


@triton.jit
def greater(left, right):
    return (tl.where(left[0] > right[0], left[0], right[0]),)


@triton.jit
def less(left, right):
    return (tl.where(left[0] < right[0], left[0], right[0]),)


@triton.jit
def maximum(left, right):
    x, y = computed(left[0]), computed(right[0])
    same = tl.where(x == 0, x + y, x)
    return (tl.where(x != x, x, tl.where(x == y, same, tl.where(x > y, x, y))),)


@triton.jit
def least_zero(x, y):
    """The lesser of two zeros: -0 where either is. Triton 3.6 compiles -x as 0 - x, which has no -0: so factors."""
    made = x
    if x.dtype.is_floating():
        made = (x * -1.0 - y) * -1.0
    return made


@triton.jit
def minimum(left, right):
    x, y = computed(left[0]), computed(right[0])
    same = tl.where(x == 0, least_zero(x, y), x)
    return (tl.where(x != x, x, tl.where(x == y, same, tl.where(x < y, x, y))),)


@triton.jit
def first_greatest(left, right):
    x, y = computed(left[0]), computed(right[0])
    same = (x == y) | ((x != x) & (y != y))
    ahead = (x > y) | ((x != x) & (y == y)) | (same & (left[1] < right[1]))
    twin = (x == 0) & (y == 0) & (left[1] == right[1])
    return tl.where(twin, x + y, tl.where(ahead, x, y)), tl.where(ahead, left[1], right[1])


@triton.jit
def first_least(left, right):
    x, y = computed(left[0]), computed(right[0])
    same = (x == y) | ((x != x) & (y != y))
    ahead = (x < y) | ((x != x) & (y == y)) | (same & (left[1] < right[1]))
    twin = (x == 0) & (y == 0) & (left[1] == right[1])
    return tl.where(twin, least_zero(x, y), tl.where(ahead, x, y)), tl.where(ahead, left[1], right[1])


@triton.jit
def logaddexp(left, right):
    x, y = wide(left[0]), wide(right[0])
    apart = tl.where(x == y, 0.0, -tl.abs(x - y))
    exponent = tl.where(apart < LEAST, LEAST, apart)
    shifted = exponent * LOG2_E + ROUNDING
    power = shifted - ROUNDING
    rest = (exponent - power * LN2_HIGH) - power * LN2_LOW
    series = rest * EXPONENTIAL[0]
    for term in tl.static_range(1, LAST_POWER):
        series = (series + EXPONENTIAL[term]) * rest
    series = series + EXPONENTIAL[LAST_POWER]
    scale = ((shifted.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)
    lighter = tl.where(apart < LEAST, 0.0, series * scale)
    ratio = lighter / (2.0 + lighter)
    square = ratio * ratio
    logarithm = square * INVERSE_TANH[0]
    for term in tl.static_range(1, LAST_TERM):
        logarithm = (logarithm + INVERSE_TANH[term]) * square
    return (tl.where(x > y, x, y) + 2.0 * ratio * (logarithm + INVERSE_TANH[LAST_TERM]),)


@triton.jit
def _counted(x):
    """Counts as they are added: int64, or float64."""
    made = x
    if x.dtype != tl.int64:
        made = wide(x)
    return made


@triton.jit
def merge_moments(left, right):
    left_count, right_count = _counted(left[0]), _counted(right[0])
    left_mean, right_mean = wide(left[1]), wide(right[1])
    left_m2, right_m2 = wide(left[2]), wide(right[2])
    count = left_count + right_count
    left_heavy = (left_count > right_count) | ((left_count == right_count) & (left_mean >= right_mean))
    mean, other = tl.where(left_heavy, left_mean, right_mean), tl.where(left_heavy, right_mean, left_mean)
    heavy = tl.where(left_heavy, left_count, right_count).to(tl.float64)
    light = tl.where(left_heavy, right_count, left_count).to(tl.float64)
    share = light / tl.where(count == 0, count + 1, count).to(tl.float64)
    delta = other - mean
    finite = delta - delta == 0
    merged = tl.where(finite, mean + delta * share, mean * (1.0 - share) + other * share)
    m2 = (left_m2 + right_m2) + delta * delta * (heavy * share)
    merged = tl.where(left_count == 0, right_mean, tl.where(right_count == 0, left_mean, merged))
    m2 = tl.where(left_count == 0, right_m2, tl.where(right_count == 0, left_m2, m2))
    return count, tl.where(count == 0, 0.0, merged), tl.where(count == 0, 0.0, m2)


@triton.jit
def compose(left, right):
    left_a, left_b, right_a, right_b = computed(left[0]), computed(left[1]), computed(right[0]), computed(right[1])
    return right_a * left_a, right_a * left_b + right_b


@triton.jit
def compose_complex(left, right):
    left_a, left_a_i = _halves(left[0])
    left_b, left_b_i = _halves(left[1])
    right_a, right_a_i = _halves(right[0])
    right_b, right_b_i = _halves(right[1])
    a, a_i = right_a * left_a - right_a_i * left_a_i, right_a * left_a_i + right_a_i * left_a
    b, b_i = right_a * left_b - right_a_i * left_b_i, right_a * left_b_i + right_a_i * left_b
    return _whole(a, a_i), _whole(b + right_b, b_i + right_b_i)


@triton.jit
def _goes_first(value, place, other, other_place):
    """Whether an item stands before another: the greater value, NaN above all, then the lower payload, -1 last."""
    same = (value == other) | ((value != value) & (other != other))
    lower = place.to(tl.uint64, bitcast=True) <= other_place.to(tl.uint64, bitcast=True)
    return (same & lower) | (value > other) | ((value != value) & (other == other))


@triton.jit
def _partners(x, DISTANCE: tl.constexpr):
    """The items [ROWS, groups, DISTANCE] that have a partner so far behind them, and the partners."""
    groups: tl.constexpr = x.shape[1] // (2 * DISTANCE)
    cut = tl.reshape(x, [x.shape[0], groups, 2, DISTANCE])
    return tl.split(tl.permute(cut, (0, 1, 3, 2)))


@triton.jit
def _rejoined(low, high, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 3, 2)), [ROWS, WIDTH])


@triton.jit
def _backwards(x, LEVELS: tl.constexpr):
    """The items of every row, the last one first: halves change places, of halves too."""
    for level in tl.static_range(LEVELS):
        low, high = _partners(x, x.shape[1] >> (level + 1))
        x = _rejoined(high, low, x.shape[0], x.shape[1])
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
        low, high = _partners(numbers, width >> (level + 1))
        low_places, high_places = _partners(places, width >> (level + 1))
        ahead = _goes_first(low, low_places, high, high_places)
        numbers = _rejoined(tl.where(ahead, low, high), tl.where(ahead, high, low), rows, width)
        upper, lower = tl.where(ahead, low_places, high_places), tl.where(ahead, high_places, low_places)
        places = _rejoined(upper, lower, rows, width)
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
