"""Trees from given roots whose weights have given ratios, in whole units of bandwidth, all as heavy as fits.

Trees of one unit each exist exactly where as many units flow to every rank (Edmonds 1973); forwarding devices are split
off first, as in ForestColl (Zhao et al. 2024). All trees grow in turns, the lowest edge first. An edge is taken if the
units left still let every tree reach every rank (Frank 1978; Berczi, Frank 2008).

Trees of unequal weights may not exist where flows do: what a heavy tree leaves of a link may be too little for others.
So a path counts with the greatest sum of weights, of trees that still need it, that fits. The search may miss trees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.units.splitting import Split, Units, bits

LEAST = 1 / 32
"""Least weight tried, as a part of the bound per tree."""


def trees_in_units(
    network: Network, wanted: Sequence[tuple[int, int]], bound_gb_per_s: float, least_gb_per_s: float = 0.0
) -> list[tuple[float, Tree]]:
    """Return (GB/s, tree) of every (root, units) wanted, as heavy as units allow; empty if none are found.

    Together they carry at most the bound, and must carry the least.
    """
    units = Counter[int]()
    for root, count in wanted:
        units[root] += count
    weight = heaviest(network, units, bound_gb_per_s, least_gb_per_s)
    if not weight:
        return []
    split = Split(network, weight, units, max(count for _, count in wanted))
    trees = (disjoint_trees(split, wanted) if split.take_out() else None) or []
    return [(weight * count, tree) for (_, count), tree in zip(wanted, trees, strict=False)]


def heaviest(network: Network, wanted: dict[int, int], bound_gb_per_s: float, least_gb_per_s: float = 0.0) -> float:
    """Return the GB/s of one unit, with these units by root; 0 where not even the least weight tried fits."""
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
    last = len(options) - 1
    too_heavy = bisect_left(options, True, 1, last, key=lambda weight: not Split(network, weight, wanted).spans())
    return options[too_heavy - 1]


def disjoint_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Return trees of these (root, units); None where they are not found, which trees of one unit each always are."""
    return _Disjoint(split, wanted).grown(list(range(len(wanted))))


def unequal_trees(split: Split, wanted: Sequence[tuple[int, int]]) -> list[Tree] | None:
    """Return trees of these (root, units), units unequal; None where they are not found."""
    return _Unequal(split, wanted).grown(sorted(range(len(wanted)), key=lambda number: -wanted[number][1]))


class _Growth(ABC):
    """Trees that grow: their edges, the ranks that each has reached, and the edges that it cannot have."""

    def __init__(self, split: Split, wanted: Sequence[tuple[int, int]]) -> None:
        self.ends, self.roots = split.network.ends, [root for root, _ in wanted]
        self.sizes = [units for _, units in wanted]
        self.all = sum(self.sizes)
        self.trees: list[list[Edge]] = [[] for _ in wanted]
        self.reached = [[root] for root in self.roots]
        self.refused: list[set[tuple[object, ...]]] = [set() for _ in wanted]

    @abstractmethod
    def grow(self, number: int) -> bool:
        """Add the lowest edge to a tree that leaves enough to all trees; False where none does."""

    def grown(self, todo: list[int]) -> list[Tree] | None:
        """Grow the trees in turns, in this order, until each spans the ranks; None where one cannot."""
        while todo:
            if not all(self.grow(number) for number in todo):
                return None
            todo = [number for number in todo if len(self.trees[number]) < self.ends - 1]
        return [Tree(root, edges) for root, edges in zip(self.roots, self.trees, strict=True)]


class _Disjoint(_Growth):
    """Trees of equal units: the graph has a node per tree behind the source, with arcs to the ranks reached."""

    def __init__(self, split: Split, wanted: Sequence[tuple[int, int]]) -> None:
        super().__init__(split, wanted)
        self.split, self.source = split, self.ends
        self.units = Units(self.ends + 1 + len(wanted))
        for a in range(self.ends):
            for b in bits(split.units.out[a] & ((1 << self.ends) - 1)):
                self.units.add(a, b, split.units.left[a][b])
        for number, (root, units) in enumerate(wanted):
            self.units.add(self.source, self._node(number), units)
            self.units.add(self._node(number), root, self.all)

    def grow(self, number: int) -> bool:
        reached = self.reached[number]
        inside = sum([1 << rank for rank in reached])
        for parent in reached:
            for child in bits(self.units.out[parent] & ~inside & ((1 << self.ends) - 1)):
                if (parent, child) not in self.refused[number] and self._try_edge(number, parent, child):
                    reached.append(child)
                    return True
        return False

    def _try_edge(self, number: int, parent: int, child: int) -> bool:
        """Add the edge if it leaves enough; else refuse it for good, since units only become fewer."""
        size = self.sizes[number]
        if self.units.left[parent][child] >= size:
            self.units.add(parent, child, -size)
            self.units.add(self._node(number), child, self.all)
            if self.units.flows(self.source, child, self.all):
                paths = self.split.paths[parent, child]
                counts = Counter(paths)
                paths.sort(key=lambda path: (-counts[path], path))
                self.trees[number].append(Edge(parent, child, paths[0]))  # the path of most units
                del paths[:size]
                return True
            self.units.add(parent, child, size)
            self.units.add(self._node(number), child, -self.all)
        self.refused[number].add((parent, child))
        return False

    def _node(self, number: int) -> int:
        return self.source + 1 + number


class _Unequal(_Growth):
    """Trees of unequal units, and the units left of each path between ranks."""

    def __init__(self, split: Split, wanted: Sequence[tuple[int, int]]) -> None:
        super().__init__(split, wanted)
        self.paths = {pair: Counter(paths) for pair, paths in split.paths.items() if max(pair) < self.ends and paths}

    def grow(self, number: int) -> bool:
        """Add an edge as `_Growth` says; of the lowest, one that wastes least."""
        reached, size = self.reached[number], self.sizes[number]
        for parent in reached:
            candidates = [
                (left - size, path, child)
                for child in range(self.ends)
                if child not in reached
                for path, left in self.paths.get((parent, child), {}).items()
                if left >= size and (parent, child, path) not in self.refused[number]
            ]
            for _, path, child in sorted(candidates):
                if self._try_edge(number, Edge(parent, child, path)):
                    return True
        return False

    def _try_edge(self, number: int, edge: Edge) -> bool:
        paths = self.paths[edge.parent, edge.child]
        paths[edge.path] -= self.sizes[number]
        self.reached[number].append(edge.child)
        if self._is_enough():
            self.trees[number].append(edge)
            return True
        paths[edge.path] += self.sizes[number]
        self.reached[number].pop()
        self.refused[number].add((edge.parent, edge.child, edge.path))
        return False

    def _is_enough(self) -> bool:
        """Whether the units that count let every tree reach every rank."""
        source = self.ends
        units = Units(source + 1 + len(self.trees))
        weighed = list(zip(self.sizes, self.reached, strict=True))
        for node, (size, reached) in enumerate(weighed, source + 1):
            units.add(source, node, size)
            for rank in reached:
                units.add(node, rank, self.all)
        sums = [1] * self.ends  # by rank, all sums of weights of trees that have not reached it, as bits of a number
        for rank, size in ((r, s) for r in range(self.ends) for s, own in weighed if r not in own):
            sums[rank] |= sums[rank] << size
        for (a, b), paths in self.paths.items():
            # of each path, the greatest of the sums that fits
            units.add(a, b, sum([(sums[b] & ((2 << left) - 1)).bit_length() - 1 for left in paths.values()]))
        return all(units.flows(source, rank, self.all) for rank in range(self.ends))
