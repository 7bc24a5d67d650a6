"""Trees of a reduce or broadcast packed into hosts that are alike, and into the host of the root.

In every other host a tree joins the members to a gate, in the root's host one joins them to the root; a share of the
value passes each host but the root's once in and once out, over its gate. Both kinds share a linear program: the root's
host receives (or sends) at the gates of the others' trees. At prices of ports and links the best tree is a cheapest
arborescence (Edmonds 1967). Trees of equal shares are then exchanged one by one, as those of an allreduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.arborescence import cheapest_arborescence
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.tree_schedule import whole_rows
from topocomm.planning.host_forests.host_packing import GAIN, MOST_SWEEPS, STEEP, Flags, HostLoads, grown_tree, norm
from topocomm.planning.routing.routes import Floats

MOST_ROUNDS = 300
"""Most times that the program is solved."""
FLOOR = 1e-7
"""Least price of a port or link: among trees without a price the one of fewer messages is taken."""
LOW, HEIGHT = 0.3, 0.03
"""Price of an edge between an edge and the root of a low tree, in usual edges; and what a level of all trees costs, as
part of a period: the first slice waits for it."""
IMPROVES = 1e-9
"""Least gain of a tree that is added."""


class RootedTrees(NamedTuple):
    """As many trees of other hosts, from their gates, and of the root's host, from the root: pairs of equal shares."""

    others: list[Tree]
    own: list[Tree]


class RootedPacking:
    """The best trees of both kinds.

    Attributes:
        inside: float64 [members, members, rows]: what a message on the edge from a parent to a child holds.
        gates: float64 [members, 2 rows]: what a value that passes each gate holds in another host, and in the root's.
    """

    def __init__(self, loads: HostLoads, root: int, *, reduces: bool) -> None:
        """Take the member that is the root; messages of a reduce go to the parent."""
        self.reduces = reduces
        self.members, self.rows, self.root = loads.members, loads.across.shape[1], root
        inside = loads.inside.swapaxes(0, 1) if reduces else loads.inside
        self.joined: Flags = np.array(np.isfinite(inside).all(axis=2))
        self.inside = np.where(self.joined[:, :, None], inside, 0.0)
        self.open: Flags = np.array(np.isfinite(loads.across).all(axis=1))
        other = np.where(self.open[:, None], loads.across, 0.0)
        home = other.copy()
        home[:, [2 * member + (not reduces) for member in range(self.members)]] = 0.0  # the root's host passes none on
        self.gates = np.concatenate([other, home], axis=1)

    def trees(self, counts: tuple[int, ...]) -> list[RootedTrees]:
        """Return trees of equal shares, as many pairs as each of `counts`; none where there are no routes."""
        best = self._best()
        return [self._equal(best, count) for count in counts] if all(best) else []

    def load(self, tree: Tree, *, own: bool) -> Floats:
        """Return what the whole value along a tree holds, float64 [2 rows]."""
        load = np.zeros(2 * self.rows) if own else self.gates[tree.root].copy()
        half = load[self.rows :] if own else load[: self.rows]
        for parent, child, _ in tree.edges:
            half += self.inside[parent, child]
        return load

    def _best(self) -> tuple[list[tuple[float, Tree]], list[tuple[float, Tree]]]:
        """(weight, tree) of other hosts and of the root's, the most that both carry."""
        limits = 2 * self.rows
        program = Simplex(np.append(np.ones(limits), [0.0, 0.0]))
        program.add(np.array([limits, limits + 1]), np.ones(2), 1.0)
        trees: list[tuple[bool, Tree]] = []
        known = set[tuple[bool, tuple[Edge, ...], int]]()
        for _ in range(MOST_ROUNDS):
            program.solve()
            prices = np.maximum(program.prices, 0.0)
            added = False
            for own in (False, True):
                tree = min(self.cheapest(prices[:limits] + FLOOR, own=own), key=lambda each: each[0], default=None)
                if tree is None:
                    return [], []
                key, load = (own, tree[1].edges, tree[1].root), self.load(tree[1], own=own)
                if (key not in known and float(load @ prices[:limits]) < prices[limits + own] - IMPROVES) or not trees:
                    known.add(key)
                    rows = np.flatnonzero(load)
                    program.add(np.append(rows, limits + own), np.append(load[rows], -1.0), 0.0)
                    trees.append((own, tree[1]))
                    added = True
            if not added:
                break
        weights = program.weights()
        kinds: tuple[list[tuple[float, Tree]], list[tuple[float, Tree]]] = ([], [])
        for number, (own, found) in enumerate(trees, 1):
            if weights.get(number, 0.0) > 0:
                kinds[own].append((weights[number], found))
        return kinds

    def cheapest(self, prices: Floats, *, own: bool) -> Iterator[tuple[float, Tree, Tree]]:
        """Yield (cost of the cheapest tree, that tree, a low one) from each gate, or from the root."""
        half = prices[self.rows :] if own else prices[: self.rows]
        costs = np.where(self.joined, self.inside @ half, inf)
        mean = float(np.median(costs[self.joined]))
        for root in [self.root] if own else np.flatnonzero(self.open).tolist():
            parents = cheapest_arborescence(costs, root)
            if parents is not None:
                tree = _tree_of(parents, root)
                cost = sum(float(costs[parent, child]) for parent, child, _ in tree.edges)
                low = grown_tree(costs, root, LOW * mean)[0]
                yield cost + (0.0 if own else float(self.gates[root] @ prices)), tree, low

    def _equal(self, best: tuple[list[tuple[float, Tree]], list[tuple[float, Tree]]], count: int) -> RootedTrees:
        """Round the shares, and exchange trees one by one while that helps."""
        chosen: list[_Option] = []
        for own, kind in zip((False, True), best, strict=True):
            for number, (_, tree) in zip(whole_rows(count, [weight for weight, _ in kind]), kind, strict=True):
                chosen += [self._option(tree, own=own)] * number
        total = np.sum([option.load for option in chosen], axis=0)
        for _ in range(MOST_SWEEPS):
            changed = False
            for place, now in enumerate(chosen):
                rest = total - now.load
                prices = (rest / rest.max()) ** (STEEP - 1) + FLOOR
                pool = [tree for _, tree in best[now.own]]
                pool += [tree for each in self.cheapest(prices, own=now.own) for tree in each[1:]]
                options = [now, *(self._option(tree, own=now.own) for tree in pool)]
                merits = [norm(rest + option.load) * (1 + option.tree.height * HEIGHT / count) for option in options]
                better = int(np.argmin(merits))
                if merits[better] < merits[0] * (1 - GAIN):
                    chosen[place], total, changed = options[better], rest + options[better].load, True
            if not changed:
                break
        others, home = ([option.tree for option in chosen if option.own == kind] for kind in (False, True))
        return RootedTrees(others, home)

    def _option(self, tree: Tree, *, own: bool) -> _Option:
        return _Option(own, tree, self.load(tree, own=own))


class _Option(NamedTuple):
    """A tree, whether it is one of the root's host, and what the value along it holds."""

    own: bool
    tree: Tree
    load: Floats


def _tree_of(parents: list[int], root: int) -> Tree:
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        children.setdefault(parent, []).append(child)
    order, edges = [root], list[Edge]()
    for member in order:
        for child in children.get(member, ()):
            edges.append(Edge(member, child, (member, child)))
            order.append(child)
    return Tree(root, edges)
