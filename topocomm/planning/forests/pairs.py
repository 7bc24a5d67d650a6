"""What carries a share of the payload: a way up to one root, a way down from it, or both."""

from __future__ import annotations

from typing import NamedTuple

from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.tree import Tree


class Pair(NamedTuple):
    """What goes up to one root, and the broadcast tree that goes down from it; None: nothing does.

    The edges of a reduce tree are given away from the root, as those of a broadcast tree.
    """

    up: Tree | IntervalPlan | None
    down: Tree | None

    @property
    def root(self) -> int:
        """Where the one ends and the other begins."""
        one = self.up or self.down
        assert one is not None, "something goes up or down"
        return one.root

    @property
    def tree(self) -> Tree:
        """The broadcast tree, or of a pair without one the reduce tree."""
        one = self.down or self.up
        assert isinstance(one, Tree), "no plan that merges ranges"
        return one

    @property
    def height(self) -> int:
        """Most edges between a rank and the root."""
        return max(one.height for one in self if one is not None)
