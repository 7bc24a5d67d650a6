"""The merge of partials, compiled by numba: an n-way left fold over packed chunks.

First the weights of a block of rows are computed, side by side in vector registers, then the rows of `out` stream
by once. Each step rounds as a merge of two does: the n-way fold equals repeated merges of two bit for bit. exp and
log1p are our own, without calls into a math library, so all machines round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from attention.kernels.memory import floats

if config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("numba is switched off by NUMBA_DISABLE_JIT")

VERSION = "numba.logsumexp/2"

FLOATS = types.float32[::1]
ROWS = types.float32[:, ::1]
TASK = types.int64[::1]
HEAD = 4
"""Words of a task before its addresses: rows, operands, dim, 1."""
BLOCK = 256
"""Rows whose weights are computed before their `out` is read."""

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the high one has 21 trailing zero bits, so its product with a small integer is exact (fdlibm)."""
ROUNDING = 1.5 * 2.0**52
"""Adding it rounds to an integer, found in the low bits of the sum."""
NEGLIGIBLE = -200.0
"""exp of this and of anything below is 0 in float32, and adds nothing to 1 in float64."""


@intrinsic
def _bits(typingctx, x):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _from_bits(typingctx, x):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@njit(inline="always")
def _exp(x):
    """e^x for x in [NEGLIGIBLE, 0], and NaN for NaN: x = n ln 2 + r, the Taylor series to r^12 (4e-16), times 2^n."""
    shifted = x * LOG2_E + ROUNDING
    n = shifted - ROUNDING
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    series = 1.0 / 479001600
    series = series * r + 1.0 / 39916800
    series = series * r + 1.0 / 3628800
    series = series * r + 1.0 / 362880
    series = series * r + 1.0 / 40320
    series = series * r + 1.0 / 5040
    series = series * r + 1.0 / 720
    series = series * r + 1.0 / 120
    series = series * r + 1.0 / 24
    series = series * r + 1.0 / 6
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    return series * _from_bits((_bits(shifted) + 1023) << 52)


@njit(inline="always")
def _log1p(x):
    """ln(1 + x) for x in [0, 1]: 2 artanh(s), s = x / (2 + x) <= 1/3, the series to s^27 (2e-15)."""
    s = x / (2.0 + x)
    square = s * s
    series = 1.0 / 27
    series = series * square + 1.0 / 25
    series = series * square + 1.0 / 23
    series = series * square + 1.0 / 21
    series = series * square + 1.0 / 19
    series = series * square + 1.0 / 17
    series = series * square + 1.0 / 15
    series = series * square + 1.0 / 13
    series = series * square + 1.0 / 11
    series = series * square + 1.0 / 9
    series = series * square + 1.0 / 7
    series = series * square + 1.0 / 5
    series = series * square + 1.0 / 3
    series = series * square + 1.0
    return 2.0 * s * series


@njit(inline="always")
def _weigh(left_lse, right_lse, lse, left_weights, right_weights):
    """Merged lse and both weights of every row; a weight is 0 where that operand is to be ignored."""
    zero, one = np.float32(0), np.float32(1)
    for row in range(lse.size):
        left, right = left_lse[row], right_lse[row]
        gap = np.float64(left) - np.float64(right)
        apart = -abs(gap)
        lighter = _exp(NEGLIGIBLE if apart < NEGLIGIBLE else apart)
        total = 1.0 + lighter
        high, low = np.float32(1.0 / total), np.float32(lighter / total)
        above = gap >= 0
        merged = np.float32(np.float64(left if above else right) + _log1p(lighter))
        left_empty, right_empty = left == -np.inf, right == -np.inf
        left_weight, right_weight = (high if above else low), (low if above else high)
        left_weights[row] = zero if left_empty else one if right_empty else left_weight
        right_weights[row] = zero if right_empty else one if left_empty else right_weight
        lse[row] = left if right_empty else right if left_empty else merged


@njit(inline="always")
def _blend(out, left, right, left_weight, right_weight):
    for j in range(out.size):
        out[j] = left_weight * left[j] + right_weight * right[j]


@njit(inline="always")
def _blend_into(out, other, weight, other_weight):
    # Apart from `_blend`: only here does the compiler know that `out` is an operand, and vectorises.
    for j in range(out.size):
        out[j] = weight * out[j] + other_weight * other[j]


