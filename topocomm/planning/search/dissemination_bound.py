"""Bounds on the time of a gossip: of one contribution to all ranks that want it, or of all to one rank.

Growth. In time t a value reaches at most F(u, t) more ranks of a group through one port of rank u: u sends it to some
rank v, which takes the latency l(u, v), and then both go on:
F(u, t) = max over v of F(u, t - l(u, v)) + [v in group] + K F(v, t - l(u, v)), with K ports. Ranks counted twice only
raise F, so the least t with K F(source, t) >= the ranks of the group that want the value is a bound, for every group.
Used are all ranks, clusters of near ranks, and what is outside a cluster. The other direction is the same on the
reversed machine.

Distance. A value needs at least the latency of the shortest path, with relays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.gossip import SAME_US

STEPS = 512
"""Most steps of the time grid; latencies are rounded down to it."""
SMALL, GROUPS = 32, 32
"""Most groups counted on machines of at most `SMALL` ranks; on larger ones an eighth."""


@dataclass(frozen=True)
class Bound:
    """A time that no gossip beats, and the argument in words."""

    time_us: float
    argument: str


def lower_bound(latency_us: NDArray[np.float64], wants: NDArray[np.bool_], ports: int) -> Bound:
    """Return the best of the bounds over all ranks and both directions; arguments as in `gossip_search`."""
    away_us = distances(latency_us)
    asked = wants & ~np.eye(len(wants), dtype=bool)
    if not asked.any():
        return Bound(0.0, "nobody wants anything of another")
    farthest = np.where(asked, away_us, 0.0)
    a, b = np.unravel_index(int(farthest.argmax()), farthest.shape)
    best = Bound(float(farthest.max()), f"ranks {a} and {b} are {farthest.max():g} apart")
    if not np.isfinite(best.time_us):
        return best
    groups = [(np.ones(len(wants), bool), "")]
    for label in clusters(away_us):
        for cluster in np.unique(label).tolist():
            inside = label == cluster
            if inside.sum() >= 2:
                name = f"the cluster of rank {int(inside.argmax())}"
                groups += [(~inside, f" outside {name}"), (inside, f" in {name}")]
    for latency, wanted, what in ((latency_us, asked, "reach"), (latency_us.T, asked.T, "hear of")):
        for group, name in groups[: GROUPS if len(wants) <= SMALL else GROUPS // 8]:
            latest = _growth(latency, wanted, group, ports, best.time_us)
            if latest is not None and latest[0] > best.time_us + SAME_US:
                time_us, rank, size = latest
                best = Bound(time_us, f"rank {rank} must {what} {size} ranks{name}, which takes {time_us:g}")
    return best


def distances(latency_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least latencies with relays, float64 [n, n] (Floyd, Warshall)."""
    best = latency_us.copy()
    np.fill_diagonal(best, 0.0)
    for relay in range(len(best)):
        np.minimum(best, best[:, relay, None] + best[relay], out=best)
    return best


def clusters(away_us: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Return partitions of the ranks into clusters by single linkage, coarse first, as cluster numbers by rank.

    A cluster is joined by steps of at most some latency both ways; there is one partition per latency that changes it.
    """
    count = len(away_us)
    apart_us = np.maximum(away_us, away_us.T)
    label = np.arange(count)
    partitions: list[NDArray[np.int64]] = []
    order = np.unravel_index(np.argsort(apart_us, axis=None, kind="stable"), apart_us.shape)
    last = -np.inf
    for a, b in zip(*(axis.tolist() for axis in order), strict=True):
        if apart_us[a, b] > last + SAME_US:
            if 1 < len(np.unique(label)) < count and (not partitions or (partitions[-1] != label).any()):
                partitions.append(label.copy())
            last = apart_us[a, b]
        if label[a] != label[b]:
            label[label == max(label[a], label[b])] = min(label[a], label[b])
    return partitions[::-1]


class Growth:
    """The function F of the module: ranks of a group that a value reaches through one port, at most, in some time.

    `horizon_us` is about the longest time asked for; it sets the grid where latencies have no common unit.
    """

    def __init__(
        self, latency_us: NDArray[np.float64], group: NDArray[np.bool_], ports: int, horizon_us: float
    ) -> None:
        route = np.isfinite(latency_us) & ~np.eye(len(group), dtype=bool)
        exact_us = int(np.gcd.reduce(np.rint(latency_us[route] * 1e6).astype(np.int64))) * 1e-6
        self.unit_us = max(exact_us, 2 * horizon_us / STEPS)
        """The largest unit of which all latencies are multiples, or a larger one to keep the grid small."""
        steps = np.zeros(route.shape, np.int64)
        steps[route] = np.floor(latency_us[route] / self.unit_us + SAME_US)
        self.bounds_nothing = not steps[route].all()  # latencies too far apart for the grid
        self._route, self._steps, self._group, self._ports = route, steps, group, ports
        self._size = float(group.sum())
        self._reached = np.zeros((1, len(group)))
        self._filled = 1

    def row(self, time: int) -> NDArray[np.float64]:
        """Return F of every rank for a time in units, float64 [n]."""
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
        """Return the whole units in a time, rounded up where one nearly fits."""
        return int(time_us / self.unit_us + SAME_US)


def _growth(
    latency_us: NDArray[np.float64], wanted: NDArray[np.bool_], group: NDArray[np.bool_], ports: int, known_us: float
) -> tuple[float, int, int] | None:
    """Return the latest (time, rank, ranks of the group to reach); None when none is above `known_us`."""
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
