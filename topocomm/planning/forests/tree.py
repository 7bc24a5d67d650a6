"""Trees over the ranks, each edge a path through forwarding devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Ints, Network

Path = tuple[int, ...]
"""Device numbers from one endpoint to another, forwarding devices between."""


class Edge(NamedTuple):
    """One edge of a tree, from the parent to the child."""

    parent: int
    child: int
    path: Path


class Tree:
    """A spanning tree as edges, parents before their children.

    In a broadcast values follow the paths of the edges; in a reduce they run against them, over the same devices.
    """

    def __init__(self, root: int, edges: Sequence[Edge]) -> None:
        self.root = root
        self.edges = tuple(edges)

    @cached_property
    def depths(self) -> dict[int, int]:
        """Number of edges between the root and each rank."""
        depths = {self.root: 0}
        for parent, child, _ in self.edges:
            depths[child] = depths[parent] + 1
        return depths

    @property
    def height(self) -> int:
        """Number of edges between the root and the farthest rank."""
        return max(self.depths.values())

    @property
    def least_height(self) -> int:
        """Height of the tree at the best root."""
        return self.at(self.centres()[0]).height

    def links(self, network: Network) -> Ints:
        """Return the number of every link on the paths, int64, one entry per use."""
        used = [network.index[step] for *_, path in self.edges for step in pairwise(path)]
        return np.array(used, dtype=np.int64)

    def at(self, root: int) -> Tree:
        """Return the tree of the same edges at another root."""
        adjacent: dict[int, list[Edge]] = {}
        for parent, child, path in self.edges:
            adjacent.setdefault(parent, []).append(Edge(parent, child, path))
            adjacent.setdefault(child, []).append(Edge(child, parent, path[::-1]))
        edges, reached, queue = [], {root}, [root]
        for rank in queue:
            for edge in adjacent.get(rank, ()):
                if edge.child not in reached:
                    reached.add(edge.child)
                    queue.append(edge.child)
                    edges.append(edge)
        return Tree(root, edges)

    def centres(self) -> tuple[int, ...]:
        """Return the one or two ranks from which the tree has the least height."""
        adjacent: dict[int, list[int]] = {self.root: []}
        for parent, child, _ in self.edges:
            adjacent[parent].append(child)
            adjacent[child] = [parent]
        degree = {rank: len(others) for rank, others in adjacent.items()}
        left, leaves = len(degree), sorted(rank for rank, count in degree.items() if count <= 1)
        while left > 2:
            left -= len(leaves)
            following = []
            for leaf in leaves:
                for neighbour in adjacent[leaf]:
                    degree[neighbour] -= 1
                    if degree[neighbour] == 1:
                        following.append(neighbour)
            leaves = following
        return tuple(sorted(leaves))

    def mapped(self, image: Sequence[int]) -> Tree:
        """Return the image of the tree under a permutation of the devices."""
        edges = [Edge(image[a], image[b], tuple(image[d] for d in path)) for a, b, path in self.edges]
        return Tree(image[self.root], edges)


def without_loops(path: Sequence[int]) -> Path:
    """Return the path without what lies between two visits of one device."""
    short: list[int] = []
    for device in path:
        if device in short:
            del short[short.index(device) :]
        short.append(device)
    return tuple(short)
