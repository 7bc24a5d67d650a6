"""Trees of ranks for scans: the ranks below each rank, and itself, are neighbours in rank order.

Up the tree every rank sends the fold of these; down it hears what comes before the first of them, and tells each child
what comes before that child's. What nobody needs is not sent: the fold of those that have the last rank, and what comes
before the first. So a chain is a tree in which the parent of each rank is the next one: it sends up alone. Of several
trees for a chunk, one after the other in rank order, each root sends the fold of its tree to the roots of later ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import stable_order

NO_RANK = -1
"""Parent of a root, and what stands for relays that a way has not."""


@dataclass(frozen=True, eq=False)
class ScanTrees:
    """A tree for each chunk.

    Attributes:
        parents: [chunks, ranks]: the parent of each rank, NO_RANK at a root; all chunks have as many.
        up: [chunks, ranks, relays]: ranks that a message to the parent passes on its way, in order, then NO_RANK.
        down: The same of a message from the parent.
    """

    parents: Ints
    up: Ints
    down: Ints

    @cached_property
    def nodes(self) -> Nodes:
        """The ranks of all trees."""
        return Nodes(self.parents)


def straight(parents: Ints) -> ScanTrees:
    """Return the trees in which every message goes straight."""
    none = np.zeros((*parents.shape, 0), np.int64)
    return ScanTrees(parents, none, none)


class Nodes:
    """The ranks of all trees as columns, numbered chunk by chunk, rank by rank.

    Attributes:
        rank, chunk: Of every node.
        parent: Node of its parent, NO_RANK at a root.
        levels: The nodes of each depth, roots first.
        low, high: First and last rank of the tree below each node.
        goes_up: Whether it sends its parent the fold of these: something comes after them.
        hears: Whether its parent tells it what comes before them.
        items: How many values a node folds: its own and those of its children.
        own_item: The place of its own among them.
        item: The place of each node among those of its parent.
        children: All nodes but the roots, by parent and place; those of a node begin at `first_child`.
        roots: Trees of a chunk.
        tells: (root, later root) of all messages between them, [chunks * pairs].
        sends, is_told: Whether a node sends the fold of its tree, up or to later roots; whether earlier roots tell it.
    """

    def __init__(self, parents: Ints) -> None:
        chunks, self.ranks = parents.shape
        self.rank = np.tile(np.arange(self.ranks), chunks)
        self.chunk = np.repeat(np.arange(chunks), self.ranks)
        self.parent = np.where(parents.ravel() == NO_RANK, NO_RANK, self.chunk * self.ranks + parents.ravel())
        self.levels = self._levels()
        self.low, self.high = self.rank.copy(), self.rank.copy()
        for level in reversed(self.levels[1:]):
            np.minimum.at(self.low, self.parent[level], self.low[level])
            np.maximum.at(self.high, self.parent[level], self.high[level])
        inner = self.parent != NO_RANK
        self.goes_up, self.hears = inner & (self.high < self.ranks - 1), inner & (self.low > 0)
        nodes = np.flatnonzero(inner)
        self.children = nodes[stable_order(self.parent[nodes] * self.ranks + self.low[nodes])]
        above = self.parent[self.children]
        self.first_child = np.searchsorted(above, np.arange(len(self.parent)))
        self.items = 1 + np.bincount(above, minlength=len(self.parent))
        earlier = self.rank[self.children] < self.rank[above]
        self.own_item = np.bincount(above, earlier, len(self.parent)).astype(np.int64)
        self.item = np.zeros_like(self.parent)
        self.item[self.children] = np.arange(len(above)) - self.first_child[above] + ~earlier
        roots = self.levels[0].reshape(chunks, -1)
        self.roots = roots.shape[1]
        self.tells = tuple(roots[:, which].ravel() for which in np.triu_indices(self.roots, 1))
        self.sends, self.is_told = self.goes_up.copy(), np.zeros(len(self.parent), bool)
        self.sends[self.tells[0]] = self.is_told[self.tells[1]] = True

    @cached_property
    def sibling_before(self) -> Ints:
        """The child before each of `children`, as a place there; its own where it is the first."""
        places = np.arange(len(self.children))
        first: Ints = self.first_child[self.parent[self.children]]
        return np.maximum(first, places - 1)

    def _levels(self) -> list[Ints]:
        levels, level = [], np.flatnonzero(self.parent == NO_RANK)
        order = stable_order(self.parent - NO_RANK)
        starts = np.searchsorted(self.parent[order], np.arange(len(self.parent) + 1))
        while len(level):
            levels.append(level)
            counts = starts[level + 1] - starts[level]
            first = np.repeat(starts[level] - np.cumsum(counts) + counts, counts)
            level = np.sort(order[first + np.arange(counts.sum())])
        return levels
