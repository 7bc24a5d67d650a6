"""Trees packed into the ports and links of one of several hosts that are alike, each with a gate to the other hosts.

A tree joins all members of a host and has a share of the value. An allreduce sends it up the tree and down again; at
the gate each host gives every other one its piece of the share, and gets the sums of all pieces. The best shares are a
linear program whose columns are trees with gates (`packing.py`): at prices of ports and links the best is the least
spanning tree, at the cheapest gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.forests.linear_program.packing import Column, Pair, Pricer, pack
from topocomm.planning.forests.pair_loads import PairLoads
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.tree_schedule import whole_rows
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats

ACCURACY, MOST_TURNS = 2e-3, 100
"""Of the program."""
SHARED = 1.05
"""How much longer than one port a link must be busy with messages of all members to be shared."""
MOST_SWEEPS, STEEP, GAIN = 6, 12, 1e-6
"""How often all trees of equal shares are exchanged at most; power of loads that count; and the least gain."""
DEPTH_PRICES = (0.1, 0.01, 0.0)
"""Prices of an edge between an edge and the gate, in mean edges, in the order tried: low trees end sooner."""
Flags = NDArray[np.bool_]
GATES = 2
"""How many of the cheapest gates are tried in a turn."""


class HostLoads:
    """What messages of the whole value hold in a host, in the time of a value at the fastest rate.

    Attributes:
        members, hosts: Ranks of a host; number of hosts.
        fastest: That rate, in GB/s.
        inside: float64 [members, members, rows]: of a message from one member to another; infinite without a route.
        across: float64 [members, rows]: of one that a member sends to its like in another host while it gets one.
        latency_us: float64 [members, members]; of those across on the diagonal.
    """

    def __init__(self, endpoints: Sequence[str], paths: PathFinder, members: int) -> None:
        self.members, self.hosts = members, len(endpoints) // members
        window = endpoints[: 2 * members]
        src, dst = np.divmod(np.arange(members * members), members)
        dst = np.where(src == dst, dst + members, dst) if self.hosts > 1 else dst
        used = np.flatnonzero(src != dst)
        routes = paths.routes(window, src[used], dst[used])
        pairs = PairLoads(routes, (src[used] % members, dst[used] % members), paths, self.hosts, 1)
        self.fastest = pairs.fastest
        loads = np.zeros((members * members, pairs.rows))
        self.latency_us = np.zeros((members, members))
        for number, pair in enumerate(used.tolist()):
            if not pairs.usable([number]):
                loads[pair] = inf
                continue
            rows, times = zip(*pairs.loads([number]), strict=True)
            loads[pair, list(rows)] = times
            self.latency_us.ravel()[pair] = routes.latency_us[number] + routes.gap_us[number]
        self.inside = loads.reshape(members, members, -1)
        own = np.arange(members)
        self.across = self.inside[own, own]
        self.inside[own, own] = inf

    @property
    def symmetric(self) -> bool:
        """Whether messages of a host hold as much one way as the other."""
        held = (self.inside[:, :, : 2 * self.members].max(axis=2), self.inside.sum(axis=2))
        return all(bool(np.allclose(each, each.T)) for each in held)

    @property
    def gates_share(self) -> bool:
        """Whether links to other hosts serve several members, so that their ports wait for each other."""
        usable = self.across[np.isfinite(self.across).all(axis=1)]
        ports = 2 * self.members
        shared = float(usable[:, ports:].sum(axis=0).max(initial=0.0))
        return shared > SHARED * float(usable[:, :ports].max(initial=0.0))


@dataclass(frozen=True)
class HostForest:
    """The best trees of a host, and shares of the value.

    Attributes:
        parts: (share, tree from its gate), the greatest first; shares sum to 1.
        gb_per_s: Of payload, what they carry.
        most_gb_per_s: What no allreduce exceeds, by `prices` of ports and links.
    """

    parts: tuple[tuple[float, Tree], ...]
    gb_per_s: float
    most_gb_per_s: float
    prices: Floats


def host_forest(loads: HostLoads) -> HostForest | None:
    """Return the best trees of an allreduce; None where members have no routes to each other or to other hosts."""
    pricer = _SpanningTrees(loads)
    if not pricer.connected:
        return None
    packing = pack(pricer, ACCURACY, MOST_TURNS)
    total = sum(weight for weight, _ in packing.parts)
    parts = tuple((weight / total, column.pair.tree) for weight, column in packing.parts)
    return HostForest(parts, total, packing.bound_gb_per_s, packing.prices)


def equal_trees(loads: HostLoads, forest: HostForest, count: int) -> list[Tree]:
    """Return so many trees of equal shares, by which the busiest port or link is about as busy as by the best shares.

    Each tree in turn is exchanged for the cheapest one at prices that rise steeply with what the others load.
    """
    pricer = _SpanningTrees(loads)
    shares = whole_rows(count, [share for share, _ in forest.parts])
    trees = [tree for number, (_, tree) in zip(shares, forest.parts, strict=True) for _ in range(number)]
    own = np.array([pricer.load(tree) for tree in trees])
    total, changed = own.sum(axis=0), True
    least = norm(total)
    for _ in range(MOST_SWEEPS if count > 1 else 0):
        if not changed:
            break
        changed = False
        for number in range(count):
            rest = total - own[number]
            for tree in pricer.trees((rest / rest.max()) ** (STEEP - 1)):
                load = pricer.load(tree)
                if norm(rest + load) < least * (1 - GAIN):
                    least, trees[number], own[number], total = norm(rest + load), tree, load, rest + load
                    changed = True
                    break
    return trees


def norm(load: Floats, steep: int = STEEP) -> float:
    """About the greatest, more where several are as great."""
    most = float(load.max())
    return float(most * ((load / most) ** steep).sum() ** (1 / steep))


def with_neighbours(inside: Floats, gates: Floats) -> tuple[Floats, Floats]:
    """Add a row for every ordered pair of members whose messages to other hosts share a link.

    While one of them sends over it the other cannot, and neither can a message from one to the other go: all these go
    one after the other, which no port or link says.
    """
    members = len(gates)
    used = gates[:, 2 * members :] > 0
    shared = (used[:, None] & used[None]).any(axis=2) & ~np.eye(members, dtype=bool)
    pairs = np.argwhere(shared)
    rows, own = np.zeros((members, members, len(pairs))), np.zeros((members, len(pairs)))
    for number, (src, dst) in enumerate(pairs.tolist()):
        rows[src, dst, number] = inside[src, dst].max()
        own[[src, dst], number] = gates[[src, dst]].max(axis=1)
    return np.concatenate([inside, rows], axis=2), np.concatenate([gates, own], axis=1)


class _SpanningTrees(Pricer):
    """Undirected trees with gates: both directions of every edge, and what passes the gate."""

    def __init__(self, loads: HostLoads) -> None:
        both = loads.inside + loads.inside.swapaxes(0, 1)
        self._both = np.where(np.isfinite(both), both, 0.0)
        self._joined: Flags = np.array(np.isfinite(both).all(axis=2))
        rows = both.shape[2]
        self._gates: Floats = np.zeros((loads.members, rows))
        """What passes each gate of a value: its pieces to all other hosts, and their sums."""
        if loads.hosts > 1:
            self._gates = loads.across * (2 * (loads.hosts - 1) / loads.hosts)
        self._open: Flags = np.array(np.isfinite(self._gates).all(axis=1))
        self.capacity, self.links = np.full(rows, loads.fastest), rows

    @property
    def connected(self) -> bool:
        """Whether there are trees, and gates."""
        near = np.array(self._joined | np.eye(len(self._joined), dtype=np.bool_))
        for _ in near:
            near = near @ near
        return bool(near.all() and self._open.any())

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterable[Iterable[Column]]]:
        """Return the cost of the least tree at the cheapest gate, and low trees from a few gates."""
        costs, gate_costs = self._costs(prices)
        gates = np.argsort(np.round(gate_costs / prices.sum(), 12), kind="stable")
        gates = np.roll(gates, -turn) if gate_costs.min() == gate_costs.max() else gates[: int(self._open.sum())]
        first, least = grown_tree(costs, int(gates[0]), 0.0)
        mean = least / max(1, len(first.edges))
        offers = (self._offers(costs, gate, mean) for gate in gates[:GATES].tolist())
        return least + float(gate_costs.min()), offers

    def trees(self, prices: Floats) -> Iterator[Tree]:
        """Yield low trees and the least one, at the cheapest gate."""
        costs, gates = self._costs(prices)
        mean = float(np.median(costs[self._joined]))
        for depth_price in DEPTH_PRICES:
            yield grown_tree(costs, int(gates.argmin()), depth_price * mean)[0]

    def load(self, tree: Tree) -> Floats:
        """Return what the whole value along a tree loads, float64 [rows]."""
        load: Floats = self._gates[tree.root].copy()
        for parent, child, _ in tree.edges:
            load += self._both[parent, child]
        return load

    def _costs(self, prices: Floats) -> tuple[Floats, Floats]:
        """(cost of every pair both ways, of every gate), infinite without a route."""
        gates: Floats = np.where(self._open[:, None], self._gates, 0.0) @ prices
        gates[~self._open] = inf
        return np.where(self._joined, self._both @ prices, inf), gates

    def _offers(self, costs: Floats, gate: int, mean: float) -> Iterator[Column]:
        for depth_price in DEPTH_PRICES:
            tree = grown_tree(costs, gate, depth_price * mean)[0]
            load = self.load(tree)
            rows = np.flatnonzero(load)
            yield Column(rows, load[rows], Pair(tree, tree))


def grown_tree(costs: Floats, root: int, depth_price: float) -> tuple[Tree, float]:
    """Return (tree grown from the root, its cost without the price of depth); 0 gives the least (Prim 1957)."""
    left = set(range(len(costs))) - {root}
    price = costs.tolist()
    best = {member: (price[root][member], root) for member in left}
    depth, edges, cost = {root: 0}, list[Edge](), 0.0
    while left:
        child = min(left, key=lambda member: (best[member], member))
        key, parent = best[child]
        left.remove(child)
        depth[child] = depth[parent] + 1
        cost += key - depth_price * depth[parent]
        edges.append(Edge(parent, child, (parent, child)))
        for other in left:
            best[other] = min(best[other], (price[child][other] + depth_price * depth[child], child))
    return Tree(root, edges), cost
