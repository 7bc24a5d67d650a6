"""What is packed for each collective: trees or pairs of trees, and the cheapest of them under prices on the links.

A row is an orbit of links: with a group of symmetries one template stands for its images, whose loads spread evenly
over the orbit. Depth is dear at first: a tree of low height is taken if it improves the packing at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from topocomm.planning.forests.interval import IntervalPlan, IntervalTable, Step
from topocomm.planning.forests.linear_program.arborescence import cheapest_arborescence, cheapest_costs
from topocomm.planning.forests.linear_program.closure import Closure, Relays
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.linear_program.packing import MANY_ROWS, Column, Pair
from topocomm.planning.forests.linear_program.spanning import Spanner
from topocomm.planning.forests.linear_program.symmetry import Symmetry
from topocomm.planning.forests.tree import Edge, Tree, Way

DEPTH_PRICES = (0.3, 0.1, 0.03, 0.01, 1e-3, 0.0)
"""Price of one edge between an edge and the root, as a part of the mean edge of a tree: the first that improves."""
EXACT = (0.0,)
HEIGHTS = (3, 4, 6, None)
"""Trees without root are at first held to a height; the limit is raised when no such tree improves the packing. In
programs of many rows they are not, but every second tree prefers to be low."""
FEW_ROOTS = 8
"""Roots from which trees without root are grown in one turn; of more shares than these fewer depths are tried."""


class _Sums:
    """Columns whose payload adds up, and none from the start."""

    row: Ints
    capacity: Floats
    links: int

    def _use(self, row: Ints, capacity: Floats) -> None:
        """Take one row per class of links and no others."""
        self.row, self.capacity, self.links = row, capacity, len(capacity)

    def start(self) -> list[Column]:
        """None."""
        return []

    def relax(self) -> bool:
        """Offers are not limited."""
        return False

    def share(self, column: Column) -> float:
        """All of it."""
        return 1.0

    def total(self, parts: Sequence[tuple[float, Column]]) -> float:
        """The sum of the weights."""
        return sum(weight for weight, _ in parts)


class UndirectedTrees(_Sums):
    """Allreduce where every link has its equal in the other direction.

    Reduce trees and broadcast trees may then be each other's reverse (the mean of a packing and its reverse is one),
    so a column is a spanning tree without direction or root that loads both directions alike.
    """

    def __init__(self, symmetry: Symmetry) -> None:
        network = symmetry.network
        self.network = network
        orbits = symmetry.orbit_of_link
        both = np.minimum(orbits, orbits[network.reverse])
        row = np.unique(both, return_inverse=True)[1].astype(np.int64)
        self._use(row, np.bincount(row, weights=network.gb_per_s) / 2)
        self._spanner = Spanner(network)
        many = self.links > MANY_ROWS
        self._heights = [None] if many else list(HEIGHTS)
        self._roots = 1 if many else FEW_ROOTS
        self._depth_prices = [(0.03, 0.0), (0.3, 0.0)] if many else [DEPTH_PRICES]

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """The least spanning tree, and trees of low height grown from the roots whose turn it is."""
        dear, ends = prices[self.row], self.network.ends
        roots = [(turn * self._roots + i) % ends for i in range(min(self._roots, ends))]
        _, least = self._spanner.tree(dear, roots[0], 0.0)
        depth_prices = self._depth_prices[turn % len(self._depth_prices)]
        return least, (self._offers(dear, root, least / max(ends - 1, 1), depth_prices) for root in roots)

    def relax(self) -> bool:
        """Allow higher trees; False where any height is allowed already."""
        if len(self._heights) == 1:
            return False
        del self._heights[0]
        return True

    def _offers(self, dear: Floats, root: int, mean: float, depth_prices: Sequence[float]) -> Iterator[Column]:
        most = self._heights[0]
        for depth_price in depth_prices:
            tree, _ = self._spanner.tree(dear, root, depth_price * mean)
            if most is None or tree.at(tree.centres()[0]).height <= most:
                rows, loads = _loads(self.row, [tree.links(self.network)])
                yield Column(rows, loads, Pair(tree, tree))


class OutTrees(_Sums):
    """One broadcast tree from one root; of the transposed network, one reduce tree."""

    def __init__(self, symmetry: Symmetry, root: int) -> None:
        self.network, self.root = symmetry.network, root
        self._use(*_directed_rows(symmetry))
        self._growing = Growing(symmetry.network)

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """The cheapest arborescence, and such of low height."""
        self._growing.search(prices[self.row])
        least = self._growing.cost(self.root)
        mean = least / max(self.network.ends - 1, 1)
        return least, (self._offers(mean, depth_prices) for depth_prices in (EXACT, DEPTH_PRICES))

    def column(self, tree: Tree) -> Column:
        """The column of a tree."""
        return Column(*_loads(self.row, [tree.links(self.network)]), Pair(None, tree))

    def _offers(self, mean: float, depth_prices: Sequence[float]) -> Iterator[Column]:
        for depth_price in depth_prices:
            yield self.column(self._growing.tree(self.root, depth_price * mean))


class Gathers:
    """Allgather: broadcast trees from every root, which together carry the root's share; transposed: reduce_scatter.

    A row more for every root holds its trees to its share of the payload; the first column is the payload.
    """

    def __init__(self, symmetry: Symmetry, shares: Sequence[float]) -> None:
        self.network = symmetry.network
        self.row, capacity = _directed_rows(symmetry)
        self.links = len(capacity)
        orbits = [sorted(set(symmetry.elements[:, root].tolist())) for root in symmetry.roots]
        found = {root: sum(shares[rank] for rank in orbit) for root, orbit in zip(symmetry.roots, orbits, strict=True)}
        self.shares: dict[int, float] = {root: share for root, share in found.items() if share}
        self._depth_prices = DEPTH_PRICES if len(self.shares) <= FEW_ROOTS else (DEPTH_PRICES[0], DEPTH_PRICES[2], 0.0)
        self.capacity = np.concatenate([capacity, np.zeros(len(self.shares))])
        self._growing = Growing(symmetry.network)

    def start(self) -> list[Column]:
        """The payload, which every root's trees must carry."""
        rows = self.links + np.arange(len(self.shares))
        return [Column(rows, np.ones(len(rows)))]

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """The cheapest arborescence of every root."""
        self._growing.search(prices[self.row])
        costs = self._growing.costs().tolist()
        least: float = sum([share * costs[root] for root, share in self.shares.items()])
        mean = least / max(self.network.ends - 1, 1)
        return least, (self._offers(root, mean) for root in self.shares)

    def relax(self) -> bool:
        """Offers are not limited."""
        return False

    def share(self, column: Column) -> float:
        """That of its root."""
        return self.shares[column.pair.root]

    def total(self, parts: Sequence[tuple[float, Column]]) -> float:
        """What the root that is worst off carries, over its share."""
        carried = dict.fromkeys(self.shares, 0.0)
        for weight, column in parts:
            carried[column.pair.root] += weight
        return min(weight / self.shares[root] for root, weight in carried.items())

    def column(self, tree: Tree) -> Column:
        """The column of a tree of one of the roots: it gains nothing by itself, but lets the payload grow."""
        rows, loads = _loads(self.row, [tree.links(self.network)])
        place = self.links + list(self.shares).index(tree.root)
        return Column(np.append(rows, place), np.append(loads, -1 / self.shares[tree.root]), Pair(None, tree), 0.0)

    def _offers(self, root: int, mean: float) -> Iterator[Column]:
        for depth_price in self._depth_prices:
            yield self.column(self._growing.tree(root, depth_price * mean))


