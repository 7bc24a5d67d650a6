"""Builders of a Schedule: from sends and folds of values, or from whole columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.schedule.schedule import Combine, Schedule, Transfer, make_schedule, spans


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
    sorted_already = bool((transfers[1:, 0] >= transfers[:-1, 0]).all())
    moves = transfers if sorted_already else transfers[np.argsort(transfers[:, 0], kind="stable")]
    order = np.argsort(combines[:, 0], kind="stable")
    folds = combines[order]
    sizes = np.array([block.shape for block in operands], dtype=np.int64).reshape(-1, 2)
    widths = np.repeat(sizes[:, 1], sizes[:, 0])
    flat = np.concatenate([np.zeros(0, np.int64), *(block.ravel() for block in operands)])
    starts, where = spans((np.cumsum(widths) - widths)[order], widths[order])
    rounds = max([int(table[-1, 0]) + 1 for table in (moves, folds) if len(table)] + [0])
    return Schedule(
        ranks=ranks,
        rounds=rounds,
        chunks=tuple((int(first), int(rows)) for first, rows in chunks),
        inputs=(np.stack([everybody, 0 * everybody, everybody], axis=1) if inputs is None else inputs).astype(np.int32),
        outputs=outputs.astype(np.int32),
        transfers=moves.astype(np.int32, copy=False),
        combines=folds.astype(np.int32),
        operands=flat[where].astype(np.int32),
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
        outputs: (rank, slot, chunk) of the results so far.
    """

    ranks: int
    chunks: tuple[tuple[int, int], ...]
    contributors: Iterable[int] | None = None
    owners: Sequence[int] = ()
    nodes: Sequence[Sequence[tuple[int, int]]] = ()
    first_slots: Sequence[int] = ()
    transfers: list[Transfer] = field(default_factory=list)
    combines: list[Combine] = field(default_factory=list)
    outputs: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next_slot = list(self.first_slots) or [len(own) for own in self.nodes] or [1] * self.ranks

    def send(self, round_: int, src: int, slot: int, dst: int, *, chunk: int = 0) -> int:
        """Send (src, slot, chunk) to dst in this round; returns the slot at dst."""
        arrived = self._new_slot(dst)
        self.transfers.append(Transfer(round_, src, slot, dst, arrived, chunk))
        return arrived

    def fold(self, round_: int, rank: int, operands: Sequence[int], *, chunk: int = 0) -> int:
        """Left-fold the operand slots of `rank` at the end of this round; returns the slot of the result."""
        if len(operands) == 1:
            return operands[0]
        out = self._new_slot(rank)
        self.combines.append(Combine(round_, rank, out, chunk, tuple(operands)))
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
        """Return the number of slots of the rank."""
        return self._next_slot[rank]

    def _new_slot(self, rank: int) -> int:
        slot = self._next_slot[rank]
        self._next_slot[rank] = slot + 1
        return slot