@njit(inline="always")
def _row(flat, row, dim):
    return flat[row * dim : (row + 1) * dim]


@njit
def _take_rows(out, left, right, left_weights, right_weights, dim):
    """Rows with an operand to ignore: the other one bit for bit, or zeros. Apart, so that the common loop is lean."""
    for row in range(left_weights.size):
        if left_weights[row] == 0 or right_weights[row] == 0:
            for at in range(row * dim, (row + 1) * dim):
                taken = left[at] if left_weights[row] != 0 else right[at]
                out[at] = np.float32(0) if left_weights[row] == right_weights[row] else taken


@njit(error_model="numpy")
def _merge(out, left, right, left_weights, right_weights, dim):
    """Out = the weighted sum of left and right, all [rows * dim]; `out` may be either."""
    in_left, in_right = out.ctypes.data == left.ctypes.data, out.ctypes.data == right.ctypes.data
    for row in range(left_weights.size):
        left_weight, right_weight = left_weights[row], right_weights[row]
        if left_weight != 0 and right_weight != 0:
            target = _row(out, row, dim)
            if in_left:
                _blend_into(target, _row(right, row, dim), left_weight, right_weight)
            elif in_right:
                _blend_into(target, _row(left, row, dim), right_weight, left_weight)
            else:
                _blend(target, _row(left, row, dim), _row(right, row, dim), left_weight, right_weight)
    _take_rows(out, left, right, left_weights, right_weights, dim)


@njit(inline="always")
def _floats(address, first, count):
    return floats(address + 4 * first, count)


@njit(error_model="numpy")
def _fold(task):
    """Fold left to right. `task` is described at `topocomm.Kernel`; its fields are out [rows, dim] and lse [rows]."""
    rows, operands, dim = task[0], task[1], task[2]
    work = np.empty(3 * BLOCK, np.float32)
    for first in range(0, rows, BLOCK):
        count = min(BLOCK, rows - first)
        merged = work[:count]
        left_weights, right_weights = work[BLOCK : BLOCK + count], work[2 * BLOCK : 2 * BLOCK + count]
        out = _floats(task[HEAD], first * dim, count * dim)
        left = _floats(task[HEAD + 2], first * dim, count * dim)
        left_lse = _floats(task[HEAD + 3], first, count)
        for operand in range(HEAD + 4, HEAD + 2 + 2 * operands, 2):
            right = _floats(task[operand], first * dim, count * dim)
            _weigh(left_lse, _floats(task[operand + 1], first, count), merged, left_weights, right_weights)
            _merge(out, left, right, left_weights, right_weights, dim)
            left, left_lse = out, merged
        if operands == 1:
            for at in range(out.size):
                out[at] = left[at]
        lse = _floats(task[HEAD + 1], first, count)
        for row in range(count):
            lse[row] = left_lse[row]


# No fast-math anywhere: it would drop the tests for -inf and let two builds round differently.
@njit(types.void(TASK, ROWS, FLOATS), cache=True, nogil=True, error_model="numpy")
def _fold_into(task, out, lse):
    task[HEAD], task[HEAD + 1] = out.ctypes.data, lse.ctypes.data
    _fold(task)


@cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy")
def _fold_task(task):
    _fold(carray(task, (HEAD + 2 * (1 + task[1]),)))


COMPILED: int = _fold_task.address  # type: ignore[assignment]
"""The fold as a C function, for `topocomm.Kernel`."""


def bind(chunks: Sequence[tuple[Any, Any]]) -> Callable[[Mapping[str, Any]], None]:
    """A function that folds `chunks` left to right into the arrays out [rows, dim] and lse [rows] given to it.

    Args:
        chunks: (out [rows, dim], lse [rows]), float32, C-contiguous, one or more. The result may go to the first
            or, of two, to either.
    """
    rows, dim = chunks[0][0].shape
    addresses = [view.ctypes.data for chunk in chunks for view in chunk]
    task = np.array([rows, len(chunks), dim, 1, 0, 0, *addresses], np.int64)

    def fold(target: Mapping[str, Any], _alive: Any = chunks) -> None:
        _fold_into(task, target["out"], target["lse"])

    return fold
