"""Ring: chunks travel from neighbour to neighbour (Patarasuk, Yuan 2009), bandwidth-optimal with equal links.

A chunk is reduced on its way from behind its owner once around, so the fold of most chunks begins in the middle of
the rank order: for commutative operators only. An allreduce sends 2(P-1)/P of the payload per rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.schedule import Schedule, part_chunks, split_rows
from topocomm.planning.schedule_builder import ScheduleBuilder


def ring_allreduce(ranks: int, rows: int) -> Schedule:
    """2(P-1) rounds; chunk c is reduced at rank c, then goes around again. At most one chunk per row."""
    build = ScheduleBuilder(ranks, split_rows(rows, min(ranks, rows) if rows else ranks))
    owners = range(len(build.chunks))
    held: list[dict[int, int]] = [{} for _ in range(ranks)]
    for chunk, slot in enumerate(collect_around(build, owners)):
        held[chunk][chunk] = slot
    spread_around(build, owners, held, first_round=ranks - 1)
    build.output_everywhere(held)
    return build.build()


def ring_reduce_scatter(parts: Sequence[int]) -> Schedule:
    """P-1 rounds; every part is folded on its way around to its owner."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks)
    for chunk, slot in enumerate(collect_around(build, owners)):
        build.output(owners[chunk], slot, chunk=chunk)
    return build.build()


def ring_allgather(parts: Sequence[int]) -> Schedule:
    """P-1 rounds; every part goes around from its owner."""
    chunks, owners = part_chunks(parts)
    build = ScheduleBuilder(len(parts), chunks, owners=owners)
    held = build.own_parts()
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
