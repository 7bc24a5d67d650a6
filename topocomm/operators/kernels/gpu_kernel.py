"""The Triton kernel that folds packed chunks left to right, whatever the operator."""

# mypy: ignore-errors
# ruff: noqa: PLR0913
from __future__ import annotations

import triton
import triton.language as tl

from topocomm.operators.kernels.gpu_tiles import combined, load, multiple, store

HEAD = tl.constexpr(2)
"""Words of a fold's task before the starts of its fields: rows, operands."""


@triton.jit
def _starts(memories, words, ALIGNS: tl.constexpr):
    """Pointers to the fields of a packed chunk: byte `words[field]` of each field's memory."""
    starts = ()
    for field in tl.static_range(len(ALIGNS)):
        starts = starts + (memories[field] + multiple(words + field, ALIGNS[field]),)  # noqa: RUF005 no Python tuple
    return starts


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
    rows = multiple(task, ROW_FACTOR)
    fields: tl.constexpr = len(DTYPES)
    buffers = ()
    for _ in tl.static_range(fields):
        buffers = buffers + (buffer,)  # noqa: RUF005
    words = task + HEAD + fields
    folded = load(_starts(buffers, words, ALIGNS), first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
    if OPERANDS > 0:
        for operand in tl.static_range(1, OPERANDS):
            starts = _starts(buffers, words + operand * fields, ALIGNS)
            right = load(starts, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
            folded = combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    else:
        for operand in range(1, tl.load(task + 1).to(tl.int32)):
            starts = _starts(buffers, words + operand * fields, ALIGNS)
            right = load(starts, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
            folded = combined(folded, right, COMBINE, CONSTANTS, DTYPES, WIDTHS, ROWS)
    tl.debug_barrier()  # several warps may read one item, of an operand that the result replaces
    store(_starts(targets, task + HEAD, ALIGNS), folded, first, rows, DTYPES, ITEMS, WIDTHS, ROWS)
