"""Trees over the ranks, each edge a way through forwarding devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Ints, Network

Way = tuple[int, ...]
"""Device numbers from one endpoint to another; what lies between forwards."""


class Edge(NamedTuple):
    """One edge of a tree, from the parent to the child."""

    parent: int
    child: int
    way: Way


class Tree:
    """A spanning tree by its edges, parents before their children; the root is the first parent.

    As a broadcast tree values run along the ways; as a reduce tree against them, over the same devices.
    """

    def __init__(self, root: int, edges: Sequence[Edge]) -> None:
        self.root = root
        self.edges = tuple(edges)

    @cached_property
    def depths(self) -> dict[int, int]:
        """Edges between the root and each rank."""
        found = {self.root: 0}
        for parent, child, _ in self.edges:
            found[child] = found[parent] + 1
        return found

    @property
    def height(self) -> int:
        """Edges on the longest way from the root."""
        return max(self.depths.values())

    def links(self, network: Network) -> Ints:
        """int64: number of every link on the ways, one entry per use."""
        used = [network.index[step] for _, _, way in self.edges for step in pairwise(way)]
        return np.array(used, dtype=np.int64)

    def at(self, root: int) -> Tree:
        """The same edges without direction, hung up at another root."""
        near: dict[int, list[Edge]] = {}
        for parent, child, way in self.edges:
            near.setdefault(parent, []).append(Edge(parent, child, way))
            near.setdefault(child, []).append(Edge(child, parent, way[::-1]))
        edges, seen, queue = [], {root}, [root]
        for rank in queue:
            for edge in near.get(rank, ()):
                if edge.child not in seen:
                    seen.add(edge.child)
                    queue.append(edge.child)
                    edges.append(edge)
        return Tree(root, edges)

    def centres(self) -> tuple[int, ...]:
        """The ranks from which the tree has the least height: one or two."""
        degree = {self.root: 0}
        near: dict[int, list[int]] = {self.root: []}
        for parent, child, _ in self.edges:
            degree[parent] += 1
            degree[child] = 1
            near[parent].append(child)
            near[child] = [parent]
        left, leaves = len(degree), sorted(rank for rank, count in degree.items() if count <= 1)
        while left > 2:
            left -= len(leaves)
            following = []
            for leaf in leaves:
                for other in near[leaf]:
                    degree[other] -= 1
                    if degree[other] == 1:
                        following.append(other)
            leaves = following
        return tuple(sorted(leaves))

    def mapped(self, image: Sequence[int]) -> Tree:
        """The tree under a permutation of the devices."""
        edges = [Edge(image[a], image[b], tuple(image[d] for d in way)) for a, b, way in self.edges]
        return Tree(image[self.root], edges)


def simple(way: Sequence[int]) -> Way:
    """The way without what lies between two visits of one device."""
    found: list[int] = []
    for device in way:
        if device in found:
            del found[found.index(device) :]
        found.append(device)
    return tuple(found)