class DirectedPairs(_Sums):
    """Allreduce where links differ by direction: a reduce tree and a broadcast tree of one root, whichever is best."""

    def __init__(self, symmetry: Symmetry) -> None:
        self.network, self.roots = symmetry.network, symmetry.roots
        self._use(*_directed_rows(symmetry))
        turned = self.network.transposed()
        self._turned_link = np.array([self.network.index[b, a] for a, b in turned.links], dtype=np.int64)
        self._up, self._down = Growing(turned), Growing(self.network)

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """The cheapest pairs over all roots."""
        dear = prices[self.row]
        self._down.search(dear)
        self._up.search(dear[self._turned_link])
        costs = self._up.costs() + self._down.costs()
        best = _cheapest(costs, self.roots, 2)
        least = float(costs[best[0]])
        return least, (self._offers(root, least / max(2 * self.network.ends - 2, 1)) for root in best)

    def _offers(self, root: int, mean: float) -> Iterator[Column]:
        for depth_price in DEPTH_PRICES:
            up = self._up.tree(root, depth_price * mean)
            down = self._down.tree(root, depth_price * mean)
            against = _against([way for _, _, way in up.edges], self.network)
            rows, loads = _loads(self.row, [against, down.links(self.network)])
            yield Column(rows, loads, Pair(up, down))


