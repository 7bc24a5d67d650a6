"""Reductions that keep rank order on any machine: plans that merge only adjacent ranges of ranks.

A plan moves partial values and merges neighbouring ranges, (i..k) and (k+1..j), at a rank that holds both. The cheapest
plan under prices on links follows range by range (the recurrence of Cocke, Younger and Kasami):
C[i, j, v] = min over k of C[i, k, v] + C[k+1, j, v], then over moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats
from topocomm.planning.forests.tree import Path


class Step(NamedTuple):
    """One range at one rank: merged there from adjacent ranges, or moved there from a source."""

    rank: int
    parts: tuple[int, ...]
    """Numbers of the earlier steps that are merged, in order, or moved; empty: the rank's own value."""
    source: int = -1
    path: Path | None = None
    """Path from the source to the rank; None: nothing moves."""


class IntervalPlan(NamedTuple):
    """Steps whose last has the values of all ranks, in order, at the root."""

    root: int
    steps: tuple[Step, ...]

    @property
    def height(self) -> int:
        """Most moves of one value."""
        high: list[int] = []
        for step in self.steps:
            high.append(max((high[part] for part in step.parts), default=0) + (step.path is not None))
        return high[-1]

    def mapped(self, image: Sequence[int]) -> IntervalPlan:
        """Return the image of the plan under a permutation of the devices.

        It keeps rank order only if the permutation maps the range of every step onto a range.
        """
        steps: list[Step] = []
        lowest: list[int] = []
        for step in self.steps:
            parts = tuple(sorted(step.parts, key=lambda part: lowest[part]))
            lowest.append(min((lowest[part] for part in parts), default=image[step.rank]))
            path = step.path and tuple(image[device] for device in step.path)
            steps.append(Step(image[step.rank], parts, image[step.source] if path else -1, path))
        return IntervalPlan(image[self.root], tuple(steps))


class IntervalTable:
    """Cheapest plans of every range at every rank, by the costs [ranks, ranks] of moving a value from row to column."""

    def __init__(self, costs: Floats) -> None:
        count = len(costs)
        self.moves = costs.copy()
        np.fill_diagonal(self.moves, 0.0)
        self.cost = np.full((count, count, count), inf)
        self.split = np.full((count, count, count), -1, dtype=np.int64)
        self.source = np.zeros((count, count, count), dtype=np.int64)
        ranks = np.arange(count)
        for length in range(1, count + 1):
            for low in range(count - length + 1):
                high = low + length - 1
                merged = np.full(count, inf)
                if length == 1:
                    merged[low] = 0.0
                else:
                    both = self.cost[low, low:high] + self.cost[low + 1 : high + 1, high]
                    best = both.argmin(axis=0)
                    self.split[low, high] = low + best
                    merged = both[best, ranks]
                arriving = merged[:, None] + self.moves
                source = arriving.argmin(axis=0)
                stays = merged <= arriving[source, ranks]
                self.source[low, high] = np.where(stays, ranks, source)
                self.cost[low, high] = np.minimum(merged, arriving[source, ranks])

    def plan(self, root: int) -> tuple[list[tuple[int, tuple[int, ...], int]], float]:
        """Return (steps as (rank, parts, source or -1), cost) of the cheapest plan that ends at the root."""
        count = len(self.moves)
        steps: list[tuple[int, tuple[int, ...], int]] = []
        self._build(0, count - 1, root, steps)
        return steps, float(self.cost[0, count - 1, root])

    def _build(self, low: int, high: int, rank: int, steps: list[tuple[int, tuple[int, ...], int]]) -> int:
        """Write the steps that merge the range and bring it to the rank; return the number of the last."""
        source = int(self.source[low, high, rank])
        parts: tuple[int, ...] = ()
        if low < high:
            split = int(self.split[low, high, source])
            parts = self._build(low, split, source, steps), self._build(split + 1, high, source, steps)
        steps.append((source, parts, -1))
        if source != rank:
            steps.append((rank, (len(steps) - 1,), source))
        return len(steps) - 1
