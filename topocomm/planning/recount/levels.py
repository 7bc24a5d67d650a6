"""The bound of a levels witness, counted with plain lists: what `planning/bounds/levels.py` proves, computed apart.

In a state, `most[own]` is the most foreign values that a rank can know beside `own` values of its group.
"""

from __future__ import annotations

import heapq

Most = dict[int, int]


def least_levels_us(
    inside_us: float,
    across_us: float,
    *,
    most_own: int,
    ports: int,
    group_ports: int,
    wanted: tuple[int, int],
) -> float:
    """Least time until a rank can know `wanted` = (own, foreign) values.

    Args:
        inside_us: Least time of a message inside a group.
        across_us: Least time of a message between groups.
        most_own: Values that count in the largest group.
        ports: K.
        group_ports: K times the endpoints of the group with most of them.
        wanted: What some rank must know in the end.
    """
    history: list[
        tuple[float, Most, Most, int]
    ] = []  # time, what a rank knows, what a port brought, what a group knows
    enough = sum(wanted)

    def at(time_us: float) -> tuple[Most, Most, int] | None:
        for when, known, brought, imported in reversed(history):
            if when <= time_us + 1e-9:
                return known, brought, imported
        return None

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
        known: Most = {1: 0}
        for _ in range(ports):
            grown = {own: min(foreign, enough) for own, foreign in _added(known, brought, most_own).items()}
            if grown == known:
                break
            known = grown
        known = {own: min(foreign, imported) for own, foreign in known.items()}
        if any(own >= wanted[0] and foreign >= wanted[1] for own, foreign in known.items()):
            return now_us
        if not history or (known, brought, imported) != history[-1][1:]:
            history.append((now_us, known, brought, imported))
            heapq.heappush(heap, now_us + inside_us)
            heapq.heappush(heap, now_us + across_us)


def _keep(into: Most, new: Most) -> None:
    for own, foreign in new.items():
        into[own] = max(into.get(own, 0), foreign)


def _added(left: Most, right: Most, most_own: int) -> Most:
    """Sums of a state of each; own values are at most those that there are."""
    found: Most = {}
    for own, foreign in left.items():
        for more, others in right.items():
            key = min(own + more, most_own)
            found[key] = max(found.get(key, 0), foreign + others)
    return found


def _for_others(known: Most, most_own: int) -> Most:
    """What a sender of another group brings: of its foreign values some may be the receiver's own."""
    found: Most = {}
    for own, foreign in known.items():
        for theirs in range(min(foreign, most_own) + 1):
            found[theirs] = max(found.get(theirs, 0), own + foreign - theirs)
    return found
