"""A Schedule: transfers of (slot, chunk) between ranks by round, and combines, as integer columns.

Semantics (the plan format `topocomm.plan/1`): a value lives in (rank, slot, chunk) and is written once per call. In a
round all transfers read before any of them writes; then the round's combines run in the order listed. A combine is the
left fold ((a.b).c) of its operand slots. Transfers with the same round, source, destination and path are one message.
A Schedule is pure data and knows no machine; `verify` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntTable = NDArray[np.int32]
Rows = NDArray[np.int64]
"""Indices of rows of a table."""
Piece = tuple[int, int]
"""(slot, chunk) of one rank."""
Place = tuple[int, int, int]
"""(rank, slot, chunk)."""

NO_PATH = -1
"""Path index of a transfer that takes the cheapest path."""
_NONE: Rows = np.zeros(0, dtype=np.int64)
LARGEST = np.iinfo(np.int64).max
"""Largest key of a row."""
SPARSE = 8
"""Ratio of the largest key to the number of rows above which keys are renumbered by sorting them."""


class Transfer(NamedTuple):
    """One chunk of one slot moving between two ranks."""

    round: int
    src: int
    src_slot: int
    dst: int
    dst_slot: int
    chunk: int
    path: int = NO_PATH


@dataclass(frozen=True)
class Repeat:
    """A pipeline: the rounds run for each of `count` slices of every chunk, each `stagger_rounds` after the last.

    Slice i of a chunk of n rows is the i-th of `split_rows(n, count)`; slices share slots by number and no value.
    `count` is at most the rows of the shortest chunk that has any; with a stagger of 0 all slices run at once.
    """

    count: int
    stagger_rounds: int


class Combine(NamedTuple):
    """A left fold of slots of one rank into a new slot."""

    round: int
    rank: int
    out_slot: int
    chunk: int
    operands: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Integer columns of one collective over `ranks` ranks.

    Attributes:
        chunks: (first row, rows) of every chunk.
        inputs: int32 [n, 3]: rank, slot, contributing rank; that rank's value, for every chunk (`input_pieces`).
            In canonical order the third entry is an index into `nodes`.
        outputs: int32 [n, 3]: rank, slot, chunk.
        transfers: int32 [n, 7]: the columns of `Transfer`, sorted by round.
        combines: int32 [n, 4]: round, rank, out slot, chunk, sorted by round.
        operands: int32 [m]: operand slots of all combines, one after the other.
        operand_starts: int32 [n + 1]: combine i has operands[operand_starts[i]:operand_starts[i + 1]].
        paths: Device ids from source to destination endpoint, for transfers that name a path.
        owners: Where each rank gives a part (`Collective.input_owners`), the rank whose part each chunk lies in: it has
            input for the chunks that it owns only. Empty for other collectives, where ranks have input for every chunk.
            Follows from the parts of the collective and the chunks; not in the file.
        nodes: Of a schedule in canonical order, the ranges [low, high) of virtual shards that the inputs hold.
        repeat: The pipeline; None: the rounds run once.
    """

    ranks: int
    rounds: int
    chunks: tuple[tuple[int, int], ...]
    inputs: IntTable
    outputs: IntTable
    transfers: IntTable
    combines: IntTable
    operands: IntTable
    operand_starts: IntTable
    paths: tuple[tuple[str, ...], ...] = ()
    owners: tuple[int, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()
    repeat: Repeat | None = None

    def __repr__(self) -> str:
        counts = f"{self.rounds} rounds, {len(self.chunks)} chunks, {len(self.transfers)} transfers"
        slices = "" if self.repeat is None else f", in {self.repeat.count} slices"
        return f"<Schedule of {self.ranks} ranks: {counts}, {len(self.combines)} combines{slices}>"

    @cached_property
    def rows(self) -> int:
        """Rows of the payload: the sum over chunks."""
        return sum(rows for _, rows in self.chunks)

    def transfer_list(self) -> list[Transfer]:
        """Return the transfers as named tuples, in order."""
        return [Transfer(*row) for row in self.transfers.tolist()]

    def transfers_of(self, rank: int) -> list[Transfer]:
        """Return the transfers that `rank` sends or receives, in order."""
        both_ends = self._rows_of("transfers", rank)
        return [Transfer(*row) for row in self.transfers[np.unique(both_ends % max(len(self.transfers), 1))].tolist()]

    def combine_list(self) -> list[Combine]:
        """Return the combines as named tuples, in order."""
        return self._combines(np.arange(len(self.combines)))

    def combines_of(self, rank: int) -> list[Combine]:
        """Return the combines of `rank`, in order."""
        return self._combines(self._rows_of("combines", rank))

    def by_round(self, rank: int | None = None) -> list[tuple[list[Transfer], list[Combine]]]:
        """Return the transfers and combines of every round; those of one rank only where it is given."""
        rounds: list[tuple[list[Transfer], list[Combine]]] = [([], []) for _ in range(self.rounds)]
        for move in self.transfer_list() if rank is None else self.transfers_of(rank):
            rounds[move.round][0].append(move)
        for fold in self.combine_list() if rank is None else self.combines_of(rank):
            rounds[fold.round][1].append(fold)
        return rounds

    def inputs_of(self, rank: int) -> list[list[int]]:
        """Return the inputs of `rank`, in order."""
        return list(self.inputs[self._rows_of("inputs", rank)].tolist())

    def outputs_of(self, rank: int) -> list[list[int]]:
        """Return the outputs of `rank`, in order."""
        return list(self.outputs[self._rows_of("outputs", rank)].tolist())

    @cached_property
    def _by_rank(self) -> dict[str, dict[int, Rows]]:
        return {}

    def _rows_of(self, table: str, rank: int) -> Rows:
        """The rows of a table that have the rank, in order; its index is made when it is first asked for."""
        if table not in self._by_rank:
            columns = {"transfers": [1, 3], "combines": [1], "inputs": [0], "outputs": [0]}[table]
            self._by_rank[table] = _rows_by_value(getattr(self, table)[:, columns].T.ravel())
        return self._by_rank[table].get(rank, _NONE)

    @cached_property
    def _chunks_by_owner(self) -> dict[int, Rows]:
        return _rows_by_value(np.asarray(self.owners, dtype=np.int32))

    def _combines(self, which: Rows) -> list[Combine]:
        starts, ends = self.operand_starts[which].tolist(), self.operand_starts[which + 1].tolist()
        return [
            Combine(row[0], row[1], row[2], row[3], tuple(self.operands[start:end].tolist()))
            for row, start, end in zip(self.combines[which].tolist(), starts, ends, strict=True)
        ]


def input_pieces(schedule: Schedule, rank: int) -> tuple[Piece, ...]:
    """Return the pieces of `rank` that its own value fills before the first round, by slot and chunk.

    These are all chunks, of an allgather or gather those of the rank's part. Most ranks have one input slot, those of
    a broadcast or scatter but the root none, and in canonical order one per range of `nodes`.
    """
    chunks: Sequence[int] = range(len(schedule.chunks))
    if schedule.owners:
        chunks = schedule._chunks_by_owner.get(rank, _NONE).tolist()
    return tuple((slot, chunk) for _, slot, _ in schedule.inputs_of(rank) for chunk in chunks)


def input_table(schedule: Schedule) -> IntTable:
    """Return int32 [n, 4]: rank, slot, chunk, row of `inputs`, of the `input_pieces` of all ranks, by row and chunk."""
    chunks, given = len(schedule.chunks), len(schedule.inputs)
    if schedule.owners:
        own = [schedule._chunks_by_owner.get(rank, _NONE) for rank in schedule.inputs[:, 0].tolist()]
        rows = np.repeat(np.arange(given), [len(chunks_of) for chunks_of in own])
        return np.column_stack([schedule.inputs[rows, :2], np.concatenate([_NONE, *own]), rows]).astype(np.int32)
    table = np.empty((given, chunks, 4), dtype=np.int32)
    table[:, :, :2] = schedule.inputs[:, None, :2]
    table[:, :, 2] = np.arange(chunks)
    table[:, :, 3] = np.arange(given)[:, None]
    return table.reshape(-1, 4)


def row_keys(*columns: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return one integer for every row of these columns, equal for equal rows and ordered as the rows are."""
    keys, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if not len(column):
            break
        low = int(column.min())
        span = int(column.max()) - low + 1
        if size * span > LARGEST:
            distinct, keys = np.unique(keys, return_inverse=True)
            size = len(distinct)
        keys *= span
        keys += column
        keys -= low
        size *= span
    return keys


def stable_order(keys: NDArray[np.integer]) -> Rows:
    """Return the places of keys, at least 0, in rising order, as `np.argsort(keys, kind="stable")`.

    Keys are sorted with their places in the low bits, which takes a fraction of the time where they are in no order.
    """
    bits = len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):
        return np.argsort(keys, kind="stable")
    placed = keys.astype(np.int64) << bits
    placed |= np.arange(len(keys))
    placed.sort()
    placed &= (1 << bits) - 1
    return placed


def slice_order(table: IntTable, repeat: Repeat) -> tuple[Rows, Rows]:
    """Return (row, slice) of every entry of a table sorted by round, column 0, in all slices of a pipeline, by round.

    In a round the entries of earlier slices come first.
    """
    try:
        from topocomm.native._native import order_slices
    except ImportError:
        return _slice_order_plainly(table, repeat)
    rows, slices = (np.empty(repeat.count * len(table), dtype=np.int64) for _ in range(2))
    later = np.array([repeat.count, repeat.stagger_rounds])
    order_slices(np.ascontiguousarray(table, np.int32), later, np.empty(repeat.count, dtype=np.int64), rows, slices)
    return rows, slices


def _slice_order_plainly(table: IntTable, repeat: Repeat) -> tuple[Rows, Rows]:
    """As `slice_order`, without the compiled part."""
    first = np.flatnonzero(np.diff(table[:, 0], prepend=-1))  # of the rows of each round that has some
    counts = np.diff(first, append=len(table))
    slices = np.arange(repeat.count)[:, None] * repeat.stagger_rounds
    order = stable_order((slices + table[first, 0]).ravel())
    number, round_ = np.divmod(order, max(len(first), 1))
    return spans(first[round_], counts[round_])[1], np.repeat(number, counts[round_])


def number_keys(keys: Rows) -> tuple[Rows, Rows]:
    """Return (the first index of each distinct key, in rising order of keys; the number of every key among them).

    Keys are at least 0. Of keys in a small range it is several times as fast as `np.unique`, which sorts them.
    """
    size = int(keys.max(initial=-1)) + 1
    if size > SPARSE * len(keys):
        order = stable_order(keys)
        new = np.diff(keys[order], prepend=-1) != 0
        numbers = np.empty_like(order)
        numbers[order] = np.cumsum(new) - 1
        return order[new], numbers
    first = np.full(size, -1)
    first[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)  # of several indices of one key the lowest stays
    known = first >= 0
    return first[known], (np.cumsum(known) - 1)[keys]


def spans(first: Rows, counts: Rows) -> tuple[Rows, Rows]:
    """Return (start of each of n ranges when they follow each other, the numbers of all of them).

    Each begins at its number in `first` and has the length in `counts`, both int64 [n].
    """
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return starts, np.arange(starts[-1]) + np.repeat(first - starts[:-1], counts)


def split_rows(rows: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return (first row, rows) of `parts` chunks that differ by at most one row."""
    edges = [rows * i // parts for i in range(parts + 1)]
    return tuple((low, high - low) for low, high in pairwise(edges))


def part_chunks(parts: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Return ((first row, rows) of a chunk for every part that has rows, owner of each); of no rows, all parts."""
    edges = (0, *accumulate(parts))
    owners = tuple(rank for rank, rows in enumerate(parts) if rows or not edges[-1])
    return tuple((edges[rank], parts[rank]) for rank in owners), owners


def make_schedule(  # noqa: PLR0913 - the whole of a schedule, all but two keyword-only
    ranks: int,
    chunks: Sequence[tuple[int, int]],
    *,
    inputs: Iterable[Sequence[int]],
    outputs: Iterable[Sequence[int]],
    transfers: Iterable[Transfer],
    combines: Iterable[Combine],
    paths: Sequence[Sequence[str]] = (),
    owners: Sequence[int] = (),
    nodes: Sequence[tuple[int, int]] = (),
    repeat: Repeat | None = None,
) -> Schedule:
    """Return a Schedule of rows in any round order; the order within a round is kept."""
    moves = sorted(transfers, key=lambda t: t.round)
    folds = sorted(combines, key=lambda c: c.round)
    rounds = max([t.round + 1 for t in moves] + [c.round + 1 for c in folds] + [0])
    starts = np.cumsum([0, *(len(c.operands) for c in folds)])
    return Schedule(
        ranks=ranks,
        rounds=rounds,
        chunks=tuple((int(first), int(rows)) for first, rows in chunks),
        inputs=_table(inputs, 3),
        outputs=_table(outputs, 3),
        transfers=_table(moves, 7),
        combines=_table([c[:4] for c in folds], 4),
        operands=np.asarray([slot for c in folds for slot in c.operands], dtype=np.int32),
        operand_starts=starts.astype(np.int32),
        paths=tuple(tuple(path) for path in paths),
        owners=tuple(owners),
        nodes=tuple((low, high) for low, high in nodes),
        repeat=repeat,
    )


def _table(rows: Iterable[Sequence[int]], width: int) -> IntTable:
    listed = [list(row) for row in rows]
    return np.asarray(listed, dtype=np.int32).reshape(len(listed), width)


def _rows_by_value(column: IntTable) -> dict[int, Rows]:
    """The rows of every value in a column, in order."""
    order = np.argsort(column, kind="stable")
    values, starts = np.unique(column[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True)) if len(column) else {}
