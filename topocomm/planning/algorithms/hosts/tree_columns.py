"""The schedule of a reduce up, or a broadcast down, one tree of all ranks for every chunk, from its edges by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import schedule_of_columns


class TreeEdges(NamedTuple):
    """Edges of all trees, int64 [edges] each: `parent` is nearer to the root; rounds are those of the messages."""

    round: Ints
    child: Ints
    parent: Ints
    chunk: Ints


def reduce_up(edges: TreeEdges, ranks: int, root: int, chunks: Sequence[tuple[int, int]]) -> Schedule:
    """Return the reduce up the trees, for a commutative operator."""
    round_, child, parent, chunk = edges
    into = chunk * ranks + parent
    below = np.bincount(into, minlength=len(chunks) * ranks)
    """Children of every place, by chunk and rank: their values arrive in slots from 1 on, the fold in the next."""
    result = np.where(below > 0, below + 1, 0)
    order = np.argsort(into, kind="stable")
    arrived = np.empty_like(order)
    arrived[order] = 1 + np.arange(len(order)) - np.repeat(np.cumsum(below) - below, below)
    last = np.zeros_like(below)
    np.maximum.at(last, into, round_)
    folds = np.argsort(below, kind="stable")[np.count_nonzero(below == 0) :]
    widths, times = np.unique(below[folds], return_counts=True)
    every = np.arange(len(chunks))
    return schedule_of_columns(
        ranks,
        chunks,
        outputs=np.stack([0 * every + root, result[every * ranks + root], every], 1),
        transfers=np.stack(
            [round_, child, result[chunk * ranks + child], parent, arrived, chunk, 0 * chunk + NO_PATH], 1
        ),
        combines=np.stack([last[folds], folds % ranks, result[folds], folds // ranks], 1),
        operands=[np.tile(np.arange(n + 1), (count, 1)) for n, count in zip(widths, times, strict=True)],
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