class OrderedPairs(_Sums):
    """An operator that does not commute: plans that merge adjacent ranges only, then broadcast trees if asked.

    Inside each range of ranks given (all ranks, or hosts) the cheapest plan of all; the ranges' results go to the root
    on their own, which folds them. One range of all ranks leaves out nothing, but its table has the cube of the ranks.
    """

    def __init__(self, symmetry: Symmetry, ranges: Sequence[tuple[int, int]], *, root: int | None) -> None:
        """Allreduce over any root; with a root given, reduce to it. The group must map ranges onto ranges in order."""
        self.network, self.ranges = symmetry.network, ranges
        self.roots, self.both = (symmetry.roots, True) if root is None else ((root,), False)
        self._use(*_directed_rows(symmetry))
        self._closure, self._down = Closure(self.network), Growing(self.network)

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """The cheapest plans over all roots."""
        dear = prices[self.row]
        moves = Relays(self._closure.search(dear))
        tables = [IntervalTable(moves.costs[low:end, low:end]) for low, end in self.ranges]
        costs = np.zeros(self.network.ends)
        if self.both:
            self._down.search(dear)
            costs += self._down.costs()
        for root in self.roots:
            costs[root] += sum([least for least, _ in self._gates(root, moves, tables)])
        best = _cheapest(costs, self.roots, 4)
        return float(costs[best[0]]), (self._offers(root, moves, tables, float(costs[root])) for root in best)

    def _gates(self, root: int, moves: Relays, tables: Sequence[IntervalTable]) -> list[tuple[float, int]]:
        """(cost, rank where it is put together) of every range's result at the root."""
        found = []
        for (low, end), table in zip(self.ranges, tables, strict=True):
            costs = table.cost[0, end - low - 1] + moves.costs[low:end, root]
            best = int(np.argmin(costs))
            found.append((float(costs[best]), low + best))
        return found

    def _offers(self, root: int, moves: Relays, tables: Sequence[IntervalTable], least: float) -> Iterator[Column]:
        up = self._plan(root, moves, tables)
        links = [link for step in up.steps if step.way for link in pairwise(step.way)]
        going = np.array([self.network.index[link] for link in links], dtype=np.int64)
        if not self.both:
            yield Column(*_loads(self.row, [going]), Pair(up, None))
            return
        mean = least / max(2 * self.network.ends - 2, 1)
        for depth_price in DEPTH_PRICES:
            down = self._down.tree(root, depth_price * mean)
            yield Column(*_loads(self.row, [going, down.links(self.network)]), Pair(up, down))

    def _plan(self, root: int, moves: Relays, tables: Sequence[IntervalTable]) -> IntervalPlan:
        """The cheapest plan with every move cut at the ranks that relay it."""
        steps: list[Step] = []

        def move(part: int, source: int, rank: int) -> int:
            for a, b in pairwise(moves.relays(source, rank)):
                steps.append(Step(b, (part,), a, self._closure.way(a, b)))
                part = len(steps) - 1
            return part

        results = []
        for (low, _), table, (_, gate) in zip(self.ranges, tables, self._gates(root, moves, tables), strict=True):
            number: list[int] = []
            for place, parts, source in table.plan(gate - low)[0]:
                if source < 0:
                    steps.append(Step(low + place, tuple(number[part] for part in parts)))
                    number.append(len(steps) - 1)
                else:
                    number.append(move(number[parts[0]], low + source, low + place))
            results.append(move(number[-1], gate, root))
        return IntervalPlan(root, (*steps, Step(root, tuple(results))))


