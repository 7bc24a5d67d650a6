"""A Schedule: who sends which slot of which chunk to whom in which round, and what is combined, as integer columns.

Semantics (the plan format `topocomm.plan/1`): a value lives in (rank, slot, chunk) and is written once per call.
In a round all transfers read before any of them writes; then the round's combines run in the order listed. A
combine is the left fold ((a.b).c) of its operand slots. Transfers with the same round, source, destination and
path are one message. A Schedule is pure data and knows no machine; `verify` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntTable = NDArray[np.int32]
Rows = NDArray[np.int64]
"""Indices of rows of a table."""

NO_PATH = -1
"""Path index of a transfer that takes the cheapest path."""
_NONE: Rows = np.zeros(0, dtype=np.int64)
_LARGEST = np.iinfo(np.int64).max


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
    """The rounds run once for each of `count` slices of every chunk, each `stagger_rounds` after the one before.

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
        ranks: Number of ranks.
        rounds: Number of rounds.
        chunks: (first row, rows) of every chunk.
        inputs: int32 [n, 3]: rank, slot, contributing rank; that rank's value, for every chunk (`input_pieces`).
            In canonical order the third entry is an index into `nodes`.
        outputs: int32 [n, 3]: rank, slot, chunk.
        transfers: int32 [n, 7]: the columns of `Transfer`, sorted by round.
        combines: int32 [n, 4]: round, rank, out slot, chunk, sorted by round.
        operands: int32 [m]: operand slots of all combines, one after the other.
        operand_starts: int32 [n + 1]: combine i has operands[operand_starts[i]:operand_starts[i + 1]].
        paths: Device ids from source to destination endpoint, for transfers that name a path.
        owners: Of an allgather, whose part each chunk lies in: a rank's input exists for the chunks that it owns,
            and for no other. Empty for the other collectives, where it exists for every chunk. Follows from the
            parts of the collective and the chunks; not in the file.
        nodes: Of a schedule in canonical order, the ranges [low, high) of virtual shards that the inputs hold.
        repeat: Of a pipelined schedule, how often the rounds run and how far apart; None: once.
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

    @cached_property
    def rows(self) -> int:
        """Rows of the payload: the sum over chunks."""
        return sum(rows for _, rows in self.chunks)

    def transfer_list(self) -> list[Transfer]:
        """The transfers as named tuples, in order."""
        return [Transfer(*row) for row in self.transfers.tolist()]

    def transfers_of(self, rank: int) -> list[Transfer]:
        """The transfers that `rank` sends or receives, in order."""
        both_ends = self._transfers_by_rank.get(rank, _NONE)
        return [Transfer(*row) for row in self.transfers[np.unique(both_ends % max(len(self.transfers), 1))].tolist()]

    def combine_list(self) -> list[Combine]:
        """The combines as named tuples, in order."""
        return self._combines(np.arange(len(self.combines)))

    def combines_of(self, rank: int) -> list[Combine]:
        """The combines of `rank`, in order."""
        return self._combines(self._combines_by_rank.get(rank, _NONE))

    def inputs_of(self, rank: int) -> list[list[int]]:
        """The inputs of `rank`, in order."""
        rows: list[list[int]] = self.inputs[self._inputs_by_rank.get(rank, _NONE)].tolist()
        return rows

    def outputs_of(self, rank: int) -> list[list[int]]:
        """The outputs of `rank`, in order."""
        rows: list[list[int]] = self.outputs[self._outputs_by_rank.get(rank, _NONE)].tolist()
        return rows

    @cached_property
    def _transfers_by_rank(self) -> dict[int, Rows]:
        return _rows_by_value(np.concatenate([self.transfers[:, 1], self.transfers[:, 3]]))

    @cached_property
    def _combines_by_rank(self) -> dict[int, Rows]:
        return _rows_by_value(self.combines[:, 1])

    @cached_property
    def _inputs_by_rank(self) -> dict[int, Rows]:
        return _rows_by_value(self.inputs[:, 0])

    @cached_property
    def _outputs_by_rank(self) -> dict[int, Rows]:
        return _rows_by_value(self.outputs[:, 0])

    @cached_property
    def _chunks_by_owner(self) -> dict[int, Rows]:
        return _rows_by_value(np.asarray(self.owners, dtype=np.int32))

    def _combines(self, which: Rows) -> list[Combine]:
        starts, ends = self.operand_starts[which].tolist(), self.operand_starts[which + 1].tolist()
        return [
            Combine(row[0], row[1], row[2], row[3], tuple(self.operands[start:end].tolist()))
            for row, start, end in zip(self.combines[which].tolist(), starts, ends, strict=True)
        ]


