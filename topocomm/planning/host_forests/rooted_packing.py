"""Trees of a reduce or broadcast packed into hosts that are alike, and into the host of the root.

In every other host a tree joins the members to a gate, in the root's host one joins them to the root; a share of the
value passes each host but the root's once in and once out, over its gate. Both kinds share a linear program: the root's
host receives (or sends) at the gates of the others' trees (`tree_kinds.py`).
"""

from __future__ import annotations

from math import inf

import numpy as np

from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_packing import Flags, HostLoads, with_neighbours
from topocomm.planning.host_forests.tree_kinds import PairedTrees, TreeKinds, in_pairs
from topocomm.planning.routing.routes import Floats


class RootedPacking(TreeKinds):
    """The best trees of both kinds: of the other hosts, and of the root's.

    Attributes:
        rows: Ports and links of another host; those of the root's come after them.
        gates: float64 [members, limits]: what a value that passes each gate holds in another host, and in the root's.
    """

    def __init__(self, loads: HostLoads, root: int, *, reduces: bool, neighbours: bool = True) -> None:
        """Take the member that is the root; messages of a reduce go to the parent.

        With `neighbours` messages between members that share a link to other hosts count there too: shares of unlike
        sizes then fit into a period. Of few equal ones more fit without.
        """
        self.reduces, self.members, self.root, self.kinds = reduces, loads.members, root, 2
        inside = loads.inside.swapaxes(0, 1) if reduces else loads.inside
        self.joined: Flags = np.array(np.isfinite(inside).all(axis=2))
        self.open: Flags = np.array(np.isfinite(loads.across).all(axis=1))
        own, home = np.where(self.joined[:, :, None], inside, 0.0), np.where(self.open[:, None], loads.across, 0.0)
        other, passed = with_neighbours(own, home.copy()) if neighbours else (own, home.copy())
        home[:, [2 * member + (not reduces) for member in range(self.members)]] = 0.0  # the root's host passes none on
        self._inside = other, own
        """Of each kind, float64 [members, members, rows of it]: of a message on the edge from a parent to a child."""
        self.gates = np.concatenate([passed, home], axis=1)
        self.rows, self.limits = passed.shape[1], self.gates.shape[1]

    def trees(self, counts: tuple[int, ...]) -> list[PairedTrees]:
        """Return trees of as many shares of the value as each of `counts`; none where there are no routes."""
        best = self.best()
        return [in_pairs(count, *self.rounded(best, (count, count))) for count in counts] if best else []

    def low_trees(self, count: int) -> list[PairedTrees]:
        """Return as many trees of each kind, of one share each, exchanged for lower ones while that helps."""
        best = self.best()
        if not best:
            return []
        kinds = self.equal(best, (count, count))
        return [in_pairs(count, *([(1, tree) for tree in trees] for trees in kinds))]

    def edge(self, parent: int, child: int, kind: int) -> Floats:
        """Return what a message of the whole value on an edge of a tree holds, float64 [limits]."""
        load = np.zeros(self.limits)
        load[self._rows(kind)] = self._inside[kind][parent, child]
        return load

    def load(self, tree: Tree, kind: int) -> Floats:
        """Return what the whole value along a tree holds, float64 [limits]."""
        load = np.zeros(self.limits) if kind else self.gates[tree.root].copy()
        half = load[self._rows(kind)]
        for parent, child, _ in tree.edges:
            half += self._inside[kind][parent, child]
        return load

    def costs(self, prices: Floats, kind: int) -> tuple[Floats, Floats]:
        """Return the costs of edges and of roots."""
        edges = np.where(self.joined, self._inside[kind] @ prices[self._rows(kind)], inf)
        if kind:
            return edges, np.where(np.arange(self.members) == self.root, 0.0, inf)
        return edges, np.where(self.open, self.gates @ prices, inf)

    def _rows(self, kind: int) -> slice:
        return slice(self.rows, None) if kind else slice(self.rows)
