"""The bound of a levels witness with plain dictionaries: what `bounds/hierarchy_bound.py` proves, computed apart.

In a state, `most[own]` is the most foreign values that a rank can know beside `own` values of its group.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Most = dict[int, int]
Leaf = tuple[tuple[int, ...], int, int]
"""(messages from outside by window, the last first; ranks that the rest came from; windows since when they had it)."""


def least_levels_us(
    inside_us: float,
    across_us: float,
    *,
    members: int,
    most_own: int,
    ports: int,
    group_ports: int,
    wanted: tuple[int, int],
) -> float:
    """Return the least time until a rank can know `wanted` = (own, foreign) values.

    `members` and `most_own` are ranks, and values that count, of the largest group; `ports` is K, `group_ports` K times
    the endpoints of the group with most of them.
    """
    # (time, what a rank knows, what a port brought, what a group knows)
    history: list[tuple[float, Most, Most, int]] = []
    enough = sum(wanted)

    def at(time_us: float) -> tuple[Most, Most, int] | None:
        for when, known, brought, imported in reversed(history):
            if when <= time_us + 1e-9:
                return known, brought, imported
        return None

    leaves = _leaves(int((across_us + 1e-9) / inside_us), members, ports)
    windows = 1 + max((back for mixed in leaves for _, _, back in mixed), default=0)
    heap, last_us = [0.0], -1.0
    while True:
        now_us = heapq.heappop(heap)
        if now_us <= last_us + 1e-9:
            continue
        last_us = now_us
        brought = dict(history[-1][2]) if history else {0: 0}
        imported = 0
        if near := at(now_us - inside_us):
            _keep(brought, _added(near[1], near[0], most_own))
        if far := at(now_us - across_us):
            _keep(brought, _added(far[1], _for_others(far[0], most_own), most_own))
            imported = min(enough, far[2] + group_ports * max(own + foreign for own, foreign in far[0].items()))
        brought = {own: min(foreign, enough) for own, foreign in brought.items()}
        known = _over_all_ports(brought, ports, most_own, enough)
        arrived = [max(_arrived(leaf, now_us, inside_us, across_us, at) for leaf in mixed) for mixed in leaves]
        cap = min([imported, *arrived])
        known = {own: min(foreign, cap) for own, foreign in known.items()}
        if any(own >= wanted[0] and foreign >= wanted[1] for own, foreign in known.items()):
            return now_us
        if not history or (known, brought, imported) != history[-1][1:]:
            history.append((now_us, known, brought, imported))
            for window in range(windows):
                heapq.heappush(heap, now_us + (window + 1) * inside_us)
                heapq.heappush(heap, now_us + across_us + window * inside_us)


def _over_all_ports(brought: Most, ports: int, most_own: int, enough: int) -> Most:
    """Return what a rank knows by messages at every port that bring this each, until one more adds nothing."""
    known: Most = {1: 0}
    for _ in range(ports):
        grown = {own: min(foreign, enough) for own, foreign in _added(known, brought, most_own).items()}
        if grown == known:
            break
        known = grown
    return known


def _leaves(longest: int, members: int, ports: int) -> list[list[Leaf]]:
    """Return, for 1, 2, ... windows of one short message, how the values of a rank may have come in them.

    Up to four windows, until the ranks are a whole group, and up to 2,000 mixes.
    """
    by_depth: list[list[Leaf]] = []
    for depth in range(1, min(4, longest) + 1):
        leaves: list[Leaf] = []
        open_: list[Leaf] = [((), 1, ports)]
        while open_ and len(leaves) + len(open_) <= 2000:
            counts, ranks, free = open_.pop()
            if len(counts) == depth:
                leaves.append((counts, ranks, depth if free else longest))
                continue
            for count in range(free + 1):
                inside = free - count
                open_.append(((*counts, count), ranks + inside, inside * (ports + 1)))
        if open_:
            break
        by_depth.append(leaves)
        if (ports + 1) ** depth >= members:
            break
    return by_depth


def _arrived(
    leaf: Leaf, now_us: float, inside_us: float, across_us: float, at: Callable[[float], tuple[Most, Most, int] | None]
) -> int:
    """Return the most foreign values that a rank can have received in this mix."""
    counts, ranks, back = leaf
    total = 0
    for window, count in enumerate(counts):
        if count and (sender := at(now_us - window * inside_us - across_us)):
            total += count * max(own + foreign for own, foreign in sender[0].items())
    if before := at(now_us - back * inside_us):
        total += min(before[2], ranks * max(before[0].values()))
    return total


def _keep(into: Most, new: Most) -> None:
    for own, foreign in new.items():
        into[own] = max(into.get(own, 0), foreign)


def _added(left: Most, right: Most, most_own: int) -> Most:
    """Return the sums of a state of each; own values are capped at their number."""
    sums: Most = {}
    for own, foreign in left.items():
        for more, others in right.items():
            key = min(own + more, most_own)
            sums[key] = max(sums.get(key, 0), foreign + others)
    return sums


def _for_others(known: Most, most_own: int) -> Most:
    """Return what a sender of another group brings: some of its foreign values may be the receiver's own."""
    brought: Most = {}
    for own, foreign in known.items():
        for theirs in range(min(foreign, most_own) + 1):
            brought[theirs] = max(brought.get(theirs, 0), own + foreign - theirs)
    return brought