def input_pieces(schedule: Schedule, rank: int) -> tuple[tuple[int, int], ...]:
    """(slot, chunk) of every piece that is there before the first round, on `rank`: what the caller's value fills.

    Slot by slot, by chunk in each: every chunk; of an allgather the chunks of the rank's own part. Most ranks have
    one input slot, those of a broadcast but the root none, and in canonical order one per range of `nodes`.
    """
    chunks: Sequence[int] = range(len(schedule.chunks))
    if schedule.owners:
        chunks = schedule._chunks_by_owner.get(rank, _NONE).tolist()
    return tuple((slot, chunk) for _, slot, _ in schedule.inputs_of(rank) for chunk in chunks)


def input_table(schedule: Schedule) -> IntTable:
    """int32 [n, 4]: rank, slot, chunk, row of `inputs`, of every piece that is there before the first round.

    The pieces of all ranks, as `input_pieces` has them of one: row by row of `inputs`, by chunk in each.
    """
    chunks = len(schedule.chunks)
    rows = np.repeat(np.arange(len(schedule.inputs)), chunks)
    chunk = np.tile(np.arange(chunks), len(schedule.inputs))
    if schedule.owners:
        own = [schedule._chunks_by_owner.get(rank, _NONE) for rank in schedule.inputs[:, 0].tolist()]
        rows = np.repeat(np.arange(len(own)), [len(some) for some in own])
        chunk = np.concatenate([_NONE, *own])
    return np.column_stack([schedule.inputs[rows, :2], chunk, rows]).astype(np.int32)


def unrolled(schedule: Schedule) -> Schedule:
    """The same computation without `repeat`: every slice of a chunk is a chunk of its own, its rounds come later.

    Slice i of chunk c is chunk c * count + i, so chunks abut, and its rounds are those of the schedule, each
    i * stagger_rounds later. In a round the entries of earlier slices come first; entries of several slices from one
    source to one destination over one path are one message, as they are anywhere. A schedule without `repeat` is
    returned as it is.

    Args:
        schedule: A verified schedule.
    """
    if schedule.repeat is None:
        return schedule
    count, stagger = schedule.repeat.count, schedule.repeat.stagger_rounds
    first, rows = np.asarray(schedule.chunks, dtype=np.int64).reshape(-1, 2).T[:, :, None]
    steps = np.arange(count + 1)
    edges = first + rows // count * steps + rows % count * steps // count  # as `split_rows`, and never too large
    chunks = np.stack([edges[:, :-1], np.diff(edges)], axis=2).reshape(-1, 2)
    transfers = _sliced(schedule.transfers, schedule.repeat, chunk_column=5)
    combines = _sliced(schedule.combines, schedule.repeat, chunk_column=3)
    order = np.argsort(combines[:, 0], kind="stable")
    operands, starts = _operands_of(schedule, order % max(len(schedule.combines), 1))
    outputs = np.repeat(schedule.outputs, count, axis=0)
    outputs[:, 2] = outputs[:, 2] * count + np.tile(np.arange(count, dtype=np.int32), len(schedule.outputs))
    return replace(
        schedule,
        rounds=schedule.rounds + (count - 1) * stagger,
        chunks=tuple(map(tuple, chunks.tolist())),
        outputs=outputs,
        transfers=transfers[np.argsort(transfers[:, 0], kind="stable")],
        combines=combines[order],
        operands=operands,
        operand_starts=starts,
        owners=tuple(np.repeat(np.asarray(schedule.owners, dtype=np.int64), count).tolist()),
        repeat=None,
    )


def _sliced(table: IntTable, repeat: Repeat, chunk_column: int) -> IntTable:
    """The table once for every slice, slice by slice, with its rounds (column 0) and chunks."""
    slices = np.repeat(np.arange(repeat.count, dtype=np.int32), len(table))
    every = np.tile(table, (repeat.count, 1))
    every[:, 0] += slices * repeat.stagger_rounds
    every[:, chunk_column] = every[:, chunk_column] * repeat.count + slices
    return every


