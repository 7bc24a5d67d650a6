"""The best trees of several kinds, each of which carries the whole value, as one linear program over ports and links.

At prices of ports and links the best tree of a kind is a cheapest arborescence (Edmonds 1967). Trees of equal shares
are then exchanged one by one, while that makes the busiest port or link less busy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.arborescence import cheapest_arborescence
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.forests.tree import Edge, Tree
from topocomm.planning.forests.tree_schedule import whole_rows
from topocomm.planning.host_forests.host_packing import GAIN, MOST_SWEEPS, STEEP, grown_tree, norm
from topocomm.planning.routing.routes import Floats

MOST_ROUNDS = 300
"""Most times that the program is solved."""
FLOOR = 1e-7
"""Least price of a port or link: among trees without a price the one of fewer messages is taken."""
LOW, HEIGHT = 0.3, 0.03
"""Price of an edge between an edge and the root of a low tree, in usual edges; and what a level of all trees costs, as
part of a period: the first slice waits for it."""
STEEPER, MOST_MOVES = 40, 40
"""Power of loads that count where the trees stay; and most shares that move."""
IMPROVES = 1e-9
"""Least gain of a tree that is added."""
Shares = list[tuple[float, Tree]]
"""Weights of trees, and the trees."""


class PairedTrees(NamedTuple):
    """Trees of a value inside its owner's host and inside others, joined at gates, and what goes along them.

    Attributes:
        shares: How many equal ones the value, or a part of it, has.
        own: (number of shares, tree from the owner).
        others: (number of shares, tree from a gate).
        pairs: (number of an own tree, of one of others) of each share, member by member.
    """

    shares: int
    own: list[tuple[int, Tree]]
    others: list[tuple[int, Tree]]
    pairs: list[tuple[int, int]]


class TreeKinds(ABC):
    """What trees of each kind hold, and which are cheapest.

    Attributes:
        kinds: How many there are.
        limits: How many ports and links.
    """

    kinds: int
    limits: int

    @abstractmethod
    def load(self, tree: Tree, kind: int) -> Floats:
        """Return what the whole value along a tree holds, float64 [limits]."""

    @abstractmethod
    def costs(self, prices: Floats, kind: int) -> tuple[Floats, Floats]:
        """Return the costs of edges and of roots at prices float64 [limits], infinite where there is none.

        Those of edges are float64 [members, members], from row to column; those of roots float64 [members].
        """

    def best(self) -> list[Shares]:
        """Return of each kind the (weight, tree) with which all kinds carry most; an empty list where one has none."""
        limits = self.limits
        program = Simplex(np.append(np.ones(limits), np.zeros(self.kinds)))
        program.add(np.arange(limits, limits + self.kinds), np.ones(self.kinds), 1.0)
        trees: list[tuple[int, Tree]] = []
        known = set[tuple[int, tuple[Edge, ...], int]]()
        for _ in range(MOST_ROUNDS):
            program.solve()
            prices = np.maximum(program.prices, 0.0)
            added = False
            for kind in range(self.kinds):
                cheapest = _cheapest(*self.costs(prices[:limits] + FLOOR, kind))
                tree = min(cheapest, key=lambda each: each[0], default=(0.0, None))[1]
                if tree is None:
                    return []
                key, load = (kind, tree.edges, tree.root), self.load(tree, kind)
                gains = float(load @ prices[:limits]) < prices[limits + kind] - IMPROVES
                if (key not in known and gains) or not trees:
                    known.add(key)
                    rows = np.flatnonzero(load)
                    program.add(np.append(rows, limits + kind), np.append(load[rows], -1.0), 0.0)
                    trees.append((kind, tree))
                    added = True
            if not added:
                break
        weights = program.weights()
        shares: list[Shares] = [[] for _ in range(self.kinds)]
        for number, (kind, found) in enumerate(trees, 1):
            if weights.get(number, 0.0) > 0:
                shares[kind].append((weights[number], found))
        return shares

    def equal(self, best: Sequence[Shares], counts: Sequence[int]) -> list[list[Tree]]:
        """Return so many trees of each kind, of equal shares: rounded, then exchanged one by one while that helps."""
        most = max(counts)
        chosen: list[_Option] = []

        def option(tree: Tree, kind: int) -> _Option:
            return _Option(kind, tree, self.load(tree, kind) * (most / counts[kind]))

        for kind, shares in enumerate(best):
            for number, (_, tree) in zip(
                whole_rows(counts[kind], [weight for weight, _ in shares]), shares, strict=True
            ):
                chosen += [option(tree, kind)] * number
        total = np.sum([option.load for option in chosen], axis=0)
        for _ in range(MOST_SWEEPS):
            changed = False
            for place, now in enumerate(chosen):
                rest = total - now.load
                prices = (rest / rest.max()) ** (STEEP - 1) + FLOOR
                costs, roots = self.costs(prices, now.kind)
                pool = [tree for _, tree in best[now.kind]]
                pool += [tree for _, tree in _cheapest(costs, roots)] + _low_trees(costs, roots)
                options = [now, *(option(tree, now.kind) for tree in pool)]
                merits = [norm(rest + each.load) * (1 + each.tree.height * HEIGHT / most) for each in options]
                better = int(np.argmin(merits))
                if merits[better] < merits[0] * (1 - GAIN):
                    chosen[place], total, changed = options[better], rest + options[better].load, True
            if not changed:
                break
        return [[option.tree for option in chosen if option.kind == kind] for kind in range(self.kinds)]

    def rounded(self, best: Sequence[Shares], counts: Sequence[int]) -> list[list[tuple[int, Tree]]]:
        """Return so many equal shares of each kind, as (number, tree), on the best trees alone.

        Rounded, then one share after the other moves to where all are least busy.
        """
        trees = [[tree for _, tree in shares] for shares in best]
        units = [whole_rows(count, [each for each, _ in shares]) for count, shares in zip(counts, best, strict=True)]
        loads = [np.array([self.load(tree, kind) / counts[kind] for tree in of]) for kind, of in enumerate(trees)]
        total = np.sum([np.array(own) @ load for own, load in zip(units, loads, strict=True)], axis=0)
        for _ in range(MOST_MOVES):
            least, move = norm(total, STEEPER) * (1 - GAIN), None
            for kind, load in enumerate(loads):
                for at, to in product(np.flatnonzero(units[kind]).tolist(), range(len(load))):
                    after = norm(total - load[at] + load[to], STEEPER)
                    if at != to and after < least:
                        least, move = after, (kind, at, to)
            if move is None:
                break
            kind, at, to = move
            units[kind][at] -= 1
            units[kind][to] += 1
            total = total - loads[kind][at] + loads[kind][to]
        return [[each for each in zip(own, of, strict=True) if each[0]] for own, of in zip(units, trees, strict=True)]


def in_pairs(shares: int, others: list[tuple[int, Tree]], *own_of: list[tuple[int, Tree]]) -> PairedTrees:
    """Join trees of owners and of other hosts: those first whose gate is reached by few edges."""
    own = [each for kind in own_of for each in kind]
    free = [[number for number, _ in kind] for kind in (own, others)]
    depths = np.array([[tree.depths[other.root] for _, other in others] for _, tree in own])
    pairs = list[tuple[int, int]]()
    for place in np.argsort(depths, axis=None, kind="stable").tolist():
        at, other = divmod(place, len(others))
        number = min(free[0][at], free[1][other])
        pairs += [(at, other)] * number
        free[0][at] -= number
        free[1][other] -= number
    return PairedTrees(shares, own, others, sorted(pairs))


class _Option(NamedTuple):
    """A tree, its kind, and what its share of the value holds, of the kind of most trees the value."""

    kind: int
    tree: Tree
    load: Floats


def _cheapest(costs: Floats, roots: Floats) -> Iterator[tuple[float, Tree]]:
    """Yield (cost, cheapest tree) from each root from which all members are in reach."""
    for root in np.flatnonzero(np.isfinite(roots)).tolist():
        parents = cheapest_arborescence(costs, root)
        if parents is not None:
            tree = _tree_of(parents, root)
            yield sum(float(costs[parent, child]) for parent, child, _ in tree.edges) + float(roots[root]), tree


def _low_trees(costs: Floats, roots: Floats) -> list[Tree]:
    """Return a low tree from each root."""
    usual = float(np.median(costs[np.isfinite(costs)]))
    return [grown_tree(costs, root, LOW * usual)[0] for root in np.flatnonzero(np.isfinite(roots)).tolist()]


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
