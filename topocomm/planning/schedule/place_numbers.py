"""The places (rank, slot, chunk) of a schedule by number, and the number of every read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topocomm.planning.schedule.schedule import (
    LARGEST,
    SPARSE,
    IntTable,
    Rows,
    Schedule,
    input_table,
    row_keys,
    slice_order,
    spans,
)


@dataclass(frozen=True, eq=False)
class PlaceNumbers:
    """The places of a schedule by number, 0 to count - 1, and the number of every read and write.

    Attributes:
        rank, chunk: int64 [count]: of each place that something writes.
        sent: Place that each transfer reads.
        received: Place that each transfer writes.
        folded: Place that each combine writes.
        inputs: Places of the inputs, as `input_table`.
        fold_of: int64: the combine of each operand.
    """

    count: int
    rank: Rows
    chunk: Rows
    sent: Rows
    received: Rows
    folded: Rows
    operands: Rows
    inputs: Rows
    outputs: Rows
    fold_of: Rows


def number_places(schedule: Schedule) -> PlaceNumbers:
    """Return the numbers of all places that a schedule reads or writes.

    A place has the number of its write, of several the last; all that nothing writes have one number, the last.
    """
    given = input_table(schedule)
    fold_of = np.repeat(np.arange(len(schedule.combines)), np.diff(schedule.operand_starts))
    return _number_compiled(schedule, given, fold_of) or _number_plainly(schedule, given, fold_of)


def number_slices(schedule: Schedule) -> PlaceNumbers:
    """Return the numbers of the places of a verified pipeline unrolled: each of its rounds, once for every slice.

    The entries are in the order of `unrolled`. Slices share no place, so their rounds are numbered once.
    """
    repeat, once = schedule.repeat, number_places(schedule)
    if repeat is None:
        return once
    count, every = repeat.count, np.arange(repeat.count)
    moves, move_slice = slice_order(schedule.transfers, repeat)
    folds, fold_slice = slice_order(schedule.combines, repeat)
    starts, read = spans(schedule.operand_starts[folds].astype(np.int64), np.diff(schedule.operand_starts)[folds])
    fold_of = np.repeat(np.arange(len(folds)), np.diff(starts))
    given, results = ((numbers[:, None] * count + every).ravel() for numbers in (once.inputs, once.outputs))
    return PlaceNumbers(
        once.count * count,
        np.repeat(once.rank, count),
        (once.chunk[:, None] * count + every).ravel(),
        once.sent[moves] * count + move_slice,
        once.received[moves] * count + move_slice,
        once.folded[folds] * count + fold_slice,
        once.operands[read] * count + fold_slice[fold_of],
        given,
        results,
        fold_of,
    )


def _number_compiled(schedule: Schedule, given: IntTable, fold_of: Rows) -> PlaceNumbers | None:
    """As `number_places`; None where nothing is compiled here, or slots have very large numbers."""
    try:
        from topocomm.native._native import number_places as number_native
    except ImportError:
        return None
    read = schedule.transfers, schedule.combines, schedule.operands
    moves, folds, used = map(len, read)
    written = len(given) + moves + folds
    counts = written, written, moves, moves, folds, used, len(given), len(schedule.outputs)
    numbers = [np.empty(count, dtype=np.int64) for count in counts]
    tables = [np.ascontiguousarray(table, dtype=np.int32) for table in (*read, given, schedule.outputs)]
    lacking = number_native(*tables[:3], fold_of, *tables[3:], *numbers)
    if lacking < 0:
        return None
    rank, chunk, sent, received, folded, operands, inputs, outputs = numbers
    if lacking:
        rank, chunk = np.append(rank, 0), np.append(chunk, 0)
    return PlaceNumbers(len(rank), rank, chunk, sent, received, folded, operands, inputs, outputs, fold_of)


def _number_plainly(schedule: Schedule, given: IntTable, fold_of: Rows) -> PlaceNumbers:
    """As `number_places`, without the compiled part."""
    moves, folds = schedule.transfers, schedule.combines
    parts = [
        (moves[:, 1], moves[:, 2], moves[:, 5]),
        (moves[:, 3], moves[:, 4], moves[:, 5]),
        (folds[:, 1], folds[:, 2], folds[:, 3]),
        (folds[fold_of, 1], schedule.operands, folds[fold_of, 3]),
        tuple(given[:, :3].T),
        tuple(schedule.outputs.T),
    ]
    keys, size = _keys_of(parts)
    if size >= SPARSE * sum(map(len, keys)):
        known, dense = np.unique(np.concatenate(keys), return_inverse=True)
        keys, size = np.split(dense, np.cumsum([len(own) for own in keys])[:-1]), len(known)
    writes = [4, 1, 2]
    written = np.concatenate([keys[part] for part in writes])
    numbers = np.full(size, len(written), dtype=np.int32)
    numbers[written] = np.arange(len(written))
    numbered = [numbers[own].astype(np.int64) for own in keys]
    rank, chunk = (np.concatenate([parts[part][column] for part in writes]).astype(np.int64) for column in (0, 2))
    if any((numbered[part] == len(written)).any() for part in (0, 3, 5)):
        rank, chunk = np.append(rank, 0), np.append(chunk, 0)
    sent, received, folded, operands, inputs, outputs = numbered
    return PlaceNumbers(len(rank), rank, chunk, sent, received, folded, operands, inputs, outputs, fold_of)


def _keys_of(parts: Sequence[Sequence[IntTable]]) -> tuple[list[Rows], int]:
    """`row_keys` of the rows of several tables with three columns, and more than the greatest."""
    lows, widths = [], []
    for column in range(3):
        edges = [(int(part[column].min()), int(part[column].max())) for part in parts if len(part[column])]
        lows.append(min((low for low, _ in edges), default=0))
        widths.append(max((high for _, high in edges), default=0) - lows[-1] + 1)
    size = widths[0] * widths[1] * widths[2]
    if size > LARGEST:
        every = row_keys(*(np.concatenate([part[column] for part in parts]) for column in range(3)))
        return np.split(every, np.cumsum([len(part[0]) for part in parts])[:-1]), size
    keyed = []
    for rank, *others in parts:
        keys = rank.astype(np.int64)
        for other, low, width in zip(others, lows[1:], widths[1:], strict=True):
            keys *= width
            keys += other
            keys -= low
        keyed.append(keys - lows[0] * widths[1] * widths[2] if lows[0] else keys)
    return keyed, size
