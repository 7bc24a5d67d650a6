"""What both attention kernels share: tiles of rows in memory, operands of products, soft caps of scores."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def operand(x, DOT: tl.constexpr, INTERPRETED: tl.constexpr):
    """An operand of tl.dot in its dtype; the interpreter multiplies in float32 what is rounded to it."""
    if INTERPRETED:
        x = x.to(tl.float32)  # from float8e5 to float16 it loses subnormal numbers
    x = x.to(DOT)
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def load_rows(
    base, offsets, ok, WIDTH: tl.constexpr, FROM: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr = True
):
    """[rows, BLOCK] of columns FROM to WIDTH: 0 beyond WIDTH, and if MASKED where a row is not ok.

    Args:
        base: Pointer to row 0, column 0.
        offsets: [rows], where each row begins, in items.
        ok: bool [rows].
        WIDTH: Columns that there are.
        FROM: The first to load.
        BLOCK: How many, a power of two.
        MASKED: Whether rows may be not ok.
    """
    columns = FROM + tl.arange(0, BLOCK)
    addresses = base + (offsets[:, None] + columns[None, :])
    if FROM + BLOCK > WIDTH:
        if MASKED:
            values = tl.load(addresses, mask=ok[:, None] & (columns < WIDTH)[None, :], other=0.0)
        else:
            values = tl.load(addresses, mask=(columns < WIDTH)[None, :], other=0.0)
    elif MASKED:
        values = tl.load(addresses, mask=ok[:, None], other=0.0)
    else:
        values = tl.load(addresses)
    return values


@triton.jit
def store_rows(base, offsets, ok, values, WIDTH: tl.constexpr, FROM: tl.constexpr, BLOCK: tl.constexpr):
    """Stores [rows, BLOCK] into columns FROM to WIDTH of the rows that are ok."""
    columns = FROM + tl.arange(0, BLOCK)
    mask = ok[:, None] & (columns < WIDTH)[None, :]
    tl.store(base + (offsets[:, None] + columns[None, :]), values, mask=mask)


@triton.jit
def capped(scores, softcap):
    """Scores s become softcap tanh(s / softcap) within 5e-7 of it: small ones keep their digits under a high cap.

    1 - 2 / (e^2x + 1), which is -1 and 1 in the limits; below 5/8, where that cancels, the polynomial of the Cephes
    library (tanhf).
    """
    x = scores * (1.0 / softcap)
    square = x * x
    series = square * -5.70498872745e-3 + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = scores * (series * square + 1.0)
    far = softcap * (1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2_E)) + 1.0))
    return tl.where(square < 0.390625, near, far)  # NaN: far, which is NaN
