"""Builders of a Schedule: from sends and folds of values, or from whole columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.schedule.schedule import NO_PATH, IntTable, Schedule, spans, stable_order


def schedule_of_columns(
    ranks: int,
    chunks: Sequence[tuple[int, int]],
    *,
    inputs: NDArray[np.int64] | None = None,
    outputs: NDArray[np.int64],
    transfers: NDArray[np.integer],
    combines: NDArray[np.integer],
    operands: Sequence[NDArray[np.int64]],
) -> Schedule:
    """Return a Schedule of columns in any round order; the order within a round is kept.

    The columns are those of Schedule, but `operands` has the operand slots of the combines in blocks [combines of the
    block, operands of each]. Without `inputs` every rank has its own value in slot 0.
    """
    everybody = np.arange(ranks)
    sizes = np.array([block.shape for block in operands], dtype=np.int64).reshape(-1, 2)
    return _in_rounds(
        ranks,
        chunks,
        np.stack([everybody, 0 * everybody, everybody], axis=1) if inputs is None else inputs,
        outputs,
        transfers,
        combines,
        np.concatenate([np.zeros(0, np.int64), *(block.ravel() for block in operands)]),
        np.repeat(sizes[:, 1], sizes[:, 0]),
    )


def table_of(*columns: NDArray[np.integer] | int) -> IntTable:
    """Return int32 [n, columns] of columns that are broadcast to one shape."""
    table = np.empty((*np.broadcast_shapes(*map(np.shape, columns)), len(columns)), dtype=np.int32)
    for place, column in enumerate(columns):
        table[..., place] = column
    return table.reshape(-1, len(columns))


def _in_rounds(
    ranks: int,
    chunks: Sequence[tuple[int, int]],
    inputs: NDArray[np.integer],
    outputs: NDArray[np.integer],
    transfers: NDArray[np.integer],
    combines: NDArray[np.integer],
    operands: NDArray[np.integer],
    widths: NDArray[np.int64],
) -> Schedule:
    """The Schedule of columns in any round order; `operands` of combines one after the other, `widths` of each."""
    sorted_already = bool((transfers[1:, 0] >= transfers[:-1, 0]).all())
    moves = transfers if sorted_already else transfers.take(stable_order(transfers[:, 0]), axis=0)
    order = stable_order(combines[:, 0])
    folds = combines.take(order, axis=0)
    starts, where = spans((np.cumsum(widths) - widths)[order], widths[order])
    rounds = max([int(table[-1, 0]) + 1 for table in (moves, folds) if len(table)] + [0])
    return Schedule(
        ranks=ranks,
        rounds=rounds,
        chunks=tuple((int(first), int(rows)) for first, rows in chunks),
        inputs=inputs.astype(np.int32),
        outputs=outputs.astype(np.int32),
        transfers=moves.astype(np.int32, copy=False),
        combines=folds.astype(np.int32, copy=False),
        operands=operands[where].astype(np.int32),
        operand_starts=starts.astype(np.int32),
    )


@dataclass
class ScheduleBuilder:
    """Collects sends and folds of values, and numbers their slots.

    Slot 0 of every rank is its own contribution (in canonical order, slot i is the i-th of its `nodes`). `send` and
    `fold` return the new slot.

    Attributes:
        chunks: (first row, rows) of every chunk.
        contributors: Ranks that have an input; None: all.
        owners: Of an allgather or gather, the rank whose part each chunk lies in.
        nodes: In canonical order, the ranges of virtual shards of each rank's inputs.
        first_slots: Number of input slots of each rank; empty: 1, or as many as its `nodes`.
        moves: Messages so far, the columns of `Transfer` one after the other.
        folds: Round, rank, out slot and chunk of the combines so far.
        operands: Operand slots of all combines.
        widths: Number of operands of each.
        outputs: (rank, slot, chunk) of the results so far.
        next_slot: First free slot of each rank.
    """

    ranks: int
    chunks: tuple[tuple[int, int], ...]
    contributors: Iterable[int] | None = None
    owners: Sequence[int] = ()
    nodes: Sequence[Sequence[tuple[int, int]]] = ()
    first_slots: Sequence[int] = ()
    moves: list[int] = field(default_factory=list)
    folds: list[int] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    outputs: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next_slot = list(self.first_slots) or [len(own) for own in self.nodes] or [1] * self.ranks

    def send(self, round_: int, src: int, slot: int, dst: int, *, chunk: int = 0, path: int = NO_PATH) -> int:
        """Send (src, slot, chunk) to dst in this round; returns the slot at dst."""
        arrived = self.next_slot[dst]
        self.next_slot[dst] = arrived + 1
        self.moves += (round_, src, slot, dst, arrived, chunk, path)
        return arrived

    def fold(self, round_: int, rank: int, operands: Sequence[int], *, chunk: int = 0) -> int:
        """Left-fold the operand slots of `rank` at the end of this round; returns the slot of the result."""
        if len(operands) == 1:
            return operands[0]
        out = self.next_slot[rank]
        self.next_slot[rank] = out + 1
        self.folds += (round_, rank, out, chunk)
        self.operands += operands
        self.widths.append(len(operands))
        return out

    def output(self, rank: int, slot: int, *, chunk: int = 0) -> None:
        """Declare (rank, slot, chunk) a result."""
        self.outputs.append((rank, slot, chunk))

    def output_everywhere(self, held: Sequence[Mapping[int, int]]) -> None:
        """Declare every chunk a result of every rank; `held` has its slot by rank and chunk."""
        for rank in range(self.ranks):
            for chunk in range(len(self.chunks)):
                self.output(rank, held[rank][chunk], chunk=chunk)

    def build(self, results: Iterable[tuple[int, int]] = ()) -> Schedule:
        """Return the finished Schedule, with these (rank, slot) of chunk 0 as further results."""
        for rank, slot in results:
            self.output(rank, slot)
        inputs = [(rank, 0, rank) for rank in (range(self.ranks) if self.contributors is None else self.contributors)]
        if self.nodes:
            places = [(rank, slot) for rank, own in enumerate(self.nodes) for slot in range(len(own))]
            inputs = [(rank, slot, node) for node, (rank, slot) in enumerate(places)]
        made = _in_rounds(
            self.ranks,
            self.chunks,
            _table(inputs, 3),
            _table(sorted(self.outputs, key=lambda out: (out[0], out[2])), 3),
            self.move_table(),
            self.fold_table(),
            np.array(self.operands, dtype=np.int32),
            np.array(self.widths, dtype=np.int64),
        )
        nodes = tuple((low, high) for own in self.nodes for low, high in own)
        return replace(made, owners=tuple(self.owners), nodes=nodes) if self.owners or nodes else made

    @property
    def last_round(self) -> int:
        """The round of the last message that was added."""
        return self.moves[-7]

    def move_table(self) -> IntTable:
        """Return the messages so far, [n, 7]."""
        return np.array(self.moves, dtype=np.int32).reshape(-1, 7)

    def fold_table(self) -> IntTable:
        """Return the combines so far, [n, 4]."""
        return np.array(self.folds, dtype=np.int32).reshape(-1, 4)

    def slots_used(self, rank: int) -> int:
        """Return the number of slots of the rank."""
        return self.next_slot[rank]


def _table(rows: Sequence[Sequence[int]], width: int) -> IntTable:
    return np.array([number for row in rows for number in row], dtype=np.int32).reshape(-1, width)
