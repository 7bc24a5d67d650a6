"""Trees of an allgather or reduce_scatter packed into hosts that are alike.

A part goes down a tree of its owner's host; a gate of the host gives it to its like in every other host, where it goes
down a tree from there. What comes from other hosts and what each member owns are kinds of trees (`tree_kinds.py`). The
trees of a reduce_scatter are those of an allgather over the links backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_packing import Flags, HostLoads, with_neighbours
from topocomm.planning.host_forests.tree_kinds import PairedTrees, TreeKinds, in_pairs
from topocomm.planning.routing.routes import Floats


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
        self.inside, self.gates = with_neighbours(
            np.where(self.joined[:, :, None], inside, 0.0), np.where(self.open[:, None], loads.across, 0.0)
        )
        self.kinds, self.limits = 1 + loads.members, self.gates.shape[1]
        self._far, self._near = (self.hosts - 1) / self.hosts, 1 / (self.hosts * self.members)
        """Parts of the value that come from other hosts, and that a member owns."""

    def trees(self, counts: Sequence[int]) -> list[PairedTrees]:
        """Return trees of as many shares of a part as each of `counts`; none where there are no routes."""
        best = self.best()
        if not best:
            return []
        made = [self.rounded(best, [count * self.members] + [count] * self.members) for count in counts]
        return [in_pairs(count, others, *own) for count, (others, *own) in zip(counts, made, strict=True)]

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
