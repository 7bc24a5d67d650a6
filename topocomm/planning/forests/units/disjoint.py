"""Trees that share no unit of bandwidth, each from its own root to all ranks (Edmonds 1973).

All trees grow at once, an edge at a time and the lowest first, so that they stay low. An edge is taken if what is left
still lets every rank be reached by every tree that has not come to it: a flow tells (Frank 1978; Berczi, Frank 2008).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topocomm.planning.forests.tree import Edge, Tree, Way
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_graph import Units, bits


def disjoint_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Trees of these (root, units); None where they are not found, which trees of one unit each always are."""
    growing = _Growing(split, wanted)
    ends = split.network.ends
    todo = list(range(len(wanted)))
    while todo:
        if not all(growing.grow(number) for number in todo):
            return None
        todo = [number for number in todo if len(growing.trees[number]) < ends - 1]
    return [Tree(root, edges) for (root, _), edges in zip(wanted, growing.trees, strict=True)]


class _Growing:
    """Trees under way: behind the source a node per tree, with arcs to whom it has reached."""

    def __init__(self, split: Split, wanted: Sequence[tuple[int, int]]) -> None:
        self.split, self.ends = split, split.network.ends
        self.sizes = [units for _, units in wanted]
        self.all = sum(self.sizes)
        self.source = self.ends
        self.units = Units(self.ends + 1 + len(wanted))
        for a in range(self.ends):
            for b in bits(split.units.out[a] & ((1 << self.ends) - 1)):
                self.units.add(a, b, split.units.left[a][b])
        self.trees: list[list[Edge]] = [[] for _ in wanted]
        self.reached: list[list[int]] = [[] for _ in wanted]
        self.refused: list[set[tuple[int, int]]] = [set() for _ in wanted]
        for number, (root, units) in enumerate(wanted):
            self.units.add(self.source, self._node(number), units)
            self._reach(number, root)

    def grow(self, number: int) -> bool:
        """Add the lowest edge that leaves enough to all; False where none does."""
        reached = self.reached[number]
        inside = sum([1 << rank for rank in reached])
        for parent in reached:
            for child in bits(self.units.out[parent] & ~inside & ((1 << self.ends) - 1)):
                if (parent, child) not in self.refused[number] and self._takes(number, parent, child):
                    reached.append(child)
                    return True
        return False

    def _way(self, number: int, parent: int, child: int) -> Way:
        """The way that most units go, taken with as many others as the tree needs."""
        ways = self.split.ways[parent, child]
        counts = Counter(ways)
        ways.sort(key=lambda way: (-counts[way], way))
        way = ways[0]
        del ways[: self.sizes[number]]
        return way

    def _takes(self, number: int, parent: int, child: int) -> bool:
        """Add the edge if it leaves enough; what is refused once is so for good, since less and less is left."""
        size = self.sizes[number]
        if self.units.left[parent][child] >= size:
            self.units.add(parent, child, -size)
            self.units.add(self._node(number), child, self.all)
            if self.units.flows(self.source, child, self.all):
                self.trees[number].append(Edge(parent, child, self._way(number, parent, child)))
                return True
            self.units.add(parent, child, size)
            self.units.add(self._node(number), child, -self.all)
        self.refused[number].add((parent, child))
        return False

    def _reach(self, number: int, rank: int) -> None:
        self.units.add(self._node(number), rank, self.all)
        self.reached[number].append(rank)

    def _node(self, number: int) -> int:
        return self.source + 1 + number
