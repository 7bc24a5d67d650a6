"""The merge of partials on GPUs, in Triton: what `attention.kernels.cpu_merge` does, step by step.

Weights are computed in float64 from the float32 lse and rounded once; exp and log1p are the CPU's own, in plain
arithmetic. So with FP fusion off results are the CPU's bit for bit (only which NaN a NaN is may differ), and a fold of
n partials is the merge of two repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from attention.gpu.placement import current
from topocomm.extend import launcher

LOG2_E = tl.constexpr(1.4426950408889634)
LN2_HIGH, LN2_LOW = tl.constexpr(6.93147180369123816490e-01), tl.constexpr(1.90821492927058770002e-10)
ROUNDING = tl.constexpr(1.5 * 2.0**52)
"""Adding it rounds to an integer, found in the low bits of the sum."""
NEGLIGIBLE = tl.constexpr(-200.0)
"""exp of this and of anything below is 0 in float32, and adds nothing to 1 in float64."""
FACTORIALS = (39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1)
EXPONENTIAL = tl.constexpr(tuple(1.0 / number for number in (479001600, *FACTORIALS)))
INVERSE_TANH = tl.constexpr(tuple(1.0 / number for number in range(27, 0, -2)))
POWERS, TERMS = tl.constexpr(13), tl.constexpr(14)
"""Coefficients of the two series."""
MOST_STATES = 16
"""States of one launch; more are folded 16 first, then 15 at a time."""
MOST_DIM = 16384
"""Beyond it one row would not fit in the registers of a program."""
PROGRAMS = 256
"""Programs that are worth having before their tiles grow: about two for each multiprocessor of a large GPU."""
TILE_ITEMS = 256, 1024
ITEMS_PER_THREAD = 4


@triton.jit
def _exp(x):
    """e^x for float64 x in [NEGLIGIBLE, 0], and NaN for NaN: x = n ln 2 + r, the Taylor series to r^12, times 2^n."""
    shifted = x * LOG2_E + ROUNDING
    n = shifted - ROUNDING
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    series = r * EXPONENTIAL[0] + EXPONENTIAL[1]
    for power in tl.static_range(2, POWERS):
        series = series * r + EXPONENTIAL[power]
    return series * ((shifted.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _log1p(x):
    """ln(1 + x) for float64 x in [0, 1]: 2 artanh(s), s = x / (2 + x) <= 1/3, the series to s^27."""
    s = x / (2.0 + x)
    square = s * s
    series = square * INVERSE_TANH[0] + INVERSE_TANH[1]
    for term in tl.static_range(2, TERMS):
        series = series * square + INVERSE_TANH[term]
    return 2.0 * s * series


@triton.jit
def merge(left, right):
    """The merge of two partials: (out float32 [ROWS, WIDTH], lse float32 [ROWS, 1]) each."""
    left_lse = tl.where(left[1] == float("inf"), float("nan"), left[1])
    right_lse = tl.where(right[1] == float("inf"), float("nan"), right[1])
    gap = left_lse.to(tl.float64) - right_lse.to(tl.float64)
    apart = -tl.abs(gap)
    lighter = _exp(tl.where(apart < NEGLIGIBLE, NEGLIGIBLE, apart))
    total = 1.0 + lighter
    high, low = (1.0 / total).to(tl.float32), (lighter / total).to(tl.float32)
    above = gap >= 0
    merged = (tl.where(above, left_lse, right_lse).to(tl.float64) + _log1p(lighter)).to(tl.float32)
    left_empty, right_empty = left_lse == float("-inf"), right_lse == float("-inf")
    left_weight = tl.where(left_empty, 0.0, tl.where(right_empty, 1.0, tl.where(above, high, low)))
    right_weight = tl.where(right_empty, 0.0, tl.where(left_empty, 1.0, tl.where(above, low, high)))
    lse = tl.where(right_empty, left_lse, tl.where(left_empty, right_lse, merged))
    takes_left, takes_right = left_weight != 0, right_weight != 0  # an operand of weight 0 may hold NaN
    either = tl.where(takes_left, left[0], tl.where(takes_right, right[0], 0.0))
    out = tl.where(takes_left & takes_right, left_weight * left[0] + right_weight * right[0], either)
    return out, lse


@triton.jit
def states_kernel(
    outs,
    lses,
    out,
    lse,
    rows,
    COUNT: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The left fold of COUNT states; one program folds ROWS rows.

    Args:
        outs: COUNT pointers to [rows, DIM], contiguous, float32 or 16 bits.
        lses: COUNT pointers to float32 [rows].
        out: float32 [rows, DIM]; may be the first of `outs`.
        lse: float32 [rows]; may be the first of `lses`.
        rows: Of every state.
        COUNT: States, 1 or more.
        DIM: Items of a row, 0 or more.
        WIDTH: DIM padded to a power of two.
        ROWS: A power of two.
    """
    first = (tl.program_id(0) * ROWS).to(tl.int64)
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    exists = first + row < rows
    in_tile = exists & (column < DIM)
    at = first * DIM + (row * DIM + column)
    its_lses, its_outs = (), ()
    for state in tl.static_range(COUNT):  # all loads are under way before the first is needed
        its_lses = its_lses + (tl.load(lses[state] + first + row, mask=exists, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
        its_outs = its_outs + (tl.load(outs[state] + at, mask=in_tile, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    merged_out, merged_lse = its_outs[0].to(tl.float32), its_lses[0]  # type: ignore[misc]
    if COUNT == 1:
        merged_out = tl.where(merged_lse == float("-inf"), 0.0, merged_out)
        merged_lse = tl.where(merged_lse == float("inf"), float("nan"), merged_lse)
    for state in tl.static_range(1, COUNT):
        merged_out, merged_lse = merge((merged_out, merged_lse), (its_outs[state].to(tl.float32), its_lses[state]))
    tl.debug_barrier()  # several warps read one lse, which the result may replace
    tl.store(out + at, merged_out, mask=in_tile)
    tl.store(lse + first + row, merged_lse, mask=exists)


def merge_on_device(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the left fold of n states, on a GPU or in Triton's interpreter, by one launch for up to 16 states.

    Args:
        outs: [*rows, dim] each, of one shape; float32, bfloat16 or float16; dim up to `MOST_DIM`.
        lses: [*rows] each, float32, natural logarithms.

    Returns:
        out [*rows, dim] and lse [*rows], float32, contiguous. With contiguous states nothing else is allocated.
    """
    outs, lses = [x.contiguous() for x in outs], [x.contiguous() for x in lses]
    out = torch.empty(outs[0].shape, dtype=torch.float32, device=outs[0].device)
    lse = torch.empty(lses[0].shape, dtype=torch.float32, device=outs[0].device)
    if lse.numel():
        with current(lse.device):
            _launch(outs[:MOST_STATES], lses[:MOST_STATES], out, lse)
            for start in range(MOST_STATES, len(outs), MOST_STATES - 1):
                stop = start + MOST_STATES - 1
                _launch([out, *outs[start:stop]], [lse, *lses[start:stop]], out, lse)
    return out, lse


def _launch(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor], out: torch.Tensor, lse: torch.Tensor) -> None:
    rows, dim = lse.numel(), out.shape[-1]
    width, tile_rows, warps = tiles(rows, dim)
    launcher(states_kernel, (-(-rows // tile_rows),))(
        tuple(outs),
        tuple(lses),
        out,
        lse,
        rows,
        COUNT=len(outs),
        DIM=dim,
        WIDTH=width,
        ROWS=tile_rows,
        num_warps=warps,
        enable_fp_fusion=False,
    )


def tiles(rows: int, dim: int) -> tuple[int, int, int]:
    """Return (columns padded to a power of two, rows of a program, its warps) for this many rows of `dim` items."""
    width = _power_of_two(max(1, dim))
    fewest, most = TILE_ITEMS
    items = min(max(_power_of_two(rows * width // PROGRAMS), fewest), most)
    tile_rows = max(1, min(_power_of_two(rows), items // width))
    return width, tile_rows, min(8, max(1, tile_rows * width // (32 * ITEMS_PER_THREAD)))


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
