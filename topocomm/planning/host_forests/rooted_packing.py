"""Trees of a reduce or broadcast packed into hosts that are alike, and into the host of the root.

In every other host a tree joins the members to a gate, in the root's host one joins them to the root; a share of the
value passes each host but the root's once in and once out, over its gate. Both kinds share a linear program: the root's
host receives (or sends) at the gates of the others' trees (`tree_kinds.py`).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_packing import Flags, HostLoads
from topocomm.planning.host_forests.tree_kinds import TreeKinds
from topocomm.planning.routing.routes import Floats


class RootedTrees(NamedTuple):
    """As many trees of other hosts, from their gates, and of the root's host, from the root: pairs of equal shares."""

    others: list[Tree]
    own: list[Tree]


class RootedPacking(TreeKinds):
    """The best trees of both kinds: of the other hosts, and of the root's.

    Attributes:
        inside: float64 [members, members, rows]: what a message on the edge from a parent to a child holds.
        gates: float64 [members, 2 rows]: what a value that passes each gate holds in another host, and in the root's.
    """

    def __init__(self, loads: HostLoads, root: int, *, reduces: bool) -> None:
        """Take the member that is the root; messages of a reduce go to the parent."""
        self.reduces = reduces
        self.members, self.rows, self.root = loads.members, loads.across.shape[1], root
        self.kinds, self.limits = 2, 2 * self.rows
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
        best = self.best()
        return [RootedTrees(*self.equal(best, (count, count))) for count in counts] if best else []

    def load(self, tree: Tree, kind: int) -> Floats:
        """Return what the whole value along a tree holds, float64 [2 rows]."""
        load = np.zeros(2 * self.rows) if kind else self.gates[tree.root].copy()
        half = load[self.rows :] if kind else load[: self.rows]
        for parent, child, _ in tree.edges:
            half += self.inside[parent, child]
        return load

    def costs(self, prices: Floats, kind: int) -> tuple[Floats, Floats]:
        """Return the costs of edges and of roots."""
        edges = np.where(self.joined, self.inside @ (prices[self.rows :] if kind else prices[: self.rows]), inf)
        if kind:
            return edges, np.where(np.arange(self.members) == self.root, 0.0, inf)
        return edges, np.where(self.open, self.gates @ prices, inf)
