"""The Triton kernel that folds packed chunks left to right, whatever the operator."""

# mypy: ignore-errors
# ruff: noqa: PLR0913, SIM108
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.kernels.gpu_floats import stored

HEAD = tl.constexpr(2)
"""Words of a fold's task before the starts of its fields: rows, operands."""


@triton.jit
def _multiple(words, FACTOR: tl.constexpr):
    """The word at a pointer, known to be a multiple."""
    return tl.multiple_of(tl.load(words), FACTOR)


@triton.jit
def _pointers(start, first, DTYPE: tl.constexpr, ITEMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Pointers to the items of rows first ... first + ROWS - 1 of a field that starts at the pointer `start`."""
    items = start.to(tl.pointer_type(DTYPE)) + first * ITEMS
    return items + (tl.arange(0, ROWS)[:, None] * ITEMS + tl.arange(0, WIDTH)[None, :])


@triton.jit
def _mask(first, rows, ITEMS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Which items of such a tile exist."""
    mask = (first + tl.arange(0, ROWS) < rows)[:, None]
    if ITEMS < WIDTH:
        mask = mask & (tl.arange(0, WIDTH) < ITEMS)[None, :]
    return mask


@triton.jit
def _load(
    buffer,
    starts,
    first,
    rows,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ALIGNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile [ROWS, WIDTH] of every field of a value; `starts` points to where its fields start in the buffer."""
    tiles = ()
    for field in tl.static_range(len(DTYPES)):
        start = _multiple(starts + field, ALIGNS[field])
        pointers = _pointers(buffer + start, first, DTYPES[field], ITEMS[field], WIDTHS[field], ROWS)
        mask = _mask(first, rows, ITEMS[field], WIDTHS[field], ROWS)
        tiles = tiles + (tl.load(pointers, mask=mask, other=0),)  # noqa: RUF005 a tuple of tiles is no Python one
    return tiles


@triton.jit
def _combined(
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
        tiles = tiles + (tile,)  # noqa: RUF005
    return tiles


@triton.jit
def fold_kernel(
    buffer,
    targets,
    table,
    stride,
    tiles,
    COMBINE: tl.constexpr,
    CONSTANTS: tl.constexpr,
    DTYPES: tl.constexpr,
    ITEMS: tl.constexpr,
    WIDTHS: tl.constexpr,
    ALIGNS: tl.constexpr,
    ROW_FACTOR: tl.constexpr,
    OPERANDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program folds ROWS rows of one fold; grid (folds x tiles).

    All operands of a row are read before it is written, and by one program, so a result may replace any of them.

    Args:
        buffer: Bytes that hold the operands.
        targets: For every field the bytes that hold the results.
        table: int64 [folds, stride]: of every fold its rows, its number of operands, then the bytes at which the
            fields start: of the result in `targets`, of every operand in `buffer`.
        stride: Words of a row of the table.
        tiles: Programs of a fold.
        COMBINE: The operator's function, see `topocomm.TritonCombine`.
        CONSTANTS: Its constants.
        DTYPES: Of every field.
        ITEMS: Of a row of every field.
        WIDTHS: The same padded to powers of two.
        ALIGNS: Of every field a power of two that divides all its starts, at most 16.
        ROW_FACTOR: Likewise, of the numbers of rows.
        OPERANDS: Their number if all folds have as many, so that all are under way at once; 0: the table says it.
        ROWS: A power of two.
    """
    program = tl.program_id(0)
    task = table + (program // tiles) * stride
    first = ((program % tiles) * ROWS).to(tl.int64)
    rows = _multiple(task, ROW_FACTOR)
    fields: tl.constexpr = len(DTYPES)
    starts = task + HEAD + fields
    folded = _load(buffer, starts, first, rows, DTYPES, ITEMS, WIDTHS, ALIGNS, ROWS)
    if OPERANDS > 0:
        for operand in tl.static_range(1, OPERANDS):
            right = _load(buffer, starts + operand * fields, first, rows, DTYPES, ITEMS, WIDTHS, ALIGNS, ROWS)
            folded = _combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    else:
        for operand in range(1, tl.load(task + 1).to(tl.int32)):
            right = _load(buffer, starts + operand * fields, first, rows, DTYPES, ITEMS, WIDTHS, ALIGNS, ROWS)
            folded = _combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    tl.debug_barrier()  # several warps may read one item, of an operand that the result replaces
    for field in tl.static_range(fields):
        start = _multiple(task + HEAD + field, ALIGNS[field])
        pointers = _pointers(targets[field] + start, first, DTYPES[field], ITEMS[field], WIDTHS[field], ROWS)
        tl.store(pointers, folded[field], mask=_mask(first, rows, ITEMS[field], WIDTHS[field], ROWS))
