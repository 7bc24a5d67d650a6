"""Trees from given roots whose weights have given ratios, in whole units of bandwidth, all as heavy as fits.

Trees of one unit each that share no unit exist exactly where the units let all of them flow to every rank (Edmonds
1973); forwarding devices are split off first, as in ForestColl (Zhao et al. 2024). All trees grow at once, an edge at a
time and the lowest first, so that they stay low. An edge is taken if what is left still lets every tree reach every
rank (Frank 1978; Berczi, Frank 2008).

For trees of unequal weights no theorem says that they exist where flows do: what a heavy tree leaves of a link may be
too little for any other. Of every way only as much counts as the weights of trees that still need it can add up to.
What is found is right; where nothing is found, there may be trees all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.tree import Edge, Tree, Way
from topocomm.planning.forests.units.splitting import Split
from topocomm.planning.forests.units.unit_graph import Units, bits

LEAST = 1 / 32
"""Least weight that is tried, as a part of what the bound leaves for each tree."""


def trees_in_units(
    network: Network, wanted: Sequence[tuple[int, int]], bound_gb_per_s: float, least_gb_per_s: float = 0.0
) -> list[tuple[float, Tree]]:
    """(GB/s, tree) of trees whose weights have these ratios, as heavy as units allow; empty where none are found.

    Args:
        network: The machine.
        wanted: (root, units) of every tree.
        bound_gb_per_s: What no trees exceed together.
        least_gb_per_s: What they must carry together to be of use.
    """
    units: dict[int, int] = {}
    for root, count in wanted:
        units[root] = units.get(root, 0) + count
    weight = heaviest(network, units, bound_gb_per_s, least_gb_per_s)
    if not weight:
        return []
    split = Split(network, weight, units, max(count for _, count in wanted))
    trees = (disjoint_trees(split, wanted) if split.take_out() else None) or []
    return [(weight * count, tree) for (_, count), tree in zip(wanted, trees, strict=False)]


def heaviest(network: Network, wanted: dict[int, int], bound_gb_per_s: float, least_gb_per_s: float = 0.0) -> float:
    """GB/s of each of so many trees, by root; 0 where not even the least weight tried fits."""
    count = sum(wanted.values())
    most = bound_gb_per_s / count
    least = max(least_gb_per_s / count, most * LEAST)
    weights = {
        rate / units
        for rate in set(network.gb_per_s.tolist())
        for units in range(max(1, int(rate / most)), min(int(rate / most / LEAST), count) + 1)
    }
    options: list[float] = sorted(weight for weight in weights if least <= weight <= most * (1 + 1e-9))
    if options and Split(network, options[-1], wanted).spans():
        return options[-1]
    if not options or not Split(network, options[0], wanted).spans():
        return 0.0
    low, high = 1, len(options) - 1
    while low < high:
        middle = (low + high) // 2
        if Split(network, options[middle], wanted).spans():
            low = middle + 1
        else:
            high = middle
    return options[low - 1]


class _Growth(Protocol):
    """Trees under way."""

    trees: list[list[Edge]]

    def grow(self, number: int) -> bool:
        """Add an edge to a tree; False where none leaves enough to all."""
        ...


def _grown(growth: _Growth, wanted: Sequence[tuple[int, int]], todo: list[int], ends: int) -> list[Tree] | None:
    """Let the trees grow in turns, in this order, until each spans the ranks; None where one cannot."""
    while todo:
        if not all(growth.grow(number) for number in todo):
            return None
        todo = [number for number in todo if len(growth.trees[number]) < ends - 1]
    return [Tree(root, edges) for (root, _), edges in zip(wanted, growth.trees, strict=True)]


def disjoint_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Return trees of these (root, units); None where they are not found, which trees of one unit each always are."""
    return _grown(_Disjoint(split, wanted), wanted, list(range(len(wanted))), split.network.ends)


def unlike_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Return trees of these (root, units), units unequal; None where they are not found."""
    order = sorted(range(len(wanted)), key=lambda number: -wanted[number][1])
    return _grown(_Unequal(split, wanted), wanted, order, split.network.ends)


class _Disjoint:
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


class _Unequal:
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
