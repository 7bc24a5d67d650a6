"""Ring: chunks travel from neighbour to neighbour (Patarasuk, Yuan 2009), bandwidth-optimal with equal links.

A chunk is reduced on its way from behind its owner once around, so the fold of most chunks begins in the middle of
the rank order: for commutative operators only. An allreduce sends 2(P-1)/P of the payload per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.schedule.schedule import NO_PATH, Schedule, part_chunks, split_rows
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder, schedule_of_columns


def ring_allreduce(ranks: int, rows: int) -> Schedule:
    """2(P-1) rounds; chunk c is reduced at rank c, then goes around again. At most one chunk per row.

    Written as columns, [chunks, ranks] or [chunks, steps]: it has 2 P^2 messages.
    """
    chunks = split_rows(rows, min(ranks, rows) if rows else ranks)
    chunk, rank, step = np.arange(len(chunks))[:, None], np.arange(ranks), np.arange(ranks - 1)
    folds, away = rank != (chunk + 1) % ranks, rank != chunk  # who folds it, and who gets the result
    arrived = 1 + 2 * (np.cumsum(folds, axis=0) - folds)
    last = 1 + 2 * folds.sum(axis=0) + np.cumsum(away, axis=0) - away
    sources, results = np.where(folds, arrived + 1, 0), np.where(away, last, arrived + 1 if ranks > 1 else 0)
    up, down = (chunk + 1 + step) % ranks, (chunk + step) % ranks
    after, below = (up + 1) % ranks, (down + 1) % ranks
    moves = [
        np.stack(np.broadcast_arrays(round_, src, held[chunk, src], dst, place[chunk, dst], chunk, NO_PATH), axis=2)
        for round_, src, held, dst, place in (
            (step, up, sources, after, arrived),
            (ranks - 1 + step, down, results, below, last),
        )
    ]
    combines = np.stack(np.broadcast_arrays(step, after, sources[chunk, after], chunk), axis=2)
    operands = np.stack([arrived[chunk, after], 0 * after], axis=2)
    outputs = np.stack(np.broadcast_arrays(rank, results, chunk), axis=2).transpose(1, 0, 2)
    return schedule_of_columns(
        ranks,
        chunks,
        outputs=outputs.reshape(-1, 3),
        transfers=np.concatenate(moves).reshape(-1, 7),
        combines=combines.reshape(-1, 4),
        operands=[operands.reshape(-1, 2)],
    )


def ring_allgather(parts: Sequence[int]) -> Schedule:
    """P-1 rounds; every part goes around from its owner."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    held = [{chunk: 0 for chunk, owner in enumerate(owners) if owner == rank} for rank in range(len(parts))]
    spread_around(build, owners, held, first_round=0)
    build.output_everywhere(held)
    return build.build()


def collect_around(build: ScheduleBuilder, owners: Sequence[int]) -> list[int]:
    """Fold every chunk on its way from the rank behind its owner to its owner; returns the owners' slots by chunk."""
    slots = []
    for chunk, owner in enumerate(owners):
        rank, slot = (owner + 1) % build.ranks, 0
        for step in range(build.ranks - 1):
            rank = (rank + 1) % build.ranks
            arrived = build.send(step, (rank - 1) % build.ranks, slot, rank, chunk=chunk)
            slot = build.fold(step, rank, [arrived, 0], chunk=chunk)
        slots.append(slot)
    return slots


def spread_around(
    build: ScheduleBuilder, owners: Sequence[int], held: list[dict[int, int]], *, first_round: int
) -> None:
    """Send every chunk around from its owner, past the ranks that hold it; adds the slots to `held`."""
    for chunk, owner in enumerate(owners):
        for step in range(build.ranks - 1):
            rank, following = (owner + step) % build.ranks, (owner + step + 1) % build.ranks
            if chunk not in held[following]:
                slot = held[rank][chunk]
                held[following][chunk] = build.send(first_round + step, rank, slot, following, chunk=chunk)
