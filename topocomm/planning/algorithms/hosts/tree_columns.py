"""One tree of ranks for each chunk as a schedule: values go up to its root, folded there, or down from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import schedule_of_columns


class TreeEdges(NamedTuple):
    """Edges of all trees, int64 [edges] each: `parent` is nearer to the root; rounds are those of the messages."""

    round: Ints
    child: Ints
    parent: Ints
    chunk: Ints

    def of(self, which: NDArray[np.bool_] | Ints) -> TreeEdges:
        """Return some of the edges, by flags, or in an order."""
        return TreeEdges(*(column[which] for column in self))


@dataclass(frozen=True, eq=False)
class TreeMessages:
    """The messages of all trees.

    Attributes:
        up: bool [messages]: whether it goes from the child to the parent, with the sum of what is below.
        edges: The edge that each is for.
    """

    up: NDArray[np.bool_]
    edges: TreeEdges


class _Folds(NamedTuple):
    """What arrives at the places (chunk ranks + rank) from below, in slots from 1 on, and its fold in the next.

    Attributes:
        result: int64 [chunks ranks]: the slot of the fold, 0 where nothing is below.
        arrived: int64 [edges]: the slot of what each brings.
        combines, operands: As `schedule_of_columns` takes them.
    """

    result: Ints
    arrived: Ints
    combines: Ints
    operands: list[Ints]


def _folds(edges: TreeEdges, ranks: int, chunks: int) -> _Folds:
    into = edges.chunk * ranks + edges.parent
    below = np.bincount(into, minlength=chunks * ranks)
    result = np.where(below > 0, below + 1, 0)
    order = np.argsort(into, kind="stable")
    arrived = np.empty_like(order)
    arrived[order] = 1 + np.arange(len(order)) - np.repeat(np.cumsum(below) - below, below)
    last = np.zeros_like(below)
    np.maximum.at(last, into, edges.round)
    folds = np.argsort(below, kind="stable")[np.count_nonzero(below == 0) :]
    widths, times = np.unique(below[folds], return_counts=True)
    combines = np.stack([last[folds], folds % ranks, result[folds], folds // ranks], 1)
    operands = [np.tile(np.arange(n + 1), (count, 1)) for n, count in zip(widths, times, strict=True)]
    return _Folds(result, arrived, combines, operands)


def tree_schedule(
    name: str, ranks: int, chunks: Sequence[tuple[int, int]], owners: Ints, messages: TreeMessages
) -> Schedule:
    """Return the schedule of an allreduce, allgather or reduce_scatter, by its name; `owners` by chunk.

    Every tree has all ranks, for an allreduce in both directions.
    """
    up, (round_, child, parent, chunk) = messages.up, messages.edges
    folds, number = _folds(messages.edges.of(up), ranks, len(chunks)), np.arange(len(chunks))
    spread = ranks + 1
    arrived = np.full(len(up), spread)
    arrived[up] = folds.arrived
    src, dst = np.where(up, child, parent), np.where(up, parent, child)
    held = np.where(up | (src == owners[chunk]), folds.result[chunk * ranks + src], spread)
    rank, of = np.indices((ranks, len(chunks))).reshape(2, -1)
    owned = folds.result[number * ranks + owners]
    outputs = np.stack([rank, np.where(rank == owners[of], owned[of], spread), of], 1)
    if name == "reduce_scatter":
        outputs = np.stack([owners, owned, number], 1)
    made = schedule_of_columns(
        ranks,
        chunks,
        outputs=outputs,
        transfers=np.stack([round_, src, held, dst, arrived, chunk, 0 * held + NO_PATH], 1),
        combines=folds.combines,
        operands=folds.operands,
    )
    return replace(made, owners=tuple(owners.tolist())) if name == "allgather" else made


def reduce_up(edges: TreeEdges, ranks: int, root: int, chunks: Sequence[tuple[int, int]]) -> Schedule:
    """Return the reduce up the trees, for a commutative operator."""
    round_, child, parent, chunk = edges
    folds, every = _folds(edges, ranks, len(chunks)), np.arange(len(chunks))
    held = folds.result[chunk * ranks + child]
    return schedule_of_columns(
        ranks,
        chunks,
        outputs=np.stack([0 * every + root, folds.result[every * ranks + root], every], 1),
        transfers=np.stack([round_, child, held, parent, folds.arrived, chunk, 0 * chunk + NO_PATH], 1),
        combines=folds.combines,
        operands=folds.operands,
    )


def broadcast_down(edges: TreeEdges, ranks: int, root: int, chunks: Sequence[tuple[int, int]]) -> Schedule:
    """Return the broadcast down the trees."""
    number, rank = np.indices((len(chunks), ranks)).reshape(2, -1)
    held = np.where(edges.parent == root, 0, 1)
    columns = edges.round, edges.parent, held, edges.child, 1, edges.chunk, NO_PATH
    return schedule_of_columns(
        ranks,
        chunks,
        inputs=np.array([[root, 0, root]]),
        outputs=np.stack([rank, np.where(rank == root, 0, 1), number], 1),
        transfers=np.stack(np.broadcast_arrays(*columns), 1),
        combines=np.zeros((0, 4), np.int64),
        operands=[],
    )
