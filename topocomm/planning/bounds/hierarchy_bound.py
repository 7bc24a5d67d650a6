"""Least time under `alpha` where messages inside groups of ranks are cheap and messages between them are not.

Why no schedule is faster: docs/concepts/cost-models.md, "Levels". R(t) there is a front here: by own values known, the
most foreign ones. `Cap` is U(t), and `Spread` is by the mixes of messages from outside and inside in each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Front = NDArray[np.int64]
"""Most foreign values beside at least `own` own ones, by `own`; NONE where so many are out of reach."""
NONE = -(1 << 40)
"""Mark of a number of own values out of reach; sums of it stay far below 0."""
SAME_US = 1e-9
"""Times that differ by less are equal."""
MOST_WINDOWS, MOST_MIXES = 4, 2_000
"""Cap by spread: most windows back, and most mixes of messages in them."""


@dataclass(frozen=True)
class Levels:
    """The machine and the values that the bound is about.

    Attributes:
        inside_us: Least latency of a message inside a group, above 0.
        across_us: Least latency of a message between groups, at least `inside_us`.
        members: Ranks of the largest group.
        most_own: Values (or ranks) that count in the largest group.
        total: Values (or ranks) that count in all.
        ports: K.
        group_ports: K times the endpoints of the group that has most.
    """

    inside_us: float
    across_us: float
    members: int
    most_own: int
    total: int
    ports: int
    group_ports: int


class _State(NamedTuple):
    """R, what one port brought, U, and the most values that a rank knows in all, from a time on."""

    time_us: float
    front: Front
    port: Front
    group: int
    most: int


def least_time_us(levels: Levels, wanted: tuple[int, int]) -> float:
    """Return the least time until a rank can know `wanted` = (own, foreign) values."""
    own, foreign = wanted
    history: list[_State] = []
    mixes = _mixes(levels)
    windows = max([1, *(int(mix.back.max()) for mix in mixes)])
    heap = [0.0]
    last_us = -1.0
    while heap:
        now_us = heappop(heap)
        if now_us <= last_us + SAME_US:
            continue
        last_us = now_us
        state = _after(history, now_us, levels, mixes)
        if state is None:
            continue
        if state.front[own] >= foreign:
            return now_us
        history.append(state)
        heappush(heap, now_us + levels.across_us)
        for window in range(1, windows + 1):
            heappush(heap, now_us + window * levels.inside_us)
            if window < len(mixes):
                heappush(heap, now_us + window * levels.inside_us + levels.across_us)
    raise AssertionError("what ranks can know grows until it is everything")


def _at(history: Sequence[_State], time_us: float) -> _State | None:
    """Return the state at a time; None before the first."""
    return next((state for state in reversed(history) if state.time_us <= time_us + SAME_US), None)


def _after(history: Sequence[_State], now_us: float, levels: Levels, mixes: Sequence[_Mixes]) -> _State | None:
    """Return the state at a time; None where neither R, U nor what a port brings grows."""
    inside, across = _at(history, now_us - levels.inside_us), _at(history, now_us - levels.across_us)
    last = history[-1] if history else None
    port = last.port if last else _single(0, levels.most_own)
    group = 0
    if inside:
        port = np.maximum(port, _sum(inside.port, inside.front))
    if across:
        port = np.maximum(port, _sum(across.port, _from_others(across.front)))
        group = min(levels.total, across.group + levels.group_ports * across.most)
    port = np.minimum(port, levels.total)
    cap = min([group, *(_spread(history, now_us, levels, mix) for mix in mixes)])
    front = _single(1, levels.most_own)
    for _ in range(levels.ports):
        grown = _sum(front, port)
        if (grown == front).all():
            break
        front = grown
    front = np.minimum(front, cap)
    if last and group == last.group and (front == last.front).all() and (port == last.port).all():
        return None
    return _State(now_us, front, port, group, int((np.arange(len(front)) + front).max()))


class _Mixes(NamedTuple):
    """Mixes of messages from outside and inside in the last windows."""

    imports: NDArray[np.int64]
    """Messages from outside in each window, the last first, [mixes, windows]."""
    ranks: NDArray[np.int64]
    """Ranks that the rest came from, [mixes]."""
    back: NDArray[np.int64]
    """Windows since they had it, [mixes]."""


def _mixes(levels: Levels) -> list[_Mixes]:
    """Return the mixes of 1, 2, ... windows, until the ranks are a whole group."""
    longest = int((levels.across_us + SAME_US) / levels.inside_us)
    by_windows: list[_Mixes] = []
    mixes: list[tuple[tuple[int, ...], int, int]] = [((), 1, levels.ports)]
    for window in range(1, min(MOST_WINDOWS, longest) + 1):
        mixes = [
            ((*imports, count), ranks + free - count, (1 + levels.ports) * (free - count))
            for imports, ranks, free in mixes
            for count in range(free + 1)
        ]
        if len(mixes) > MOST_MIXES:
            break
        imports, ranks, free = map(np.array, zip(*mixes, strict=True))
        by_windows.append(_Mixes(imports, ranks, np.where(free > 0, window, longest)))
        if ranks.max() >= levels.members:
            break
    return by_windows


def _spread(history: Sequence[_State], now_us: float, levels: Levels, mixes: _Mixes) -> int:
    """Return the most foreign values that a rank can have received by any of these mixes."""
    windows = mixes.imports.shape[1]
    before = [_at(history, now_us - window * levels.inside_us - levels.across_us) for window in range(windows)]
    total = mixes.imports @ np.array([state.most if state else 0 for state in before])
    for back in np.unique(mixes.back).tolist():
        then = _at(history, now_us - back * levels.inside_us)
        if then:
            of = mixes.back == back
            total[of] += np.minimum(then.group, mixes.ranks[of] * int(then.front.max()))
    return int(total.max())


def _single(own: int, most_own: int) -> Front:
    """Return the pair (own, 0) and those below it."""
    return np.where(np.arange(most_own + 1) <= own, 0, NONE)


def _sum(left: Front, right: Front) -> Front:
    """Return the sums of a pair of each, own values capped at their number."""
    size = len(left)
    own = np.minimum(np.add.outer(np.arange(size), np.arange(size)), size - 1)
    sums = np.full(size, NONE)
    np.maximum.at(sums, own, np.maximum(np.add.outer(left, right), NONE))
    return np.maximum.accumulate(sums[::-1])[::-1]


def _from_others(front: Front) -> Front:
    """Return the pairs for a rank of another group: (z, own + foreign - z) for z of the foreign values."""
    own = np.arange(len(front))
    total = np.maximum.accumulate(np.where(front >= 0, own + front, 0))
    most_own = np.searchsorted(-front, -own, side="right") - 1  # the last pair with z foreign values
    return np.where(most_own >= 0, total[np.maximum(most_own, 0)] - own, NONE)