class Growing:
    """Cheapest arborescences over the endpoints of a network, from any root."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._closure = Closure(network)
        self._far: dict[int, Floats] = {}

    def search(self, prices: Floats) -> None:
        """Take prices, float64 [links], for the trees that follow."""
        self._costs = self._closure.search(prices)
        self._exact: dict[int, list[int]] = {}

    def costs(self) -> Floats:
        """float64 [ends]: cost of the cheapest tree from every root."""
        found = cheapest_costs(self._costs)
        assert found is not None, "the network is connected"
        return found

    def cost(self, root: int) -> float:
        """Cost of the cheapest tree from one root."""
        parents = self._parents(root, 0.0)
        return sum([float(self._costs[parent, child]) for child, parent in enumerate(parents) if parent >= 0])

    def tree(self, root: int, depth_price: float) -> Tree:
        """A tree that is cheap with a price on the latency between an edge and the root; the cheapest if that is 0."""
        children: dict[int, list[int]] = {}
        for child, parent in enumerate(self._parents(root, depth_price)):
            children.setdefault(parent, []).append(child)
        order, edges = [root], []
        for parent in order:
            for child in children.get(parent, ()):
                order.append(child)
                edges.append(Edge(parent, child, self._closure.way(parent, child)))
        return Tree(root, edges)

    def _parents(self, root: int, depth_price: float) -> list[int]:
        if not depth_price and root in self._exact:
            return self._exact[root]
        costs = self._costs + depth_price * self._depth(root)[:, None] if depth_price else self._costs
        parents = cheapest_arborescence(costs, root)
        assert parents is not None, "the network is connected"
        if not depth_price:
            self._exact[root] = parents
        return parents

    def _depth(self, root: int) -> Floats:
        """Latency from the root to every endpoint over that to the nearest: about the edges between."""
        if root not in self._far:
            far = np.array(self.network.hops_from(root)[: self.network.ends])
            near = far[far > 0]
            self._far[root] = far / max(float(near.min()), 1e-9) if len(near) else far
        return self._far[root]


def _cheapest(costs: Floats, roots: Sequence[int], count: int) -> list[int]:
    """So many roots of least cost; what differs by rounding alone is equal, and the lowest root comes first."""
    least = min(costs[root] for root in roots)
    return sorted(roots, key=lambda root: (round(float(costs[root] / least), 9) if least else 0.0, root))[:count]


def _directed_rows(symmetry: Symmetry) -> tuple[Ints, Floats]:
    """(row of every link, capacity of every row) with one row per orbit."""
    row = symmetry.orbit_of_link
    capacity: Floats = np.bincount(row, weights=symmetry.network.gb_per_s).astype(np.float64)
    return row, capacity


def _against(ways: Sequence[Way], network: Network) -> Ints:
    """Numbers of the links in the other direction of the ways, one entry per use."""
    used = [network.index[b, a] for way in ways for a, b in pairwise(way)]
    return np.array(used, dtype=np.int64)


def _loads(row: Ints, used: Sequence[Ints]) -> tuple[Ints, Floats]:
    """(rows, uses of each) of links that are used."""
    load = np.bincount(row[np.concatenate(used)]).astype(np.float64)
    rows = np.flatnonzero(load)
    return rows, load[rows]
