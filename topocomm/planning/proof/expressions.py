"""Interned expression trees over contributions: expressions are equal if and only if their numbers are.

The contributions are ranks, in canonical order ranges of virtual shards. A pair of trees is merged once and looked up
by the pair of their numbers, so nothing is hashed in place of proof. The contributions of a tree are an interval where
they are contiguous (O(1) a merge), else a bit set (a Python integer).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.collectives import Column
from topocomm.planning.schedule.canonical_tree import canonical_split
from topocomm.planning.schedule.schedule import IntTable, Rows, number_keys

SHORT_RUN = 256
"""Least number of independent folds in a row that are evaluated as columns."""


class Trees:
    """All trees of a schedule, by number.

    Attributes:
        low: The least contribution in each tree.
        high: One more than the greatest.
        in_order: Whether its contributions stand in rank order without a gap.
        canonical: Whether it is the canonical tree over its contributions.
        bits: Its contributions, one bit each, where they are no interval [low, high).
    """

    def __init__(self, low: Sequence[int], high: Sequence[int]) -> None:
        """Start with leaves that hold the contributions [low, high)."""
        self.low, self.high = list(low), list(high)
        self.in_order, self.canonical = [True] * len(low), [True] * len(low)
        self.bits: dict[int, int] = {}
        self._merged: dict[int, int] = {}

    def fold(self, leaves: IntTable, operands: Rows, starts: IntTable) -> Rows:
        """Return the tree of every value: the leaves first, then the folds of operands [starts[i], starts[i + 1]).

        Raises:
            CountedTwiceError: Two operands hold one contribution.
        """
        runs = _runs(operands, starts, len(leaves))
        if runs is not None:
            try:
                return self._fold_runs(leaves, operands, starts, runs)
            except CountedTwiceError:  # of several faults the first is reported
                pass
        return np.asarray(self._fold_in_turn(leaves.tolist(), operands, starts), dtype=np.int64)

    def _fold_in_turn(self, leaves: Sequence[int], operands: Rows, starts: IntTable) -> list[int]:
        tree_of, merged = list(leaves), self._merged
        values, edges = operands.tolist(), starts.tolist()
        for fold, end in enumerate(edges[1:]):
            start = edges[fold]
            tree = tree_of[values[start]]
            for value in values[start + 1 : end]:
                right = tree_of[value]
                pair = tree << 32 | right
                number = merged.get(pair)
                if number is None:
                    number = merged[pair] = self._merge(tree, right, fold)
                tree = number
            tree_of.append(tree)
        return tree_of

    def _fold_runs(self, leaves: IntTable, operands: Rows, starts: IntTable, runs: Sequence[tuple[int, int]]) -> Rows:
        """As `_fold_in_turn`, run by run: equal pairs of a run are looked up once."""
        tree_of = np.empty(len(leaves) + len(starts) - 1, dtype=np.int64)
        tree_of[: len(leaves)] = leaves
        for low, high in runs:
            begin, widths = starts[low:high], np.diff(starts[low : high + 1])
            trees, more = tree_of[operands[begin]], np.arange(high - low)
            for turn in range(1, int(widths.max())):
                more = more[widths[more] > turn]
                left, right = trees[more], tree_of[operands[begin[more] + turn]]
                first, which = number_keys(left << len(self.low).bit_length() | right)
                numbers = []
                for pair in (left[first] << 32 | right[first]).tolist():
                    if pair not in self._merged:
                        self._merged[pair] = self._merge(pair >> 32, pair & (1 << 32) - 1, low)
                    numbers.append(self._merged[pair])
                trees[more] = np.array(numbers, dtype=np.int64)[which]
            tree_of[len(leaves) + low : len(leaves) + high] = trees
        return tree_of

    def members(self, tree: int) -> int:
        """Return the contributions of a tree, one bit each."""
        bits = self.bits.get(tree)
        return (1 << self.high[tree]) - (1 << self.low[tree]) if bits is None else bits

    def are(self, trees: Rows, low: Column, high: Column) -> NDArray[np.bool_]:
        """Return whether each of these trees holds exactly the contributions low..high-1."""
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


def _runs(operands: Rows, starts: IntTable, leaves: int) -> list[tuple[int, int]] | None:
    """(first, end) of runs of folds independent of each other; None where runs are short on average."""
    count, low = len(starts) - 1, 0
    newest = np.maximum.reduceat(operands, starts[:-1]) - leaves if count >= SHORT_RUN else operands
    runs: list[tuple[int, int]] = []
    while low < count:
        if (len(runs) + 1) * SHORT_RUN > count:
            return None
        end, waits = low, newest[:0]
        while not len(waits) and end < count:
            end = min(low + max(SHORT_RUN, 2 * (end - low)), count)
            waits = np.flatnonzero(newest[low:end] >= low)
        high = low + int(waits[0]) if len(waits) else count
        runs.append((low, high))
        low = high
    return runs


class CountedTwiceError(Exception):
    """Two operands of a fold share contributions; `fold` is its index, `both` the shared ones, one bit each."""

    def __init__(self, fold: int, both: int) -> None:
        super().__init__(fold, both)
        self.fold, self.both = fold, both
