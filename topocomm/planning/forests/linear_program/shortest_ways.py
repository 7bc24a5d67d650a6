"""Shortest ways of all pairs at prices of links, ports and borders: ranks relay whole messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.linear_program.shared_borders import SharedBorders
from topocomm.planning.forests.linear_program.symmetry import Symmetry


class Hop(NamedTuple):
    """One message of a way: the ranks, and the devices that it passes, by number in the network."""

    src: int
    dst: int
    devices: tuple[int, ...]


Way = tuple[Hop, ...]
Pairing = tuple[int, int]
"""Source and destination."""


@dataclass(eq=False)
class Ways:
    """Shortest ways from the lowest rank of every orbit to all ranks, at some prices.

    Attributes:
        cost: float64 [sources, ends].
        via: int64 [sources, ends]: the last rank that relays, or -1.
        level: int64 [sources, ends]: the rate that every link of a message without relays has, by number.
        reached: What `WaySearch.spread` found at `prices` [rates, links].
    """

    search: WaySearch
    cost: Floats
    via: Ints
    level: Ints
    reached: Floats
    prices: Floats

    def __post_init__(self) -> None:
        self._known: dict[Pairing, Way] = {}

    def way(self, src: int, dst: int) -> Way:
        """Return the messages from the lowest rank of an orbit to another rank."""
        if (src, dst) not in self._known:
            via = int(self.via[self.search.source[src], dst])
            before = () if via < 0 else self.way(src, via)
            self._known[src, dst] = (*before, self._message(src if via < 0 else via, dst))
        return self._known[src, dst]

    def _message(self, src: int, dst: int) -> Hop:
        search = self.search
        source, image = int(search.source[src]), search.image[src]
        lowest, end = int(image[src]), int(image[dst])
        level, devices = int(self.level[source, end]), [end]
        reached, prices = self.reached[level, source], self.prices[level]
        while devices[-1] != lowest or len(devices) == 1:
            devices.append(search.before(reached, prices, lowest, devices[-1]))
        back = np.argsort(image)
        return Hop(src, dst, tuple(back[devices[::-1]].tolist()))


class WaySearch:
    """Shortest ways on a network, of links that are at least so fast; ranks forward whole messages only.

    Attributes:
        sources: int64: the lowest rank of every orbit.
        source: int64 [ends]: number of the orbit of every rank.
        image: int64 [ends, devices]: an element that maps each rank onto the lowest of its orbit.
    """

    def __init__(self, network: Network, rates: Floats, symmetry: Symmetry, borders: SharedBorders | None) -> None:
        self.network, self.rates, self.borders = network, rates, borders
        lowest = symmetry.elements[:, : network.ends]
        self.sources, self.source = np.unique(lowest.min(axis=0), return_inverse=True)
        self.image = symmetry.elements[lowest.argmin(axis=0)]
        self.src, self.dst = (np.array(side, dtype=np.int64) for side in zip(*network.links, strict=True))
        self.slow = network.gb_per_s[None, :] < rates[:, None]
        onward = np.flatnonzero(self.src >= network.ends)
        self.onward = onward[np.argsort(self.dst[onward], kind="stable")]
        heads = self.dst[self.onward]
        self.first = np.flatnonzero(np.diff(heads, prepend=-1))
        self.heads = heads[self.first]
        self.links_into: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for link, (a, b) in enumerate(network.links):
            self.links_into[b].append((link, a))

    def ways(self, lengths: Floats, weights: Floats, borders: Floats | None = None, *, relays: bool = True) -> Ways:
        """Return the shortest ways at lengths [links] and weights of ports [2, ends], without relays of one message.

        Both are equal for links and ranks that the symmetry maps onto each other.
        """
        ends, sources = self.network.ends, self.sources
        prices = np.where(self.slow, np.inf, lengths[None, :])
        reached = self.spread(prices)
        held, crossed = weights[0][sources, None] + weights[1][None, :], np.zeros((len(sources), ends))
        if self.borders and borders is not None:
            prices_of = borders[:, None, None]
            crossed += (prices_of * self.borders.crossing[:, sources]).sum(axis=0)
            taken = self.borders.more_gb_per_s[:, None, None] * prices_of * self.borders.of_fast[:, sources]
            held = np.maximum(held - taken.sum(axis=0), 0.0)
        options = reached[:, :, :ends] + crossed + held[None] / self.rates[:, None, None]
        level = options.argmin(axis=0)
        cost = options.min(axis=0)
        cost[np.arange(len(sources)), sources] = 0.0
        via = np.full(cost.shape, -1, dtype=np.int64)
        direct = cost[self.source[:, None], self.image[:, :ends]]
        for own, before in zip(cost, via, strict=True) if relays else ():
            while True:
                over = own[:, None] + direct
                last = over.argmin(axis=0)
                least = over[last, np.arange(ends)]
                if not (least < own).any():
                    break
                before[least < own] = last[least < own]
                own[least < own] = least[least < own]
        return Ways(self, cost, via, level, reached, prices)

    def spread(self, prices: Floats) -> Floats:
        """Return the least price of one message from each source to every device, [rates, sources, devices]."""
        network = self.network
        reached = np.full((len(self.rates), len(self.sources), len(network.devices)), np.inf)
        out = np.flatnonzero(np.isin(self.src, self.sources))
        reached[:, self.source[self.src[out]], self.dst[out]] = prices[:, out]
        if not len(self.onward):
            return reached
        tails = self.src[self.onward]
        while True:
            over = np.minimum.reduceat(reached[:, :, tails] + prices[:, None, self.onward], self.first, axis=2)
            before = reached[:, :, self.heads]
            if not (over < before).any():
                return reached
            reached[:, :, self.heads] = np.minimum(before, over)

    def before(self, reached: Floats, prices: Floats, src: int, device: int) -> int:
        """Return the device before one on the shortest way from a rank; of several the first."""
        for link, tail in self.links_into[device]:
            so_far = 0.0 if tail == src else np.inf if tail < self.network.ends else reached[tail]
            if so_far + prices[link] == reached[device]:
                return tail
        raise AssertionError("some link leads on the shortest way to where it leads")