def _operands_of(schedule: Schedule, which: Rows) -> tuple[IntTable, IntTable]:
    """Operands, and where they start, of these combines in this order."""
    sizes = np.diff(schedule.operand_starts)[which]
    starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    shift = np.repeat(schedule.operand_starts[which] - starts[:-1], sizes)
    return schedule.operands[shift + np.arange(starts[-1])], starts.astype(np.int32)


def row_keys(*columns: NDArray[np.integer]) -> NDArray[np.int64]:
    """One integer for every row of these columns: two are equal where the rows are, and less where a row is less."""
    keys, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if not len(column):
            break
        low = int(column.min())
        span = int(column.max()) - low + 1
        if size * span > _LARGEST:
            found, keys = np.unique(keys, return_inverse=True)
            size = len(found)
        keys *= span
        keys += column
        keys -= low
        size *= span
    return keys


def split_rows(rows: int, parts: int) -> tuple[tuple[int, int], ...]:
    """(first row, rows) of `parts` chunks that differ by at most one row."""
    edges = [rows * i // parts for i in range(parts + 1)]
    return tuple((low, high - low) for low, high in pairwise(edges))


def part_chunks(parts: Sequence[int]) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """((first row, rows) of one chunk for every part that has rows, whose part each is); of no rows, all parts."""
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
    """A Schedule from rows in any round order; the order within a round is kept."""
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


def schedule_of_columns(
    ranks: int,
    chunks: Sequence[tuple[int, int]],
    *,
    inputs: NDArray[np.int64],
    outputs: NDArray[np.int64],
    transfers: NDArray[np.int64],
    combines: NDArray[np.int64],
    operands: Sequence[NDArray[np.int64]],
) -> Schedule:
    """A Schedule from columns in any round order; the order within a round is kept.

    Args:
        ranks: Number of ranks.
        chunks: (first row, rows) of every chunk.
        inputs: [n, 3] as in Schedule.
        outputs: [n, 3] as in Schedule.
        transfers: [n, 7] as in Schedule.
        combines: [n, 4] as in Schedule.
        operands: Operand slots of the combines, in blocks [combines of the block, operands of each].
    """
    moves = transfers[np.argsort(transfers[:, 0], kind="stable")]
    order = np.argsort(combines[:, 0], kind="stable")
    folds = combines[order]
    widths = np.concatenate([np.zeros(0, np.int64), *(np.full(len(block), block.shape[1]) for block in operands)])
    flat = np.concatenate([np.zeros(0, np.int64), *(block.ravel() for block in operands)])
    starts = np.concatenate([[0], np.cumsum(widths)])
    ends = np.concatenate([[0], np.cumsum(widths[order])])
    where = np.repeat(starts[order] - ends[:-1], widths[order]) + np.arange(len(flat))
    rounds = max([int(table[-1, 0]) + 1 for table in (moves, folds) if len(table)] + [0])
    return Schedule(
        ranks=ranks,
        rounds=rounds,
        chunks=tuple((int(first), int(rows)) for first, rows in chunks),
        inputs=inputs.astype(np.int32),
        outputs=outputs.astype(np.int32),
        transfers=moves.astype(np.int32),
        combines=folds.astype(np.int32),
        operands=flat[where].astype(np.int32),
        operand_starts=ends.astype(np.int32),
    )


def relabelled(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """The same schedule with `order[i]` in place of rank i; of a collective in which all ranks are alike."""
    names = np.asarray(order, dtype=np.int32)

    def renamed(table: IntTable, *columns: int) -> IntTable:
        table = table.copy()
        for column in columns:
            table[:, column] = names[table[:, column]]
        return table

    inputs, outputs = renamed(schedule.inputs, 0, 2), renamed(schedule.outputs, 0)
    return replace(
        schedule,
        inputs=inputs[np.argsort(inputs[:, 0], kind="stable")],
        outputs=outputs[np.argsort(outputs[:, 0], kind="stable")],
        transfers=renamed(schedule.transfers, 1, 3),
        combines=renamed(schedule.combines, 1),
    )


def busiest_port(schedule: Schedule, endpoints: Sequence[str] = ()) -> int:
    """The most messages that an endpoint sends, or receives, in one round; of a pipelined schedule, over all slices.

    Args:
        schedule: The schedule.
        endpoints: Endpoint id of each rank; empty: every rank has its own.
    """
    if not len(schedule.transfers):
        return 0
    numbers: dict[str, int] = {}
    ends = np.asarray([numbers.setdefault(end, len(numbers)) for end in endpoints or map(str, range(schedule.ranks))])
    messages = schedule.transfers[:, [0, 1, 3, 6]].astype(np.int64)
    messages = messages[np.unique(row_keys(*messages.T), return_index=True)[1]]
    repeat = schedule.repeat
    if repeat is not None and repeat.stagger_rounds:  # so many slices are under way at once, at most
        slices = min(repeat.count, -(-schedule.rounds // repeat.stagger_rounds))
        later = np.repeat(np.arange(slices) * repeat.stagger_rounds, len(messages))
        messages = np.tile(messages, (slices, 1))
        messages[:, 0] += later
        messages = messages[np.unique(row_keys(*messages.T), return_index=True)[1]]
    ports = [row_keys(messages[:, 0], ends[messages[:, side]]) for side in (1, 2)]
    return max(int(np.unique(port, return_counts=True)[1].max()) for port in ports)


def count_messages(schedule: Schedule) -> tuple[int, int]:
    """(rounds that have a transfer, messages); of a pipelined schedule as of the one it unrolls to."""
    table, repeat = schedule.transfers, schedule.repeat or Repeat(1, 0)
    return (
        _count_shifted(np.zeros(len(table), dtype=np.int64), table[:, 0], repeat),
        _count_shifted(row_keys(table[:, 1], table[:, 3], table[:, 6]), table[:, 0], repeat),
    )


def _count_shifted(keys: Rows, rounds: IntTable, repeat: Repeat) -> int:
    """How many different (key, round) there are when each comes again `count` times, `stagger_rounds` apart."""
    stagger = repeat.stagger_rounds or max(int(rounds.max(initial=0)), 1) + 1
    count = repeat.count if repeat.stagger_rounds else 1
    trains = row_keys(keys, rounds % stagger)  # what can meet when it is shifted
    first = np.unique(row_keys(trains, rounds // stagger), return_index=True)[1]
    gaps, together = np.diff(rounds[first] // stagger), np.diff(trains[first]) == 0
    return count * len(first) - int(np.maximum(count - gaps[together], 0).sum())


def rows_sent(schedule: Schedule) -> int:
    """Rows of the payload that all messages carry together; slices of a pipelined schedule share the rows out."""
    times = np.bincount(schedule.transfers[:, 5], minlength=len(schedule.chunks)).tolist()
    return sum(count * rows for count, (_, rows) in zip(times, schedule.chunks, strict=True))


def split_rounds(schedule: Schedule, endpoints: Sequence[str], ports: int) -> Schedule:
    """The same schedule with rounds cut in as many as it takes to give no endpoint over `ports` messages in one.

    Needed where several ranks share an endpoint. A slot is read only in rounds after it was written, so cutting a
    round changes no value. Slices of a pipelined schedule that meet at a port are cut apart one by one.
    """
    if busiest_port(schedule, endpoints) <= ports:
        return schedule
    schedule = unrolled(schedule)
    transfers, combines = [], []
    moves: list[list[Transfer]] = [[] for _ in range(schedule.rounds)]
    folds: list[list[Combine]] = [[] for _ in range(schedule.rounds)]
    for move in schedule.transfer_list():
        moves[move.round].append(move)
    for fold in schedule.combine_list():
        folds[fold.round].append(fold)
    after = 0
    for round_ in range(schedule.rounds):
        used: dict[tuple[str, str, int], set[tuple[int, int, int]]] = {}
        last = after
        for move in moves[round_]:
            message = (move.src, move.dst, move.path)
            at = after
            while not _fits(used, endpoints, ports, message, at):
                at += 1
            used.setdefault(("send", endpoints[move.src], at), set()).add(message)
            used.setdefault(("receive", endpoints[move.dst], at), set()).add(message)
            transfers.append(move._replace(round=at))
            last = max(last, at)
        combines += [fold._replace(round=last) for fold in folds[round_]]
        after = last + 1
    return make_schedule(
        schedule.ranks,
        schedule.chunks,
        inputs=schedule.inputs.tolist(),
        outputs=schedule.outputs.tolist(),
        transfers=transfers,
        combines=combines,
        paths=schedule.paths,
        owners=schedule.owners,
        nodes=schedule.nodes,
    )


def _fits(
    used: dict[tuple[str, str, int], set[tuple[int, int, int]]],
    endpoints: Sequence[str],
    ports: int,
    message: tuple[int, int, int],
    at: int,
) -> bool:
    sides = (
        used.get(("send", endpoints[message[0]], at), set()),
        used.get(("receive", endpoints[message[1]], at), set()),
    )
    return all(message in side or len(side) < ports for side in sides)


@dataclass
class ScheduleBuilder:
    """Writes a Schedule the way an algorithm thinks: values that move and merge, slots numbered by themselves.

    Slot 0 of every rank is its own contribution (in canonical order, slot i is the i-th of its `nodes`). `send` and
    `fold` return the new slot.
    """

    ranks: int
    chunks: tuple[tuple[int, int], ...]
    contributors: Iterable[int] | None = None
    """Ranks that put in a value: all, unless the collective says otherwise (broadcast: the root)."""
    owners: Sequence[int] = ()
    """Of an allgather, whose part each chunk lies in."""
    nodes: Sequence[Sequence[tuple[int, int]]] = ()
    """In canonical order, the ranges of virtual shards that each rank puts in."""
    first_slots: Sequence[int] = ()
    """Slots of each rank that are taken before anything is sent; 1 where it is empty, or what `nodes` says."""
    transfers: list[Transfer] = field(default_factory=list)
    combines: list[Combine] = field(default_factory=list)
    outputs: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next_slot = list(self.first_slots) or [len(own) for own in self.nodes] or [1] * self.ranks

    def send(self, round_: int, src: int, slot: int, dst: int, *, chunk: int = 0) -> int:
        """Send (src, slot, chunk) to dst in this round; returns the slot where it arrives."""
        arrived = self._new_slot(dst)
        self.transfers.append(Transfer(round_, src, slot, dst, arrived, chunk))
        return arrived

    def fold(self, round_: int, rank: int, operands: Sequence[int], *, chunk: int = 0) -> int:
        """Left fold of the operand slots of `rank` at the end of this round; returns the slot of the result."""
        if len(operands) == 1:
            return operands[0]
        out = self._new_slot(rank)
        self.combines.append(Combine(round_, rank, out, chunk, tuple(operands)))
        return out

    def output(self, rank: int, slot: int, *, chunk: int = 0) -> None:
        """Declare (rank, slot, chunk) a result."""
        self.outputs.append((rank, slot, chunk))

    def build(self) -> Schedule:
        """The finished Schedule."""
        contributors = range(self.ranks) if self.contributors is None else self.contributors
        inputs = [(rank, 0, rank) for rank in contributors]
        if self.nodes:
            places = [(rank, slot) for rank, own in enumerate(self.nodes) for slot in range(len(own))]
            inputs = [(rank, slot, node) for node, (rank, slot) in enumerate(places)]
        return make_schedule(
            self.ranks,
            self.chunks,
            inputs=inputs,
            outputs=sorted(self.outputs, key=lambda out: (out[0], out[2])),
            transfers=self.transfers,
            combines=self.combines,
            owners=self.owners,
            nodes=[node for own in self.nodes for node in own],
        )

    def slots_used(self, rank: int) -> int:
        """How many slots of the rank are taken."""
        return self._next_slot[rank]

    def _new_slot(self, rank: int) -> int:
        slot = self._next_slot[rank]
        self._next_slot[rank] = slot + 1
        return slot


def _table(rows: Iterable[Sequence[int]], width: int) -> IntTable:
    listed = [list(row) for row in rows]
    return np.asarray(listed, dtype=np.int32).reshape(len(listed), width)


def _rows_by_value(column: IntTable) -> dict[int, Rows]:
    """Of every value in a column the rows that have it, in order."""
    order = np.argsort(column, kind="stable")
    values, starts = np.unique(column[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True)) if len(column) else {}
