"""The least spanning tree over the ranks, where links have the same price in both directions.

An edge costs what the cheapest path through forwarding devices costs. One search from all endpoints at once assigns
every forwarding device to its nearest endpoint; the edges over links between two such regions contain a least spanning
tree (Mehlhorn 1988).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from operator import itemgetter

from topocomm.planning.forests.linear_program.integer_network import Floats, Network
from topocomm.planning.forests.tree import Edge, Path, Tree
from topocomm.planning.routing.route_search import nearest_first


class Spanner:
    """Spanning trees of one network under changing prices."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._preferences: dict[int, list[tuple[float, int]]] = {}
        """By root, sort keys of the endpoints: near the root first."""

    def tree(self, prices: Floats, root: int, depth_price: float) -> tuple[Tree, float]:
        """Return (spanning tree, its cost without the price of depth) at prices float64 [links], equal both ways.

        The tree grows from the root, in whose favour ties are broken. `depth_price` is added to an edge for every edge
        between it and the root; 0 gives the least spanning tree.
        """
        link_prices = prices.tolist()
        if root not in self._preferences:
            latency_us = self.network.hops_from(root)
            self._preferences[root] = [(latency_us[end], end) for end in range(self.network.ends)]
        regions = _Regions(self.network, link_prices, self._preferences[root])
        adjacent = regions.edges()
        edges: list[Edge] = []
        cost = 0.0
        depth = {root: 0}
        heap = [(price, root, child, crossing) for child, price, crossing in adjacent[root]]
        heapq.heapify(heap)
        while heap:
            key, parent, child, crossing = heapq.heappop(heap)
            if child in depth:
                continue
            depth[child] = depth[parent] + 1
            cost += key - depth_price * depth[parent]
            edges.append(Edge(parent, child, regions.path(*crossing)))
            extra = depth_price * depth[child]
            for neighbour, price, following in adjacent[child]:
                if neighbour not in depth:
                    heapq.heappush(heap, (price + extra, child, neighbour, following))
        return Tree(root, edges), cost if len(depth) == self.network.ends else inf


class _Regions:
    """Every forwarding device with its nearest endpoint."""

    def __init__(self, network: Network, prices: list[float], preference: list[tuple[float, int]]) -> None:
        self.network, self.prices = network, prices
        size, ends = len(network.devices), network.ends
        self.cost = [0.0] * ends + [inf] * (size - ends)
        self.owner = [*range(ends), *[-1] * (size - ends)]
        self.previous = list(range(size))
        neighbours, cost = network.neighbours, self.cost

        def onward(label: tuple[float, tuple[float, int], int]) -> Iterator[tuple[float, tuple[float, int], int]]:
            at, rank, device = label
            for neighbour, link in neighbours[device]:
                cost_there = at + prices[link]
                if neighbour >= ends and cost_there < cost[neighbour]:
                    cost[neighbour] = cost_there
                    self.owner[neighbour] = self.owner[device]
                    self.previous[neighbour] = device
                    yield cost_there, rank, neighbour

        nearest_first([(0.0, preference[end], end) for end in range(ends)], itemgetter(2), onward)

    def edges(self) -> list[list[tuple[int, float, tuple[int, int]]]]:
        """Return, by endpoint, (other endpoint, cost, the link where the two regions meet)."""
        best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
        for number, (a, b) in enumerate(self.network.links):
            owner_a, owner_b = self.owner[a], self.owner[b]
            if owner_a != owner_b and owner_a >= 0 and owner_b >= 0:
                entry = (self.cost[a] + self.prices[number] + self.cost[b], (a, b))
                if (owner_a, owner_b) not in best or entry < best[owner_a, owner_b]:
                    best[owner_a, owner_b] = entry
        adjacent: list[list[tuple[int, float, tuple[int, int]]]] = [[] for _ in range(self.network.ends)]
        for (owner_a, owner_b), (cost, place) in best.items():
            adjacent[owner_a].append((owner_b, cost, place))
        return adjacent

    def path(self, a: int, b: int) -> Path:
        """Return the path from the owner of `a` over the link a -> b to the owner of `b`."""
        front, back = [a], [b]
        for side in (front, back):
            while self.previous[side[-1]] != side[-1]:
                side.append(self.previous[side[-1]])
        return (*reversed(front), *back)
