"""Cheapest paths between all endpoints through forwarding devices, under prices on directed links.

Floyd and Warshall among forwarding devices, then one step out of every endpoint and one into it, all on whole arrays:
a packing searches hundreds of times.
"""

from __future__ import annotations

from math import inf

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.tree import Path


def cheapest_paths(costs: Floats) -> tuple[Floats, Ints]:
    """Return the least costs between all pairs, relays allowed, and the next node on each path (Floyd, Warshall).

    `costs` float64 [n, n] has that of the step from row to column, infinite where there is none; 0 on the diagonal.
    """
    far, following = costs.copy(), np.broadcast_to(np.arange(len(costs)), costs.shape).copy()
    dense = bool((costs < inf).all())
    for via in range(len(costs)):
        if dense:
            through = far[:, via, None] + far[via]
            better = through < far
            far, following = np.where(better, through, far), np.where(better, following[:, via, None], following)
            continue
        sources, targets = np.flatnonzero(far[:, via] < inf), np.flatnonzero(far[via] < inf)
        block = np.ix_(sources, targets)
        through = far[sources, via][:, None] + far[via, targets]
        better = through < far[block]
        far[block] = np.where(better, through, far[block])
        following[block] = np.where(better, following[sources, via][:, None], following[block])
    return far, following


class Relays:
    """Cheapest moves from rank to rank where other ranks may relay."""

    def __init__(self, costs: Floats) -> None:
        direct = costs.copy()
        np.fill_diagonal(direct, 0.0)
        self.costs, self._next = cheapest_paths(direct)

    def relays(self, a: int, b: int) -> list[int]:
        """Return the ranks from a to b."""
        ranks = [a]
        while ranks[-1] != b:
            ranks.append(int(self._next[ranks[-1], b]))
        return ranks


class Closure:
    """Costs and paths between the endpoints of one network under changing prices."""

    def __init__(self, network: Network) -> None:
        self.network = network
        ends = network.ends
        pairs = np.array(network.links, dtype=np.int64).reshape(-1, 2)
        numbers = np.arange(len(pairs))
        inner = (pairs >= ends).all(axis=1)
        direct = (pairs < ends).all(axis=1)
        self._inner = (pairs[inner] - ends, numbers[inner])
        self._direct = (pairs[direct], numbers[direct])
        leaving = [(a, b, link) for link, (a, b) in enumerate(network.links) if a < ends <= b]
        entering = [(b, a, link) for link, (a, b) in enumerate(network.links) if b < ends <= a]
        self._out, self._into = _padded(leaving, ends), _padded(entering, ends)

    def search(self, prices: Floats) -> Floats:
        """Return the costs of cheapest paths, float64 [ends, ends], infinite on the diagonal and where there is none.

        Prices are float64 [links], above zero.
        """
        ends, forward = self.network.ends, len(self.network.devices) - self.network.ends
        costs, far = np.full((ends, ends), inf), np.full((forward, forward), inf)
        for table, (pairs, links) in ((costs, self._direct), (far, self._inner)):
            table[pairs[:, 0], pairs[:, 1]] = prices[links]
        np.fill_diagonal(far, 0.0)
        far, self._next = cheapest_paths(far)
        reach, self._first = _over_links(prices, self._out, far, np.full((ends, forward), inf))
        arriving, last = _over_links(prices, self._into, reach.T, costs.T)
        costs, self._last = arriving.T, last.T
        np.fill_diagonal(costs, inf)
        return costs

    def path(self, a: int, b: int) -> Path:
        """Return the device numbers of the path that the last `search` found."""
        into = int(self._last[a, b])
        if into < 0:
            return (a, b)
        devices = [int(self._first[a, into])]
        while devices[-1] != into:
            devices.append(int(self._next[devices[-1], into]))
        return (a, *(device + self.network.ends for device in devices), b)


def _over_links(prices: Floats, table: tuple[Ints, Ints], far: Floats, best: Floats) -> tuple[Floats, Ints]:
    """Return the least of `best` and the costs over one link and then `far`, and the device between, -1 for `best`.

    `table` is as of `_padded`; costs to some others: `far` [forwarding devices, others], `best` [ends, others].
    """
    between = np.full(best.shape, -1, dtype=np.int64)
    for device, link in zip(table[0].T, table[1].T, strict=True):
        cost = np.where(link >= 0, prices[link], inf)[:, None] + far[device]
        better = cost < best
        best, between = np.where(better, cost, best), np.where(better, device[:, None], between)
    return best, between


def _padded(entries: list[tuple[int, int, int]], ends: int) -> tuple[Ints, Ints]:
    """Return (forwarding device, link) of every endpoint, int64 [ends, most] each, padded with link -1."""
    rows: list[list[tuple[int, int]]] = [[] for _ in range(ends)]
    for end, device, link in entries:
        rows[end].append((device - ends, link))
    most = max(map(len, rows), default=0)
    table = np.array([row + [(0, -1)] * (most - len(row)) for row in rows], dtype=np.int64).reshape(ends, most, 2)
    return table[:, :, 0], table[:, :, 1]
