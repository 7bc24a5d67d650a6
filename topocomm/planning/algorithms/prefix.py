"""Prefix reductions: the result of rank r folds the values of ranks 0..r (scan) or 0..r-1 (exscan), in rank order.

`doubling` (Hillis, Steele 1986; Kogge, Stone 1973): in the round of distance d every rank passes the fold of the d
values that end at it to the rank d further on: ceil(log2 P) rounds.
`1-2-3 doubling` (Träff 2025, arXiv 2507.04785) for exscan: distances 1, 2, 3, 6, 12, ...: each rank holds the fold
of the values before its own; only in the second round it adds its own to what it sends:
ceil(log2(P-1) + log2(4/3)) rounds.
`chain`: every rank waits for its predecessor: P-1 rounds, the fewest messages (P-1).
"""

from __future__ import annotations

from topocomm.planning.schedule import Schedule, ScheduleBuilder


def doubling_scan(ranks: int, rows: int) -> Schedule:
    """ceil(log2 P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slots = [0] * ranks
    for round_, distance in enumerate(1 << k for k in range((ranks - 1).bit_length())):
        arrived = [build.send(round_, rank, slots[rank], rank + distance) for rank in range(ranks - distance)]
        for rank, slot in enumerate(arrived, start=distance):
            slots[rank] = build.fold(round_, rank, [slot, slots[rank]])
    for rank in range(ranks):
        build.output(rank, slots[rank])
    return build.build()


def doubling_exscan(ranks: int, rows: int) -> Schedule:
    """ceil(log2(P-1) + log2(4/3)) rounds for P > 2; one for 2."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    before = {rank: build.send(0, rank - 1, 0, rank) for rank in range(1, ranks)}
    width, round_ = 1, 1  # before[r] is the fold of the last `width` values before rank r's, or of all there are
    while width < ranks - 1:
        if width == 1:
            distance, sent = 2, {0: 0}
            sent |= {rank: build.fold(0, rank, [before[rank], 0]) for rank in range(1, ranks - 2)}
        else:
            distance, sent = width, {rank: before[rank] for rank in range(1, ranks - width)}
        for rank, slot in sent.items():
            target = rank + distance
            before[target] = build.fold(round_, target, [build.send(round_, rank, slot, target), before[target]])
        width += distance
        round_ += 1
    for rank, slot in before.items():
        build.output(rank, slot)
    return build.build()


def chain_scan(ranks: int, rows: int) -> Schedule:
    """P-1 rounds, one message each."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot = 0
    for rank in range(ranks):
        if rank:
            slot = build.fold(rank - 1, rank, [build.send(rank - 1, rank - 1, slot, rank), 0])
        build.output(rank, slot)
    return build.build()


def chain_exscan(ranks: int, rows: int) -> Schedule:
    """P-1 rounds, one message each."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot = 0
    for rank in range(1, ranks):
        arrived = build.send(rank - 1, rank - 1, slot, rank)
        build.output(rank, arrived)
        if rank < ranks - 1:
            slot = build.fold(rank - 1, rank, [arrived, 0])
    return build.build()
