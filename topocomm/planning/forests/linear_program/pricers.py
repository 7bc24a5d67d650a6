"""The columns of each collective, trees or pairs of trees, and the cheapest of them under prices on the links.

A row is an orbit of links: with a group of symmetries one tree stands for its images, whose loads spread evenly over
the orbit. Depth has a price at first: a low tree is taken if it improves the packing at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from topocomm.planning.forests.interval import IntervalPlan, IntervalTable, Step
from topocomm.planning.forests.linear_program.arborescence import cheapest_arborescence, cheapest_costs
from topocomm.planning.forests.linear_program.closure import Closure, Relays
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.linear_program.packing import MANY_ROWS, Column, Pair, Pricer
from topocomm.planning.forests.linear_program.spanning import Spanner
from topocomm.planning.forests.linear_program.symmetry import Symmetry
from topocomm.planning.forests.tree import Edge, Tree

DEPTH_PRICES = (0.3, 0.1, 0.03, 0.01, 1e-3, 0.0)
"""Prices of an edge between an edge and the root, as parts of the mean price of an edge, in the order tried."""
EXACT = (0.0,)
"""The cheapest tree whatever its height."""
HEIGHTS = (3, 4, 6, None)
"""Limits on the height of undirected trees; the next holds when no tree of the last improves the packing. Programs of
many rows have none, but give every second tree a higher price of depth."""
FEW_ROOTS = 8
"""Roots from which undirected trees grow in one turn; with more roots of a gather fewer prices of depth are tried."""


class UndirectedTrees(Pricer):
    """Allreduce where every link has its equal in the other direction.

    The mean of a packing and its reverse is a packing, so reduce trees and broadcast trees may be each other's reverse:
    a column is an undirected spanning tree that loads both directions alike.
    """

    def __init__(self, symmetry: Symmetry) -> None:
        network, orbits = symmetry.network, symmetry.orbit_of_link
        both = np.minimum(orbits, orbits[network.reverse])
        row = np.unique(both, return_inverse=True)[1].astype(np.int64)
        super().__init__(network, row, np.bincount(row, weights=network.gb_per_s) / 2)
        self._spanner = Spanner(network)
        many = self.links > MANY_ROWS
        self._heights = [None] if many else list(HEIGHTS)
        self._roots = 1 if many else FEW_ROOTS
        self._depth_prices = [(0.03, 0.0), (0.3, 0.0)] if many else [DEPTH_PRICES]

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """Return the cost of the least spanning tree, and low trees from the roots of this turn."""
        link_prices, ends = prices[self.row], self.network.ends
        roots = [(turn * self._roots + i) % ends for i in range(min(self._roots, ends))]
        _, least = self._spanner.tree(link_prices, roots[0], 0.0)
        depth_prices = self._depth_prices[turn % len(self._depth_prices)]
        return least, (self._offers(link_prices, root, least / max(ends - 1, 1), depth_prices) for root in roots)

    def relax(self) -> bool:
        """Raise the limit on the height; False where there is none."""
        if len(self._heights) == 1:
            return False
        del self._heights[0]
        return True

    def _offers(self, link_prices: Floats, root: int, mean: float, depth_prices: Sequence[float]) -> Iterator[Column]:
        most = self._heights[0]
        for depth_price in depth_prices:
            tree, _ = self._spanner.tree(link_prices, root, depth_price * mean)
            if most is None or tree.least_height <= most:
                rows, loads = _loads(self.row, [tree.links(self.network)])
                yield Column(rows, loads, Pair(tree, tree))


class RootedTrees(Pricer):
    """Columns that are single trees from given roots, with one row per orbit of links."""

    def __init__(self, symmetry: Symmetry, ports: int = 0) -> None:
        row, capacity = _directed_rows(symmetry)
        self._port_loads = port_loads(symmetry.network, len(capacity)) if ports else NO_PORT_LOADS
        fastest = float(symmetry.network.gb_per_s.max())
        capacity = np.append(capacity, np.full(2 * symmetry.network.ends if ports else 0, ports * fastest))
        super().__init__(symmetry.network, row, capacity)
        self._growing = Growing(symmetry.network)

    def link_prices(self, prices: Floats) -> Floats:
        """Return the price of every link, with that of the ports that a message holds on it."""
        rows, links, loads = self._port_loads
        own: Floats = prices[self.row] + np.bincount(links, prices[rows] * loads, len(self.row))
        return own

    def column(self, tree: Tree) -> Column:
        """Return the column of a tree."""
        used = tree.links(self.network)
        rows, links, loads = self._port_loads
        load = np.bincount(self.row[used], minlength=len(self.capacity)).astype(np.float64)
        load += np.bincount(rows, np.bincount(used, minlength=len(self.row))[links] * loads, len(load))
        held = np.flatnonzero(load)
        return Column(held, load[held], Pair(None, tree))

    def _offers(self, root: int, mean: float, depth_prices: Sequence[float]) -> Iterator[Column]:
        for depth_price in depth_prices:
            yield self.column(self._growing.tree(root, depth_price * mean))


class OutTrees(RootedTrees):
    """Broadcast trees from one root; on the transposed network, reduce trees."""

    def __init__(self, symmetry: Symmetry, root: int, ports: int = 0) -> None:
        super().__init__(symmetry, ports)
        self.root = root

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """Return the cost of the cheapest tree, that tree, and low ones."""
        self._growing.search(self.link_prices(prices))
        least = self._growing.cost(self.root)
        mean = least / max(self.network.ends - 1, 1)
        return least, (self._offers(self.root, mean, depth_prices) for depth_prices in (EXACT, DEPTH_PRICES))


class Gathers(RootedTrees):
    """Allgather: broadcast trees from every root, which carry its share; transposed, reduce_scatter.

    One more row a root ties its trees to its share of the payload; the first column is the payload.
    """

    def __init__(self, symmetry: Symmetry, shares: Sequence[float], ports: int = 0) -> None:
        super().__init__(symmetry, ports)
        orbits = [sorted(set(symmetry.elements[:, root].tolist())) for root in symmetry.roots]
        share_of = {
            root: sum(shares[rank] for rank in orbit) for root, orbit in zip(symmetry.roots, orbits, strict=True)
        }
        self.shares: dict[int, float] = {root: share for root, share in share_of.items() if share}
        self._depth_prices = DEPTH_PRICES if len(self.shares) <= FEW_ROOTS else (DEPTH_PRICES[0], DEPTH_PRICES[2], 0.0)
        self.capacity = np.concatenate([self.capacity, np.zeros(len(self.shares))])

    def start(self) -> list[Column]:
        """Return the payload, which uses up what the trees of each root carry."""
        rows = self.links + np.arange(len(self.shares))
        return [Column(rows, np.ones(len(rows)))]

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """Return the cost of the cheapest trees of all roots, and trees of each."""
        self._growing.search(self.link_prices(prices))
        costs = self._growing.costs().tolist()
        least: float = sum([share * costs[root] for root, share in self.shares.items()])
        mean = least / max(self.network.ends - 1, 1)
        return least, (self._offers(root, mean, self._depth_prices) for root in self.shares)

    def share(self, column: Column) -> float:
        """Return the share of its root."""
        return self.shares[column.pair.root]

    def total(self, parts: Sequence[tuple[float, Column]]) -> float:
        """Return the least throughput of a root over its share."""
        carried = dict.fromkeys(self.shares, 0.0)
        for weight, column in parts:
            carried[column.pair.root] += weight
        return min(weight / self.shares[root] for root, weight in carried.items())

    def column(self, tree: Tree) -> Column:
        """Return the column of a tree: it gains nothing by itself, but lets the payload grow."""
        links, place = super().column(tree), self.links + list(self.shares).index(tree.root)
        loads = np.append(links.loads, -1 / self.shares[tree.root])
        return Column(np.append(links.rows, place), loads, links.carrier, 0.0)


class DirectedPairs(Pricer):
    """Allreduce where links differ by direction: a reduce tree and a broadcast tree of one root."""

    def __init__(self, symmetry: Symmetry) -> None:
        super().__init__(symmetry.network, *_directed_rows(symmetry))
        self.roots = symmetry.roots
        turned = symmetry.network.transposed()
        self._turned_link = np.array([self.network.index[b, a] for a, b in turned.links], dtype=np.int64)
        self._up, self._down = Growing(turned), Growing(self.network)

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """Return the cost of the cheapest pair over all roots, and pairs of the best two."""
        link_prices = prices[self.row]
        self._down.search(link_prices)
        self._up.search(link_prices[self._turned_link])
        costs = self._up.costs() + self._down.costs()
        best = _cheapest(costs, self.roots, 2)
        least = float(costs[best[0]])
        return least, (self._offers(root, least / max(2 * self.network.ends - 2, 1)) for root in best)

    def _offers(self, root: int, mean: float) -> Iterator[Column]:
        for depth_price in DEPTH_PRICES:
            up = self._up.tree(root, depth_price * mean)
            down = self._down.tree(root, depth_price * mean)
            against = self._turned_link[up.links(self._up.network)]
            rows, loads = _loads(self.row, [against, down.links(self.network)])
            yield Column(rows, loads, Pair(up, down))


class OrderedPairs(Pricer):
    """Operators that do not commute: plans that merge adjacent ranges, then broadcast trees for an allreduce.

    Each range of ranks (all ranks, or hosts) has its cheapest plan; the root folds the results of the ranges. One range
    of all ranks leaves out no plan, but its table has the cube of the ranks. The symmetry maps ranges, (first rank,
    end), onto ranges in order. Without a root it is an allreduce.
    """

    def __init__(self, symmetry: Symmetry, ranges: Sequence[tuple[int, int]], *, root: int | None) -> None:
        super().__init__(symmetry.network, *_directed_rows(symmetry))
        self.ranges = ranges
        self.roots, self.both = (symmetry.roots, True) if root is None else ((root,), False)
        self._closure, self._down = Closure(self.network), Growing(self.network)

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterator[Iterator[Column]]]:
        """Return the cost of the cheapest plan over all roots, and plans of the best four."""
        link_prices = prices[self.row]
        moves = Relays(self._closure.search(link_prices))
        tables = [IntervalTable(moves.costs[low:end, low:end]) for low, end in self.ranges]
        costs = np.zeros(self.network.ends)
        if self.both:
            self._down.search(link_prices)
            costs += self._down.costs()
        for root in self.roots:
            costs[root] += sum([least for least, _ in self._gates(root, moves, tables)])
        best = _cheapest(costs, self.roots, 4)
        return float(costs[best[0]]), (self._offers(root, moves, tables, float(costs[root])) for root in best)

    def _gates(self, root: int, moves: Relays, tables: Sequence[IntervalTable]) -> list[tuple[float, int]]:
        """Return (cost at the root, rank that merges it) of every range's result."""
        gates = []
        for (low, end), table in zip(self.ranges, tables, strict=True):
            costs = table.cost[0, end - low - 1] + moves.costs[low:end, root]
            best = int(np.argmin(costs))
            gates.append((float(costs[best]), low + best))
        return gates

    def _offers(self, root: int, moves: Relays, tables: Sequence[IntervalTable], least: float) -> Iterator[Column]:
        up = self._plan(root, moves, tables)
        links = [link for step in up.steps if step.path for link in pairwise(step.path)]
        going = np.array([self.network.index[link] for link in links], dtype=np.int64)
        if not self.both:
            yield Column(*_loads(self.row, [going]), Pair(up, None))
            return
        mean = least / max(2 * self.network.ends - 2, 1)
        for depth_price in DEPTH_PRICES:
            down = self._down.tree(root, depth_price * mean)
            yield Column(*_loads(self.row, [going, down.links(self.network)]), Pair(up, down))

    def _plan(self, root: int, moves: Relays, tables: Sequence[IntervalTable]) -> IntervalPlan:
        """Return the cheapest plan, every move cut at the ranks that relay it."""
        steps: list[Step] = []

        def move(part: int, source: int, rank: int) -> int:
            for a, b in pairwise(moves.relays(source, rank)):
                steps.append(Step(b, (part,), a, self._closure.path(a, b)))
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
        self._depth_of: dict[int, Floats] = {}
        """By root, the latency to every endpoint over that to the nearest: about the depth."""

    def search(self, prices: Floats) -> None:
        """Use these prices, float64 [links], for the trees that follow."""
        self._costs = self._closure.search(prices)
        self._exact: dict[int, list[int]] = {}

    def costs(self) -> Floats:
        """Return the cost of the cheapest tree from every root, float64 [ends]."""
        costs = cheapest_costs(self._costs)
        assert costs is not None, "the network is connected"
        return costs

    def cost(self, root: int) -> float:
        """Return the cost of the cheapest tree from one root."""
        parents = self._parents(root, 0.0)
        return sum([float(self._costs[parent, child]) for child, parent in enumerate(parents) if parent >= 0])

    def tree(self, root: int, depth_price: float) -> Tree:
        """Return the cheapest tree, with a price on the latency between an edge and the root."""
        children: dict[int, list[int]] = {}
        for child, parent in enumerate(self._parents(root, depth_price)):
            children.setdefault(parent, []).append(child)
        order, edges = [root], []
        for parent in order:
            for child in children.get(parent, ()):
                order.append(child)
                edges.append(Edge(parent, child, self._closure.path(parent, child)))
        return Tree(root, edges)

    def _parents(self, root: int, depth_price: float) -> list[int]:
        if not depth_price and root in self._exact:
            return self._exact[root]
        costs = self._costs
        if depth_price:
            if root not in self._depth_of:
                latency_us = np.array(self.network.hops_from(root)[: self.network.ends])
                positive = latency_us[latency_us > 0]
                self._depth_of[root] = latency_us / max(float(positive.min()), 1e-9) if len(positive) else latency_us
            costs = costs + depth_price * self._depth_of[root][:, None]
        parents = cheapest_arborescence(costs, root)
        assert parents is not None, "the network is connected"
        if not depth_price:
            self._exact[root] = parents
        return parents


