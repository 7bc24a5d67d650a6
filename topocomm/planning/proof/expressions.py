"""Interned expression trees over contributions: expressions are equal if and only if their numbers are.

The contributions are ranks, in canonical order ranges of virtual shards. A pair of trees is merged once and looked up
by the pair of their numbers, so nothing is hashed in place of proof. The contributions of a tree are an interval where
they are contiguous (O(1) a merge), else a bit set.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.collectives import Column
from topocomm.planning.schedule.canonical_tree import canonical_split
from topocomm.planning.schedule.schedule import IntTable, Rows

IN_ORDER, CANONICAL, GAPS = 1, 2, 4
"""Flags of a tree: its contributions stand in rank order without a gap; it is the canonical tree over them; they are no
interval, and then neither of the others is set."""
LEAF = IN_ORDER | CANONICAL
NO_TREE = -1


class Trees:
    """The leaves, and all trees that are folded from them, by number.

    Attributes:
        low: int32: the least contribution in each tree.
        high: int32: one more than the greatest.
        parts: int32 [2, trees]: the trees that it was made of; NO_TREE of leaves.
        flags: uint8: IN_ORDER, CANONICAL and GAPS, or none of them.
    """

    def __init__(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Start with leaves that hold the contributions [low, high)."""
        self.low, self.high = (np.array(edge, dtype=np.int32) for edge in (low, high))
        self.parts = np.full((2, len(low)), NO_TREE, dtype=np.int32)
        self.flags = np.full(len(low), LEAF, dtype=np.uint8)

    def fold(self, leaves: IntTable, operands: Rows, starts: IntTable) -> Rows:
        """Return the tree of every value: the leaves first, then the folds of operands [starts[i], starts[i + 1]).

        Raises:
            CountedTwiceError: Two operands hold one contribution.
        """
        tree_of = self._fold_compiled(leaves, operands, starts)
        return self._fold_plainly(leaves, operands, starts) if tree_of is None else tree_of

    def _fold_compiled(self, leaves: IntTable, operands: Rows, starts: IntTable) -> Rows | None:
        """As `fold`; None where nothing is compiled here, or operands share a contribution."""
        try:
            from topocomm.native._native import fold_trees
        except ImportError:
            return None
        known, folds = len(self.low), len(starts) - 1
        room = known + len(operands) - folds
        low, high, left, right = (np.empty(room, dtype=np.int32) for _ in range(4))
        flags, tree_of = np.zeros(room, dtype=np.uint8), np.empty(len(leaves) + folds, dtype=np.int64)
        low[:known], high[:known], (left[:known], right[:known]), flags[:known] = self.low, self.high, self.parts, LEAF
        held = leaves.astype(np.int64)
        count = fold_trees(held, operands, np.ascontiguousarray(starts), tree_of, low, high, left, right, flags)
        if count < 0:
            return None
        self.low, self.high, self.flags = low[:count], high[:count], flags[:count]
        self.parts = np.stack([left[:count], right[:count]])
        return tree_of

    def _fold_plainly(self, leaves: IntTable, operands: Rows, starts: IntTable) -> Rows:
        """As `fold`, without the compiled part."""
        made, tree_of = _Merges(self.low.tolist(), self.high.tolist()), leaves.tolist()
        values, edges = operands.tolist(), starts.tolist()
        for fold, end in enumerate(edges[1:]):
            start = edges[fold]
            tree = tree_of[values[start]]
            for value in values[start + 1 : end]:
                tree = made.tree(tree, tree_of[value], fold)
            tree_of.append(tree)
        self.low, self.high = (np.array(edge, dtype=np.int32) for edge in (made.low, made.high))
        self.flags = np.array(made.flags, dtype=np.uint8)
        pairs = np.array([*made.numbers], dtype=np.int64)
        merged = np.stack([pairs >> 32, pairs & (1 << 32) - 1]).astype(np.int32)
        self.parts = np.concatenate([self.parts, merged], axis=1)
        return np.asarray(tree_of, dtype=np.int64)

    def members(self, tree: int) -> int:
        """Return the contributions of a tree, one bit each."""
        bits, rest = 0, [tree]
        while rest:
            part = rest.pop()
            if self.flags[part] & GAPS:
                rest += self.parts[:, part].tolist()
            else:
                bits |= (1 << int(self.high[part])) - (1 << int(self.low[part]))
        return bits

    def are(self, trees: Rows, low: Column, high: Column) -> NDArray[np.bool_]:
        """Return whether each of these trees holds exactly the contributions low..high-1."""
        fits: NDArray[np.bool_] = (self.low[trees] == low) & (self.high[trees] == high) & (self.flags[trees] < GAPS)
        return fits


class _Merges:
    """Trees while they are folded, as lists of what `Trees` has; `bits` has the contributions of those with gaps."""

    def __init__(self, low: list[int], high: list[int]) -> None:
        self.low, self.high, self.flags = low, high, [LEAF] * len(low)
        self.bits: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        """Of each pair of trees, in the order in which they were merged."""

    def tree(self, left: int, right: int, fold: int) -> int:
        """Return the tree of two, which a fold needs."""
        pair = left << 32 | right
        number = self.numbers.get(pair)
        if number is None:
            number = self._merge(left, right, fold)
            self.numbers[pair] = number
        return number

    def _merge(self, left: int, right: int, fold: int) -> int:
        low, middle, start, high = self.low[left], self.high[left], self.low[right], self.high[right]
        both_flags = self.flags[left] & self.flags[right]
        if left not in self.bits and right not in self.bits:
            if middle == start:
                canonical = middle - low == canonical_split(high - low)
                return self._new(low, high, both_flags & (LEAF if canonical else IN_ORDER))
            if high == low:
                return self._new(start, middle, 0)
        held, more = self._members(left), self._members(right)
        if held & more:
            raise CountedTwiceError(fold, held & more)
        low, high = min(low, start), max(middle, high)
        if held | more == (1 << high) - (1 << low):
            return self._new(low, high, 0)
        tree = self._new(low, high, GAPS)
        self.bits[tree] = held | more
        return tree

    def _members(self, tree: int) -> int:
        bits = self.bits.get(tree)
        return (1 << self.high[tree]) - (1 << self.low[tree]) if bits is None else bits

    def _new(self, low: int, high: int, flags: int) -> int:
        self.low.append(low)
        self.high.append(high)
        self.flags.append(flags)
        return len(self.low) - 1


class CountedTwiceError(Exception):
    """Two operands of a fold share contributions; `fold` is its index, `both` the shared ones, one bit each."""

    def __init__(self, fold: int, both: int) -> None:
        super().__init__(fold, both)
        self.fold, self.both = fold, both
