"""Tiles of rows in memory, as the attention kernels load and store them."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def operand(x, DOT: tl.constexpr, INTERPRETED: tl.constexpr):
    """An operand of tl.dot in its dtype; the interpreter multiplies in float32 what is rounded to it."""
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
    where = base + (offsets[:, None] + columns[None, :])
    if FROM + BLOCK > WIDTH:
        if MASKED:
            found = tl.load(where, mask=ok[:, None] & (columns < WIDTH)[None, :], other=0.0)
        else:
            found = tl.load(where, mask=(columns < WIDTH)[None, :], other=0.0)
    elif MASKED:
        found = tl.load(where, mask=ok[:, None], other=0.0)
    else:
        found = tl.load(where)
    return found


@triton.jit
def store_rows(base, offsets, ok, values, WIDTH: tl.constexpr, FROM: tl.constexpr, BLOCK: tl.constexpr):
    """Stores [rows, BLOCK] into columns FROM to WIDTH of the rows that are ok."""
    columns = FROM + tl.arange(0, BLOCK)
    mask = ok[:, None] & (columns < WIDTH)[None, :]
    tl.store(base + (offsets[:, None] + columns[None, :]), values, mask=mask)