PortLoads = tuple[Ints, Ints, Floats]
"""(row of a port, link on which messages hold it, GB/s of the fastest link over that of their route) of each."""
NO_PORT_LOADS: PortLoads = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def port_loads(network: Network, first_row: int) -> PortLoads:
    """Return what messages on each link hold of the ports of endpoints, to send and then to receive."""
    src, dst = np.array(network.links, dtype=np.int64).T
    sides = []
    for own, other, row in ((src, dst, first_row), (dst, src, first_row + network.ends)):
        widest = np.full(len(network.devices), np.inf)
        widest[network.ends :] = 0.0
        for _ in network.devices[network.ends :]:  # GB/s of the best way on to (back from) an endpoint
            wider = widest.copy()
            np.maximum.at(wider, own, np.minimum(network.gb_per_s, widest[other]))
            wider[: network.ends] = np.inf
            if (wider == widest).all():
                break
            widest = wider
        at = np.flatnonzero(own < network.ends)
        rates = np.minimum(network.gb_per_s[at], widest[other[at]])
        sides.append((row + own[at], at, float(network.gb_per_s.max()) / rates))
    rows, links, loads = (np.concatenate(column) for column in zip(*sides, strict=True))
    return rows, links, loads


def _cheapest(costs: Floats, roots: Sequence[int], count: int) -> list[int]:
    """Return the `count` roots of least cost, the lowest first among those equal up to rounding."""
    least = min(costs[root] for root in roots)
    return sorted(roots, key=lambda root: (round(float(costs[root] / least), 9) if least else 0.0, root))[:count]


def _directed_rows(symmetry: Symmetry) -> tuple[Ints, Floats]:
    """Return (row of every link, capacity of every row) with one row per orbit."""
    row = symmetry.orbit_of_link
    return row, np.bincount(row, weights=symmetry.network.gb_per_s).astype(np.float64)


def _loads(row: Ints, used: Sequence[Ints]) -> tuple[Ints, Floats]:
    """Return (rows, uses of each) of these links."""
    load = np.bincount(row[np.concatenate(used)]).astype(np.float64)
    rows = np.flatnonzero(load)
    return rows, load[rows]
