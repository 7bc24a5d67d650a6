"""The spanning tree over the ranks that costs least, on a machine whose links cost the same in both directions.

An edge between two ranks costs what the cheapest way through forwarding devices costs. Not all pairs are looked at:
one search from all endpoints at once gives every forwarding device to the endpoint that is nearest, and the edges over
links between the regions of two endpoints hold a least spanning tree (Mehlhorn 1988).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from operator import itemgetter

from topocomm.planning.forests.linear_program.integer_network import Floats, Network
from topocomm.planning.forests.tree import Edge, Tree, Way
from topocomm.planning.routing.nearest_first import nearest_first


class Spanner:
    """Spanning trees of one network under changing prices."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._preferences: dict[int, list[tuple[float, int]]] = {}

    def tree(self, prices: Floats, root: int, depth_price: float) -> tuple[Tree, float]:
        """(spanning tree, its cost without the price of depth).

        Args:
            prices: float64 [links]; equal in both directions.
            root: Where the tree begins to grow, and what ties are broken in favour of.
            depth_price: Added to an edge for every edge between it and the root: the tree is the cheapest if it is 0.
        """
        dear = prices.tolist()
        regions = _Regions(self.network, dear, self._preference(root))
        near = regions.edges()
        edges: list[Edge] = []
        cost = 0.0
        depth = {root: 0}
        heap = [(price, root, child, place) for child, price, place in near[root]]
        heapq.heapify(heap)
        while heap:
            key, parent, child, place = heapq.heappop(heap)
            if child in depth:
                continue
            depth[child] = depth[parent] + 1
            cost += key - depth_price * depth[parent]
            edges.append(Edge(parent, child, regions.way(*place)))
            extra = depth_price * depth[child]
            for after, price, following in near[child]:
                if after not in depth:
                    heapq.heappush(heap, (price + extra, child, after, following))
        return Tree(root, edges), cost if len(depth) == self.network.ends else inf

    def _preference(self, root: int) -> list[tuple[float, int]]:
        """Sort keys of the endpoints: near the root first."""
        if root not in self._preferences:
            far = self.network.hops_from(root)
            self._preferences[root] = [(far[end], end) for end in range(self.network.ends)]
        return self._preferences[root]


class _Regions:
    """Every forwarding device with the endpoint that is nearest."""

    def __init__(self, network: Network, prices: list[float], preference: list[tuple[float, int]]) -> None:
        self.network, self.prices = network, prices
        size, ends = len(network.devices), network.ends
        self.cost = [0.0] * ends + [inf] * (size - ends)
        self.owner = [*range(ends), *[-1] * (size - ends)]
        self.before = list(range(size))
        neighbours, cost = network.neighbours, self.cost

        def onward(label: tuple[float, tuple[float, int], int]) -> Iterator[tuple[float, tuple[float, int], int]]:
            at, rank, device = label
            for after, link in neighbours[device]:
                there = at + prices[link]
                if after >= ends and there < cost[after]:
                    cost[after] = there
                    self.owner[after] = self.owner[device]
                    self.before[after] = device
                    yield there, rank, after

        nearest_first([(0.0, preference[end], end) for end in range(ends)], itemgetter(2), onward)

    def edges(self) -> list[list[tuple[int, float, tuple[int, int]]]]:
        """By endpoint: (other endpoint, cost, the link where the two regions meet)."""
        best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
        for number, (a, b) in enumerate(self.network.links):
            one, other = self.owner[a], self.owner[b]
            if one != other and one >= 0 and other >= 0:
                entry = (self.cost[a] + self.prices[number] + self.cost[b], (a, b))
                if (one, other) not in best or entry < best[one, other]:
                    best[one, other] = entry
        near: list[list[tuple[int, float, tuple[int, int]]]] = [[] for _ in range(self.network.ends)]
        for (one, other), (cost, place) in best.items():
            near[one].append((other, cost, place))
        return near

    def way(self, a: int, b: int) -> Way:
        """The way from the owner of `a` over the link a -> b to the owner of `b`."""
        front, back = [a], [b]
        while self.before[front[-1]] != front[-1]:
            front.append(self.before[front[-1]])
        while self.before[back[-1]] != back[-1]:
            back.append(self.before[back[-1]])
        return (*reversed(front), *back)
