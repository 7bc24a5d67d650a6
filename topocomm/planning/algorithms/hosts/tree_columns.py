"""A tree of ranks for each chunk as a schedule: values go up to the owner of the chunk, folded, or down from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule
from topocomm.planning.schedule.schedule_builder import schedule_of_columns


@dataclass(frozen=True, eq=False)
class TreeMessages:
    """The messages of all trees.

    Attributes:
        round: int64 [messages].
        up: bool [messages]: whether it goes from the child to the parent, with the sum of what is below.
        chunk, child, parent: int64 [messages]: the edge that each is for.
    """

    round: Ints
    up: Ints
    chunk: Ints
    child: Ints
    parent: Ints


def tree_schedule(
    name: str, ranks: int, chunks: Sequence[tuple[int, int]], owners: Ints, messages: TreeMessages
) -> Schedule:
    """Return the schedule of an allreduce, allgather or reduce_scatter, by its name; `owners` by chunk.

    Every tree has all ranks, for an allreduce in both directions.
    """
    up, chunk, number = messages.up, messages.chunk, np.arange(len(chunks))
    place = chunk * ranks + messages.parent
    below = np.bincount(place[up], minlength=len(chunks) * ranks)
    """Children of every place, by chunk and rank: values arrive in slots from 1 on, the fold in the next."""
    result = np.where(below > 0, below + 1, 0)
    arrived = 0 * place
    order = np.flatnonzero(up)[np.argsort(place[up], kind="stable")]
    arrived[order] = 1 + np.arange(len(order)) - np.repeat(np.cumsum(below) - below, below)
    arrived[~up] = spread = ranks + 1
    src, dst = np.where(up, messages.child, messages.parent), np.where(up, messages.parent, messages.child)
    held = np.where(up | (src == owners[chunk]), result[chunk * ranks + src], spread)
    last = np.zeros_like(below)
    np.maximum.at(last, place[up], messages.round[up])
    folds = np.argsort(below, kind="stable")[np.count_nonzero(below == 0) :]
    widths, times = np.unique(below[folds], return_counts=True)
    rank, of = np.indices((ranks, len(chunks))).reshape(2, -1)
    owned = result[number * ranks + owners]
    outputs = np.stack([rank, np.where(rank == owners[of], owned[of], spread), of], 1)
    if name == "reduce_scatter":
        outputs = np.stack([owners, owned, number], 1)
    made = schedule_of_columns(
        ranks,
        chunks,
        outputs=outputs,
        transfers=np.stack([messages.round, src, held, dst, arrived, chunk, 0 * held + NO_PATH], 1),
        combines=np.stack([last[folds], folds % ranks, result[folds], folds // ranks], 1),
        operands=[np.tile(np.arange(n + 1), (count, 1)) for n, count in zip(widths, times, strict=True)],
    )
    return replace(made, owners=tuple(owners.tolist())) if name == "allgather" else made
