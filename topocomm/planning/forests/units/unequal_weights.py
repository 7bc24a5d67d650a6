"""Trees of unlike weights that share no unit of bandwidth, each from its own root to all ranks.

No theorem says that they exist where flows do: what a heavy tree leaves of a link may be too little for any other. So
of every way only as much counts as weights of trees that still need it add up to, and an edge is taken if by that count
every rank can still be reached by every tree. Ways that are used up exactly come first. What is found is right; where
nothing is found there may be trees all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topocomm.planning.forests.tree import Edge, Tree, Way
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_graph import Units


def unlike_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Trees of these (root, units); None where they are not found."""
    growing = _Growing(split, wanted)
    todo = sorted(range(len(wanted)), key=lambda number: -wanted[number][1])
    while todo:
        if not all(growing.grow(number) for number in todo):
            return None
        todo = [number for number in todo if len(growing.trees[number]) < split.network.ends - 1]
    return [Tree(root, edges) for (root, _), edges in zip(wanted, growing.trees, strict=True)]


class _Growing:
    """Trees under way, and what is left of the ways between the ranks."""

    def __init__(self, split: Split, wanted: Sequence[tuple[int, int]]) -> None:
        self.ends = split.network.ends
        self.sizes = [units for _, units in wanted]
        self.all = sum(self.sizes)
        self.ways = {
            pair: Counter(ways) for pair, ways in split.ways.items() if max(pair) < self.ends and len(ways) > 0
        }
        self.trees: list[list[Edge]] = [[] for _ in wanted]
        self.reached = [[root] for root, _ in wanted]
        self.refused: list[set[tuple[int, int, Way]]] = [set() for _ in wanted]

    def grow(self, number: int) -> bool:
        """Add the lowest edge that leaves enough to all, of those the one that wastes least; False where none does."""
        reached, size = self.reached[number], self.sizes[number]
        for parent in reached:
            near = [
                (left - size, way, child)
                for child in range(self.ends)
                if child not in reached
                for way, left in self._ways(parent, child)
                if left >= size and (parent, child, way) not in self.refused[number]
            ]
            for _, way, child in sorted(near):
                if self._takes(number, Edge(parent, child, way)):
                    return True
        return False

    def _ways(self, a: int, b: int) -> list[tuple[Way, int]]:
        return list(self.ways.get((a, b), {}).items())

    def _takes(self, number: int, edge: Edge) -> bool:
        ways = self.ways[edge.parent, edge.child]
        ways[edge.way] -= self.sizes[number]
        self.reached[number].append(edge.child)
        if self._is_enough():
            self.trees[number].append(edge)
            return True
        ways[edge.way] += self.sizes[number]
        self.reached[number].pop()
        self.refused[number].add((edge.parent, edge.child, edge.way))
        return False

    def _is_enough(self) -> bool:
        """Whether what counts of all ways lets every tree reach every rank."""
        source = self.ends
        units = Units(source + 1 + len(self.trees))
        for number, (size, reached) in enumerate(zip(self.sizes, self.reached, strict=True)):
            units.add(source, source + 1 + number, size)
            for rank in reached:
                units.add(source + 1 + number, rank, self.all)
        sums = [self._sums(rank) for rank in range(self.ends)]
        for (a, b), ways in self.ways.items():
            units.add(a, b, sum([_most(sums[b], left) for left in ways.values()]))
        return all(units.flows(source, rank, self.all) for rank in range(self.ends))

    def _sums(self, rank: int) -> int:
        """What weights of trees that have not come to a rank add up to: the bits of a number."""
        sums = 1
        for size, reached in zip(self.sizes, self.reached, strict=True):
            if rank not in reached:
                sums |= sums << size
        return sums


def _most(sums: int, units: int) -> int:
    """The greatest sum of at most so many units."""
    return (sums & ((2 << units) - 1)).bit_length() - 1
