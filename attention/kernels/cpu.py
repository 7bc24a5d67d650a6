"""The merge of partials, compiled by numba: an n-way left fold over packed chunks, without allocation.

A row holds `out` and one lse per operand. Rows are folded one after the other, and within a row operands from left
to right, each step rounding as a merge of two does: the n-way fold equals repeated merges of two bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import njit, types

VERSION = "numba.logsumexp/1"

FLOATS = types.float32[::1]
PLAN = types.int64[::1]


def bind(buffer: Any, chunks: Sequence[tuple[Any, Any]]) -> Callable[[], None]:
    """A function without arguments that folds `chunks[1:]` into `chunks[0]`, left to right.

    Args:
        buffer: uint8 [bytes], which holds all chunks.
        chunks: (out [rows, dim], lse [rows]) as float32 views on `buffer`. The first is written; it may be the
            second, or one of the other two where there are three.
    """
    floats = buffer[: buffer.size // 4 * 4].view(np.float32)
    base = floats.ctypes.data
    rows, dim = chunks[0][0].shape
    offsets = [(view.ctypes.data - base) // 4 for chunk in chunks for view in chunk]
    return partial(_fold, floats, np.array([rows, dim, *offsets], np.int64))


@njit(inline="always")
def _weights(left_lse, right_lse):
    gap = np.float64(left_lse) - np.float64(right_lse)
    lighter = math.exp(-abs(gap))
    total = 1.0 + lighter
    lse = np.float32(max(np.float64(left_lse), np.float64(right_lse)) + math.log(total))
    high, low = np.float32(1.0 / total), np.float32(lighter / total)
    if gap >= 0:
        return high, low, lse
    return low, high, lse


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
def _merge_row(floats, out_at, left_at, right_at, dim, left_lse, right_lse):
    out = floats[out_at : out_at + dim]
    left = floats[left_at : left_at + dim]
    right = floats[right_at : right_at + dim]
    if right_lse == -np.inf:
        if left_lse == -np.inf:
            out[:] = 0
        elif left_at != out_at:
            out[:] = left
        return left_lse
    if left_lse == -np.inf:
        if right_at != out_at:
            out[:] = right
        return right_lse
    left_weight, right_weight, lse = _weights(left_lse, right_lse)
    if left_at == out_at:
        _blend_into(out, right, left_weight, right_weight)
    elif right_at == out_at:
        _blend_into(out, left, right_weight, left_weight)
    else:
        _blend(out, left, right, left_weight, right_weight)
    return lse


# No fast-math: it would drop the tests for -inf and let two builds round differently.
@njit(types.void(FLOATS, PLAN), cache=True, nogil=True, error_model="numpy")
def _fold(floats, plan):
    """plan: rows, dim, then (out, lse) offsets in `floats` of the result and of every operand."""
    rows, dim, out_at, lse_at = plan[0], plan[1], plan[2], plan[3]
    for row in range(rows):
        here = out_at + row * dim
        left = plan[4] + row * dim
        lse = floats[plan[5] + row]
        for at in range(6, plan.size, 2):
            right = plan[at] + row * dim
            lse = _merge_row(floats, here, left, right, dim, lse, floats[plan[at + 1] + row])
            left = here
        if left != here:  # a single operand
            floats[here : here + dim] = floats[left : left + dim]
        floats[lse_at + row] = lse
