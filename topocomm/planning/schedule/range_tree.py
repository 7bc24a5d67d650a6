"""The expression that all ranks evaluate: a fixed binary tree over contiguous ranges of ranks.

Ranks that hold values of this tree's nodes can exchange them in any order over any links: all fold the same expression,
so the bits are equal, the operands stand in rank order, and a value that arrives twice does no harm. An aligned tree of
radix R splits at the largest power of R below the size of the range, so R^k aligned ranks are one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RangeTree:
    """Nodes by number: the leaf of rank r is r, then the inner nodes, children before parents, the root last.

    Attributes:
        low: First rank of each node.
        high: End of each node's ranks.
        children: (left, right) of each node, (-1, -1) of a leaf.
        parent: Parent of each node, -1 of the root.
    """

    ranks: int
    low: tuple[int, ...]
    high: tuple[int, ...]
    children: tuple[tuple[int, int], ...]
    parent: tuple[int, ...]

    @property
    def root(self) -> int:
        """The node of all ranks."""
        return len(self.parent) - 1

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Ranks of each node, as bits."""
        return tuple((1 << high) - (1 << low) for low, high in zip(self.low, self.high, strict=True))

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """int32 [5, nodes]: low, high, left and right child, parent, as compiled code reads them."""
        return np.array([self.low, self.high, *zip(*self.children, strict=True), self.parent], dtype=np.int32)

    def sibling(self, node: int) -> int:
        """Return the other child of the node's parent, -1 of the root."""
        above = self.parent[node]
        if above < 0:
            return -1
        left, right = self.children[above]
        return right if node == left else left


def aligned_tree(ranks: int, radix: int = 2) -> RangeTree:
    """Return the aligned tree over `ranks` leaves; of radix 2 it is that of `canonical_tree.py`."""
    builder = _Builder(ranks)
    builder.aligned(list(range(ranks)), radix)
    return builder.tree()


def nested_tree(below: Sequence[RangeTree], levels: Sequence[Sequence[Sequence[int]]]) -> RangeTree:
    """Return the tree of trees side by side, joined level by level.

    Args:
        below: The trees of neighbouring ranges of ranks, from left to right.
        levels: Innermost first, the sets of blocks that are joined: edges, counted in trees of `below`.
    """
    builder = _Builder(sum(tree.ranks for tree in below))
    tops: dict[int, int] = {}
    first = 0
    for index, tree in enumerate(below):
        tops[index] = builder.copy(tree, first)
        first += tree.ranks
    for sets in levels:
        tops = {edges[0]: builder.aligned([tops[edge] for edge in edges[:-1]], 2) for edges in sets}
    return builder.tree()


class _Builder:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.low, self.high = list(range(ranks)), list(range(1, ranks + 1))
        self.children: list[tuple[int, int]] = [(-1, -1)] * ranks
        self.parent = [-1] * ranks

    def join(self, left: int, right: int) -> int:
        node = len(self.parent)
        self.low.append(self.low[left])
        self.high.append(self.high[right])
        self.children.append((left, right))
        self.parent.append(-1)
        self.parent[left] = self.parent[right] = node
        return node

    def copy(self, tree: RangeTree, first: int) -> int:
        """Add the tree's nodes with its first rank at `first`; returns its root."""
        nodes = list(range(first, first + tree.ranks))
        for left, right in tree.children[tree.ranks :]:
            nodes.append(self.join(nodes[left], nodes[right]))
        return nodes[-1]

    def aligned(self, tops: Sequence[int], radix: int) -> int:
        """Join the nodes, blocks of the largest power of the radix first, from left to right."""
        if len(tops) == 1:
            return tops[0]
        size = 1
        while size * radix < len(tops):
            size *= radix
        blocks = [self.aligned(tops[first : first + size], radix) for first in range(0, len(tops), size)]
        return reduce(self.join, blocks)

    def tree(self) -> RangeTree:
        return RangeTree(self.ranks, tuple(self.low), tuple(self.high), tuple(self.children), tuple(self.parent))
