"""Trees of an allgather or reduce_scatter packed into hosts that are alike.

A part goes down a tree of its owner's host; a gate of the host gives it to its like in every other host, where it goes
down a tree from there. What comes from other hosts and what each member owns are kinds of trees (`tree_kinds.py`). The
trees of a reduce_scatter are those of an allgather over the links backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_packing import Flags, HostLoads
from topocomm.planning.host_forests.tree_kinds import TreeKinds
from topocomm.planning.routing.routes import Floats


class PartTrees(NamedTuple):
    """Trees of the value, and what goes down them.

    Attributes:
        shares: How many equal ones a part has.
        own: (number of shares, tree from the owner).
        others: (number of shares of the parts of a host, tree from a gate).
        pairs: (number of an own tree, of one of others) of each share of the parts of a host, member by member.
    """

    shares: int
    own: list[tuple[int, Tree]]
    others: list[tuple[int, Tree]]
    pairs: list[tuple[int, int]]


class PartsPacking(TreeKinds):
    """The best trees of what comes from other hosts, the first kind, and of what each member owns.

    Attributes:
        inside: float64 [members, members, rows]: what a message of the whole value from a parent to a child holds.
        gates: float64 [members, rows]: what the whole value holds that passes a gate both ways.
    """

    def __init__(self, loads: HostLoads, *, reduces: bool) -> None:
        """Take loads of hosts; messages of a reduce_scatter go to the parent."""
        self.members, self.hosts, self.reduces = loads.members, loads.hosts, reduces
        inside = loads.inside.swapaxes(0, 1) if reduces and not loads.symmetric else loads.inside
        self.joined: Flags = np.array(np.isfinite(inside).all(axis=2))
        self.open: Flags = np.array(np.isfinite(loads.across).all(axis=1))
        self.inside, self.gates = _with_neighbours(
            np.where(self.joined[:, :, None], inside, 0.0), np.where(self.open[:, None], loads.across, 0.0)
        )
        self.kinds, self.limits = 1 + loads.members, self.gates.shape[1]
        self._far, self._near = (self.hosts - 1) / self.hosts, 1 / (self.hosts * self.members)
        """Parts of the value that come from other hosts, and that a member owns."""

    def trees(self, counts: Sequence[int]) -> list[PartTrees]:
        """Return trees of as many shares of a part as each of `counts`; none where there are no routes."""
        best = self.best()
        if not best:
            return []
        made = [self.rounded(best, [count * self.members] + [count] * self.members) for count in counts]
        return [_in_pairs(count, *kinds) for count, kinds in zip(counts, made, strict=True)]

    def load(self, tree: Tree, kind: int) -> Floats:
        """Return what all of a kind along a tree holds, float64 [rows]."""
        load: Floats = np.zeros(self.limits) if kind else self.gates[tree.root].copy()
        for parent, child, _ in tree.edges:
            load += self.inside[parent, child]
        return load * (self._near if kind else self._far)

    def costs(self, prices: Floats, kind: int) -> tuple[Floats, Floats]:
        """Return the costs of edges and of roots: all gates, or the owner."""
        edges = np.where(self.joined, self.inside @ prices, inf)
        if kind:
            return edges * self._near, np.where(np.arange(self.members) == kind - 1, 0.0, inf)
        return edges * self._far, np.where(self.open, self.gates @ prices, inf) * self._far


def _with_neighbours(inside: Floats, gates: Floats) -> tuple[Floats, Floats]:
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


def _in_pairs(count: int, others: list[tuple[int, Tree]], *own_of: list[tuple[int, Tree]]) -> PartTrees:
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
    return PartTrees(count, own, others, sorted(pairs))
