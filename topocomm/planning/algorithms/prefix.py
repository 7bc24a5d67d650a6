"""Prefix reductions: the result of rank r folds the values of ranks 0..r (scan) or 0..r-1 (exscan), in rank order.

`doubling` (Hillis, Steele 1986; Kogge, Stone 1973): in the round of distance d every rank passes the fold of the d
values that end at it to the rank d further on, with K ports to K ranks d, 2d, ... Kd further on: ceil(log_{K+1} P)
rounds, of an exscan too, where a rank adds its own value to what it passes on.
`1-2-3 doubling` (Träff 2025, arXiv 2507.04785) for exscan: distances 1, 2, 3, 6, 12, ...: each rank holds the fold
of the values before its own; only in the second round it adds its own to what it sends:
ceil(log2(P-1) + log2(4/3)) rounds, with fewer folds than `doubling`.
`chain`: every rank waits for its predecessor: P-1 rounds, the fewest messages (P-1).
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.algorithms.multiport import powers_below
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def doubling_scan(ranks: int, rows: int, ports: int = 1) -> Schedule:
    """ceil(log_{K+1} P) rounds."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    slots = [0] * ranks
    for round_, width in enumerate(powers_below(ranks, ports + 1)):
        arrived: list[list[int]] = [[] for _ in range(ranks)]
        for step in range(ports, 0, -1):  # from far to near, as they are folded
            for rank in range(step * width, ranks):
                src = rank - step * width
                arrived[rank].append(build.send(round_, src, slots[src], rank))
        for rank, heard in enumerate(arrived):
            slots[rank] = build.fold(round_, rank, [*heard, slots[rank]])
    return build.build(enumerate(slots))


def doubling_exscan(ranks: int, rows: int, ports: int = 1) -> Schedule:
    """ceil(log_{K+1} P) rounds: every rank passes on its own value with those before it."""
    build = ScheduleBuilder(ranks, ((0, rows),))
    before: dict[int, int] = {}
    # before[r] is the fold of the last `width` - 1 values before rank r's, or of all there are
    for round_, width in enumerate(powers_below(ranks, ports + 1)):
        arrived: dict[int, list[int]] = {}
        sent: dict[int, int] = {}
        for step in range(ports, 0, -1):
            for rank in range(step * width, ranks):
                src = rank - step * width
                if src not in sent:
                    sent[src] = build.fold(max(round_ - 1, 0), src, [before[src], 0]) if src in before else 0
                arrived.setdefault(rank, []).append(build.send(round_, src, sent[src], rank))
        for rank, heard in arrived.items():
            before[rank] = build.fold(round_, rank, [*heard, *([before[rank]] if rank in before else [])])
    return build.build(sorted(before.items()))


def one_two_three_exscan(ranks: int, rows: int) -> Schedule:
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
    return build.build(before.items())


def chain_scan(ranks: int, rows: int, *, own: bool, sends: Sequence[int] | None = None) -> Schedule:
    """P-1 rounds, one message each; `own`: a scan, else an exscan.

    `sends` has the round in which each rank but the last sends, in rising order; None: one after the other.
    """
    build = ScheduleBuilder(ranks, ((0, rows),))
    slot, rounds = 0, range(ranks - 1) if sends is None else sends
    if own:
        build.output(0, slot)
    for rank, round_ in enumerate(rounds, 1):
        arrived = build.send(round_, rank - 1, slot, rank)
        if own or rank < ranks - 1:
            slot = build.fold(round_, rank, [arrived, 0])
        build.output(rank, slot if own else arrived)
    return build.build()
