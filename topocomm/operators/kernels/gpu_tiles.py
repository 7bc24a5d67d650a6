"""Tiles of packed values in Triton kernels: where their items lie, and what an operator makes of two of them."""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108 a tuple of tiles is no Python one
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.kernels.gpu_floats import stored


@triton.jit
def multiple(words, FACTOR: tl.constexpr):
    """The word at a pointer, known to be a multiple."""
    return tl.multiple_of(tl.load(words), FACTOR)


@triton.jit
def pointers(start, first, DTYPE: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Pointers to the items of rows first ... first + ROWS - 1 of a field that starts at the pointer `start`."""
    items = start.to(tl.pointer_type(DTYPE)) + first * ITEMS
    return items + (tl.arange(0, ROWS)[:, None] * ITEMS + tl.arange(0, WIDTH)[None, :])


@triton.jit
def mask_of(first, rows, ITEMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Which items of such a tile exist."""
    mask = (first + tl.arange(0, ROWS) < rows)[:, None]
    if ITEMS < WIDTH:
        mask = mask & (tl.arange(0, WIDTH) < ITEMS)[None, :]
    return mask


@triton.jit
def load(
    starts,
    first,
    rows,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile [ROWS, WIDTH] of every field of a value; `starts` has the pointer at which each field starts."""
    tiles = ()
    for field in tl.static_range(len(DTYPES)):
        items = pointers(starts[field], first, DTYPES[field], ITEMS[field], WIDTHS[field], ROWS)
        mask = mask_of(first, rows, ITEMS[field], WIDTHS[field], ROWS)
        tiles = tiles + (tl.load(items, mask=mask, other=0),)
    return tiles


@triton.jit
def store(
    starts,
    tiles,
    first,
    rows,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write such tiles."""
    for field in tl.static_range(len(DTYPES)):
        items = pointers(starts[field], first, DTYPES[field], ITEMS[field], WIDTHS[field], ROWS)
        tl.store(items, tiles[field], mask=mask_of(first, rows, ITEMS[field], WIDTHS[field], ROWS))


@triton.jit
def combined(
    left,
    right,
    COMBINE: tl.constexpr,
    CONSTANTS: tl.constexpr,
    DTYPES: tl.constexpr,
    WIDTHS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What the operator makes of two values, rounded to what is stored."""
    if len(CONSTANTS) > 0:
        made = COMBINE(left, right, CONSTANTS)
    else:
        made = COMBINE(left, right)
    tiles = ()
    for field in tl.static_range(len(DTYPES)):
        tile = tl.broadcast_to(stored(made[field], DTYPES[field]), [ROWS, WIDTHS[field]])
        tiles = tiles + (tile,)
    return tiles
