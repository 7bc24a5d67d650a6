"""Tiles of packed values in Triton kernels: where their items lie, and what an operator makes of two of them."""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108, SIM300 a tuple of tiles is no Python one
from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter cuts float32 off where GPUs round it to bfloat16, so there the rounding is spelled out."""


@triton.jit
def computed(x):
    """Floats of 16 bits as float32; everything else as it is."""
    made = x
    if x.dtype == tl.float16:
        made = x.to(tl.float32)
    elif x.dtype == tl.bfloat16:
        if INTERPRETED:
            made = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        else:
            made = x.to(tl.float32)
    return made


@triton.jit
def wide(x):
    """As float64."""
    return computed(x).to(tl.float64)


@triton.jit
def stored(x, DTYPE: tl.constexpr):
    """Rounded to DTYPE, to nearest, ties to even; from float64 to 16 bits by way of float32."""
    made = x
    if x.dtype != DTYPE:
        if DTYPE == tl.bfloat16:
            single = computed(x).to(tl.float32)
            if INTERPRETED:
                bits = single.to(tl.uint32, bitcast=True)
                carried = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
                made = tl.where(single != single, 0x7FC0, carried).to(tl.uint16).to(tl.bfloat16, bitcast=True)
            else:
                made = single.to(tl.bfloat16)
        elif DTYPE == tl.float16:
            made = computed(x).to(tl.float32).to(tl.float16)
        else:
            made = computed(x).to(DTYPE)
    return made


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
