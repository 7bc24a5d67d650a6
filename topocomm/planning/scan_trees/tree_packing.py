"""Trees of a scan packed into the ports and links of hosts that are alike: each chunk takes the cheapest tree in turn.

What is busy has a price that rises with its load, and every pass over the chunks makes it steeper (as in fractional
packing; Garg, Koenemann 2007). The cheapest tree over neighbours in rank order is found by dynamic programming over
intervals of ranks. Of several hosts a tree hears at one rank what comes before its host, and sends the next host from
another what comes before that one; between them goes its spine, on which nothing goes back. Or it is `rooted`: one rank
tells any other host the fold of its own, and hears what comes before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.scan_trees.host_hops import HostHops, Way
from topocomm.planning.scan_trees.rank_trees import NO_RANK

STEEPNESS = (2, 4, 8, 16, 32)
"""Power of a load that is its price, in each pass."""
LEAST_PRICE = 1e-3
"""Price of a port or link without load, of that of the busiest: of ways as busy the one that holds less is taken."""


class HostTree(NamedTuple):
    """The tree of a chunk on each host.

    Attributes:
        parents: Parent of each rank; one that is not on the host is on the next; NO_RANK at the root of one host, and
            where the tree is rooted.
        up: Way of each rank's message to its parent; empty where there is none. That of a root among several hosts goes
            to the root of the next host, as an example of any other.
        down: Way of the message from its parent; that of such a root is the same way.
    """

    parents: tuple[int, ...]
    up: tuple[Way, ...]
    down: tuple[Way, ...]

    @property
    def hops(self) -> int:
        """Number of hops of all messages."""
        return sum(len(way) - 1 for way in (*self.up, *self.down) if way)

    def load(self, hosts: HostHops) -> Floats:
        """Return how long the payload holds each port and link of a host."""
        hops = [hop for way in (*self.up, *self.down) if way for hop in hosts.hops(way)]
        held: Floats = hosts.loads[hops].sum(axis=0)
        return held


def packed_trees(
    hosts: HostHops,
    chunks: int,
    us_price: float,
    *,
    spine_price: float = 0.0,
    spine_hop_us: float = 0.0,
    rooted: bool = False,
) -> Sequence[HostTree] | None:
    """Return a tree for each of some equal chunks; None where ranks do not reach each other.

    Args:
        hosts: Hops of the machine.
        chunks: Number of trees.
        us_price: What a us of latency costs, in the time that the payload holds the busiest port or link.
        spine_price: What it costs more on a spine, in the time that it holds all of them as long.
        spine_hop_us: What a hop of a spine takes beside its latency.
        rooted: Whether one rank of each of several hosts sends the fold of the host, and hears what comes before it.
    """
    trees: list[HostTree] = []
    loads, least, best = np.zeros((chunks, hosts.loads.shape[1])), np.inf, trees
    for power in STEEPNESS:
        for chunk in range(chunks):
            loads[chunk] = 0.0
            load = loads.sum(axis=0)
            price = (load / max(float(load.max()), 1e-9)) ** power + LEAST_PRICE
            tree = _Cheapest(hosts, price, us_price, spine_price * float(price.sum()), spine_hop_us).tree(rooted=rooted)
            if tree is None:
                return None
            trees[chunk : chunk + 1] = [tree]
            loads[chunk] = tree.load(hosts) / chunks
        if (busiest := float(loads.sum(axis=0).max())) < least:
            least, best = busiest, list(trees)
    return best


class _Cheapest:
    """The cheapest tree at given prices."""

    def __init__(
        self, hosts: HostHops, price: Floats, us_price: float, spine_us_price: float = 0.0, spine_hop_us: float = 0.0
    ) -> None:
        self.members, self.several = hosts.members, hosts.several
        self.ways = hosts.ways(price, us_price)
        self.spine_ways = hosts.ways(price, us_price + spine_us_price, spine_hop_us) if spine_us_price else self.ways
        self.parents = [NO_RANK] * self.members
        self.up: list[Way] = [()] * self.members
        self.down: list[Way] = [()] * self.members
        shape = (self.members + 1, self.members + 1, self.members)
        self.single, self.root = np.full(shape, np.inf), np.zeros(shape, np.int64)
        """[low, high, parent]: the least price of one tree of the ranks low..high-1 below a parent, and its root."""
        self.below, self.last = np.zeros(shape), np.zeros(shape, np.int64)
        """The same of several trees, and where the last of them begins."""
        self._intervals()

    def _intervals(self) -> None:
        """Find the cheapest trees of all intervals, of smaller ones first."""
        try:
            from topocomm.native._native import pack_intervals
        except ImportError:
            self._intervals_plainly()
        else:
            inside, several = np.ascontiguousarray(self.ways.inside, np.float64), np.array([self.several], bool)
            pack_intervals(inside, several, self.single, self.root, self.below, self.last)

    def _intervals_plainly(self) -> None:
        """As `_intervals`, without the compiled part: all of a size at once."""
        inside, every = self.ways.inside, np.arange(self.members)
        for size in range(1, self.members + 1):
            low = np.arange(self.members - size + 1)
            high = low + size
            roots = low[:, None] + every[:size]
            price = (self.below[low[:, None], roots, roots] + self.below[roots + 1, high[:, None], roots])[:, :, None]
            up, down = self.several | (high < self.members), self.several | (low > 0)
            price = price + np.where(up[:, None, None], inside[roots], 0.0)
            price = price + np.where(down[:, None, None], inside.T[roots], 0.0)
            self.root[low, high] = low[:, None] + price.argmin(axis=1)
            self.single[low, high] = price.min(axis=1)
            price = self.below[low[:, None], roots] + self.single[roots, high[:, None]]
            self.last[low, high] = low[:, None] + price.argmin(axis=1)
            self.below[low, high] = price.min(axis=1)

    def _goes_up(self, high: int) -> bool:
        """Whether something comes after ranks that end there."""
        return self.several or high < self.members

    def _hears(self, low: int) -> bool:
        return self.several or low > 0

    def tree(self, *, rooted: bool = False) -> HostTree | None:
        """Return the tree; None where none has routes."""
        price_us = self._spine() if self.several and not rooted else self._rooted()
        return HostTree(tuple(self.parents), tuple(self.up), tuple(self.down)) if np.isfinite(price_us) else None

    def _rooted(self) -> float:
        """Choose the root of the least price with what is below it, and place both; it is what other hosts hear."""
        every = np.arange(self.members)
        prices = self.below[0, every, every] + self.below[every + 1, self.members, every]
        if self.several:
            prices = prices + 2 * self.ways.across.diagonal()
        root = int(prices.argmin())
        if np.isfinite(prices[root]):
            if self.several:
                self.up[root] = self.down[root] = self.ways.way(root, self.members + root)
            self._place(0, root, root)
            self._place(root + 1, self.members, root)
        return float(prices[root])

    def _spine(self) -> float:
        """Choose the spine of the least price with what hangs on it, by its ends, and place both."""
        every = np.arange(self.members)
        step, cut = self._steps()
        price = np.full((self.members, self.members), np.inf)
        price[every, every] = self.below[0, every, every]
        before = np.full(price.shape, NO_RANK)
        for end in range(1, self.members):
            by = price[:, :end] + step[None, :end, end]
            longer = by.min(axis=1) < price[:, end]
            before[longer, end] = by.argmin(axis=1)[longer]
            price[longer, end] = by.min(axis=1)[longer]
        price = price + self.below[every + 1, self.members, every] + self.spine_ways.across.T
        first, end = divmod(int(price.argmin()), self.members)
        if np.isfinite(price[first, end]):
            self._join(end, self.members + first)
            self._place(end + 1, self.members, end)
            while end != first:
                earlier = int(before[first, end])
                self._join(earlier, end)
                self._place(int(cut[earlier, end]), end, end)
                self._place(earlier + 1, int(cut[earlier, end]), earlier)
                end = earlier
            self._place(0, first, first)
        return float(price.min())

    def _steps(self) -> tuple[Floats, Ints]:
        """[rank, next one]: price of a step on the spine with the ranks between; the first that hangs on the next."""
        step = np.full((self.members, self.members), np.inf)
        cut = np.zeros(step.shape, np.int64)
        try:
            from topocomm.native._native import price_steps
        except ImportError:
            self._steps_plainly(step, cut)
        else:
            price_steps(self.below, np.ascontiguousarray(self.spine_ways.inside, np.float64), step, cut)
        return step, cut

    def _steps_plainly(self, step: Floats, cut: Ints) -> None:
        """Set what `_steps` returns, without the compiled part."""
        for rank in range(self.members):
            for after in range(rank + 1, self.members):
                cuts = np.arange(rank + 1, after + 1)
                prices = self.below[rank + 1, cuts, rank] + self.below[cuts, after, after]
                cut[rank, after] = cuts[prices.argmin()]
                step[rank, after] = prices.min() + self.spine_ways.inside[rank, after]

    def _join(self, rank: int, parent: int) -> None:
        self.parents[rank] = parent
        self.up[rank] = self.spine_ways.way(rank, parent)

    def _place(self, low: int, high: int, parent: int) -> None:
        """Place the trees of the ranks low..high-1 below a parent."""
        while high > low:
            begin = int(self.last[low, high, parent])
            root = int(self.root[begin, high, parent])
            self.parents[root] = parent
            if self._goes_up(high):
                self.up[root] = self.ways.way(root, parent)
            if self._hears(begin):
                self.down[root] = self.ways.way(parent, root)
            self._place(begin, root, root)
            self._place(root + 1, high, root)
            high = begin
