"""What time a contribution needs at least: to reach all who want it, or to come from all whom a rank wants.

Growth. Let a rank with a value have `t` left. Whatever it does with its one port, the value reaches at most F(rank, t)
further ranks of a group through it: it tells some rank v, which takes the latency to v, and then both go on:
F(u, t) = max over v of F(u, t - l(u, v)) + [v in group] + K F(v, t - l(u, v)), K ports being one for each. Counting a
rank twice only helps, so the least t with K F(source, t) >= ranks of the group that want the value is a bound. It holds
for every group; those used are all ranks, clusters of near ones, and what is outside of one.
To come from all is the same on the reversed machine.

Distance. A value needs at least the latency of the shortest way, with relays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.gossip import SAME_US

STEPS = 512
"""Most steps of the time grid; latencies that are no multiples are rounded down to it."""
SMALL, GROUPS = 32, 32
"""Up to so many ranks, so many groups are counted; of more ranks an eighth of them."""


@dataclass(frozen=True)
class Bound:
    """A time that no gossip beats.

    Attributes:
        time_us: The time.
        argument: Why, in words.
    """

    time_us: float
    argument: str


def lower_bound(latency_us: NDArray[np.float64], wants: NDArray[np.bool_], ports: int) -> Bound:
    """The best of the bounds above, over all ranks and both directions.

    Args:
        latency_us: float64 [n, n], infinite where no route exists.
        wants: bool [n, n]: wants[a, b] says that rank b needs the contribution of rank a.
        ports: Messages that a rank sends, and receives, at once.
    """
    away_us = distances(latency_us)
    asked = wants & ~np.eye(len(wants), dtype=bool)
    best = Bound(0.0, "nobody wants anything of another")
    if not asked.any():
        return best
    farthest = np.where(asked, away_us, 0.0)
    a, b = np.unravel_index(int(farthest.argmax()), farthest.shape)
    best = Bound(float(farthest.max()), f"ranks {a} and {b} are {farthest.max():g} apart")
    if not np.isfinite(best.time_us):
        return best
    for latency, wanted, what in ((latency_us, asked, "reach"), (latency_us.T, asked.T, "hear of")):
        for group, name in _groups(away_us):
            found = _growth(latency, wanted, group, ports, best.time_us)
            if found is not None and found[0] > best.time_us + SAME_US:
                time_us, rank, size = found
                best = Bound(time_us, f"rank {rank} must {what} {size} ranks{name}, which takes {time_us:g}")
    return best


def distances(latency_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n, n]: least latency with relays (Floyd, Warshall)."""
    best = latency_us.copy()
    np.fill_diagonal(best, 0.0)
    for relay in range(len(best)):
        np.minimum(best, best[:, relay, None] + best[relay], out=best)
    return best


def clusters(away_us: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Partitions of the ranks in clusters of near ones, coarse first: each an array of cluster numbers by rank.

    Ranks are near when a chain of steps of at most some latency joins them both ways; one partition per latency
    that changes it.
    """
    count = len(away_us)
    both = np.maximum(away_us, away_us.T)
    label = np.arange(count)
    found: list[NDArray[np.int64]] = []
    order = np.unravel_index(np.argsort(both, axis=None, kind="stable"), both.shape)
    last = -np.inf
    for a, b in zip(*(axis.tolist() for axis in order), strict=True):
        if both[a, b] > last + SAME_US:
            if 1 < len(np.unique(label)) < count and (not found or (found[-1] != label).any()):
                found.append(label.copy())
            last = both[a, b]
        if label[a] != label[b]:
            label[label == max(label[a], label[b])] = min(label[a], label[b])
    return found[::-1]


def _groups(away_us: NDArray[np.float64]) -> list[tuple[NDArray[np.bool_], str]]:
    """Groups of ranks to count: all, clusters, and what is outside of one, each with its name."""
    count = len(away_us)
    groups = [(np.ones(count, bool), "")]
    for label in clusters(away_us):
        for cluster in np.unique(label).tolist():
            inside = label == cluster
            if inside.sum() >= 2:
                name = f"the cluster of rank {int(inside.argmax())}"
                groups += [(~inside, f" outside {name}"), (inside, f" in {name}")]
    return groups[: GROUPS if count <= SMALL else GROUPS // 8]


class Growth:
    """F above: how many ranks of a group a value reaches through one port of a rank, at most, in the time left."""

    def __init__(
        self, latency_us: NDArray[np.float64], group: NDArray[np.bool_], ports: int, horizon_us: float
    ) -> None:
        """Grow as `most` asks for it.

        Args:
            latency_us: float64 [n, n], infinite where no route exists.
            group: bool [n]: the ranks that count.
            ports: Messages that a rank sends at once.
            horizon_us: About the longest time asked for; sets the grid where latencies have no common unit.
        """
        route = np.isfinite(latency_us) & ~np.eye(len(group), dtype=bool)
        self.unit_us = _unit_us(latency_us[route], horizon_us)
        steps = np.zeros(route.shape, np.int64)
        steps[route] = np.floor(latency_us[route] / self.unit_us + SAME_US)
        self.bounds_nothing = not steps[route].all()  # latencies too far apart for the grid
        self._route, self._steps, self._group, self._ports = route, steps, group, ports
        self._size = float(group.sum())
        self._reached = np.zeros((1, len(group)))
        self._filled = 1

    def row(self, time: int) -> NDArray[np.float64]:
        """float64 [n]: F of every rank with `time` units left."""
        columns = np.arange(len(self._group))
        while self._filled <= time:
            if self._filled == len(self._reached):
                self._reached = np.concatenate([self._reached, np.zeros_like(self._reached)])
            left = self._filled - self._steps
            at, reached = np.maximum(left, 0), self._reached
            gain = self._group + reached[at, columns[:, None]] + self._ports * reached[at, columns]
            most = np.where(self._route & (left >= 0), gain, 0.0).max(axis=1)
            self._reached[self._filled] = np.minimum(most, self._size)
            self._filled += 1
        row: NDArray[np.float64] = self._reached[time]
        return row

    def units(self, time_us: float) -> int:
        """Whole units in a time, rounded up where they nearly fit."""
        return int(time_us / self.unit_us + SAME_US)


def _growth(
    latency_us: NDArray[np.float64], wanted: NDArray[np.bool_], group: NDArray[np.bool_], ports: int, known_us: float
) -> tuple[float, int, int] | None:
    """The latest (time, rank, ranks of the group to reach) over all ranks; None when none is above `known_us`."""
    sizes = (wanted & group).sum(axis=1)
    growth = Growth(latency_us, group, ports, known_us)
    if growth.bounds_nothing:
        return None
    late, last = sizes > 0, None
    for time in range(4 * STEPS):
        still = late & (ports * growth.row(time) < sizes)
        if (late & ~still).any():
            rank = int((late & ~still).argmax())
            last = (time * growth.unit_us, rank, int(sizes[rank]))
        late = still
        if not late.any():
            break
    return last if last is not None and last[0] > known_us + SAME_US else None


def _unit_us(latencies_us: NDArray[np.float64], horizon_us: float) -> float:
    """The largest unit that all latencies are multiples of, or that keeps the grid small."""
    exact_us = int(np.gcd.reduce(np.rint(latencies_us * 1e6).astype(np.int64))) * 1e-6
    return max(exact_us, 2 * horizon_us / STEPS)
