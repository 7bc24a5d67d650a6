"""Interned expression trees over contributions: equal expressions have equal numbers, and only they.

The contributions are ranks, in canonical order ranges of virtual shards. A pair of trees is merged once, whoever folds
it, and found again by the pair of their numbers, so nothing is hashed in place of proof. A tree knows what it holds:
an interval where its contributions are contiguous (O(1) a merge), a bit set (a Python integer) where they are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.canonical import canonical_split
from topocomm.planning.collectives import Column
from topocomm.planning.schedule import IntTable, Rows


class Trees:
    """All trees of a schedule, by number.

    Attributes:
        low: The least contribution in each tree.
        high: One more than the greatest.
        in_order: Whether its contributions stand in rank order, none left out.
        canonical: Whether it is the canonical tree over its contributions.
        bits: Its contributions, one bit each, where they are no interval [low, high).
    """

    def __init__(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Start with the leaves.

        Args:
            low: The first contribution that each of them holds.
            high: One more than the last.
        """
        self.low, self.high = list(low), list(high)
        self.in_order, self.canonical = [True] * len(low), [True] * len(low)
        self.bits: dict[int, int] = {}
        self._merged: dict[int, int] = {}

    def fold(self, leaves: Sequence[int], operands: Rows, starts: IntTable) -> list[int]:
        """The tree of every value: the leaves first, then the results of the folds.

        Args:
            leaves: The trees of the values that are there first.
            operands: Values that the folds take, all folds one after the other, each made before it is taken.
            starts: Where the operands of each fold start, and the end.

        Raises:
            CountedTwiceError: Two operands hold one contribution.
        """
        tree_of, merged = list(leaves), self._merged
        values, edges = operands.tolist(), starts.tolist()
        for fold, end in enumerate(edges[1:]):
            start = edges[fold]
            tree = tree_of[values[start]]
            for value in values[start + 1 : end]:
                right = tree_of[value]
                pair = tree << 32 | right
                found = merged.get(pair)
                if found is None:
                    found = merged[pair] = self._merge(tree, right, fold)
                tree = found
            tree_of.append(tree)
        return tree_of

    def members(self, tree: int) -> int:
        """The contributions in a tree, one bit each."""
        bits = self.bits.get(tree)
        return (1 << self.high[tree]) - (1 << self.low[tree]) if bits is None else bits

    def are(self, trees: Rows, low: Column, high: Column) -> NDArray[np.bool_]:
        """Whether each of these trees holds the contributions low..high-1 and no other."""
        gaps = np.zeros(len(self.low), dtype=bool)
        gaps[list(self.bits)] = True
        fits: NDArray[np.bool_] = (np.asarray(self.low)[trees] == low) & (np.asarray(self.high)[trees] == high)
        return fits & ~gaps[trees]

    def _merge(self, left: int, right: int, fold: int) -> int:
        low, middle, start, high = self.low[left], self.high[left], self.low[right], self.high[right]
        if left not in self.bits and right not in self.bits:
            if middle == start:
                canonical = self.canonical[left] and self.canonical[right]
                canonical = canonical and middle - low == canonical_split(high - low)
                return self._new(low, high, self.in_order[left] and self.in_order[right], canonical)
            if high == low:
                return self._new(start, middle, in_order=False, canonical=False)
        both, union = self.members(left) & self.members(right), self.members(left) | self.members(right)
        if both:
            raise CountedTwiceError(fold, both)
        low, high = min(low, start), max(middle, high)
        tree = self._new(low, high, in_order=False, canonical=False)
        if union != (1 << high) - (1 << low):
            self.bits[tree] = union
        return tree

    def _new(self, low: int, high: int, in_order: bool, canonical: bool) -> int:
        self.low.append(low)
        self.high.append(high)
        self.in_order.append(in_order)
        self.canonical.append(canonical)
        return len(self.low) - 1


class CountedTwiceError(Exception):
    """Two operands of a fold hold one contribution; `fold` is its index, `both` what they share, one bit each."""

    def __init__(self, fold: int, both: int) -> None:
        super().__init__(fold, both)
        self.fold, self.both = fold, both
