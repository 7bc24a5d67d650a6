"""Ring: reduce-scatter then all-gather around a ring (Patarasuk, Yuan 2009), bandwidth-optimal with equal links.

Each rank sends 2(P-1)/P of the payload. Chunk c starts behind its owner and travels once around, so the fold of
most chunks begins in the middle of the rank order: for commutative operators only.
"""

from __future__ import annotations

from topocomm.planning.schedule import Schedule, ScheduleBuilder, split_rows


def ring_allreduce(ranks: int, rows: int) -> Schedule:
    """2(P-1) rounds; chunk c is reduced at rank c, then goes around again. At most one chunk per row."""
    build = ScheduleBuilder(ranks, split_rows(rows, max(1, min(ranks, rows) if rows else ranks)))
    for chunk in range(len(build.chunks)):
        rank, slot = (chunk + 1) % ranks, 0
        for step in range(ranks - 1):
            following = (rank + 1) % ranks
            arrived = build.send(step, rank, slot, following, chunk=chunk)
            slot = build.fold(step, following, [arrived, 0], chunk=chunk)
            rank = following
        build.output(rank, slot, chunk=chunk)
        for step in range(ranks - 1, 2 * (ranks - 1)):
            following = (rank + 1) % ranks
            slot = build.send(step, rank, slot, following, chunk=chunk)
            rank = following
            build.output(rank, slot, chunk=chunk)
    return build.build()
