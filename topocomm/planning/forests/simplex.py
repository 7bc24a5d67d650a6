"""A linear program solved the same on every machine: primal simplex with an explicit inverse.

maximise c x subject to A x <= b, x >= 0, with b >= 0, so that the slacks are the first basis. Columns may be added
between calls (column generation). Arithmetic is element by element and in one order, without BLAS, so the same input
gives the same bits everywhere. Right sides are raised by tiny distinct amounts, which keeps degenerate programs, as
packings of trees are, from cycling (Charnes 1952); `weights` reckons with the raised ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RAISED = 1e-7
"""Largest relative change of a right side."""
TINY = 1e-9
"""Reduced costs and pivots below it count as zero; rows are scaled so that loads are about 1."""
FRESH_PIVOTS = 1000
"""Pivots after which the inverse is computed anew."""


class Simplex:
    """One linear program, its columns so far, and a basis of them."""

    def __init__(self, right: Floats) -> None:
        """Rows with their right sides: about 1 each; a 0 is taken as the raised amount alone."""
        rows = len(right)
        golden = (np.arange(1, rows + 1) * 0.6180339887498949) % 1.0
        self.right = right + RAISED * (0.5 + golden)
        self.basis = [-1 - row for row in range(rows)]
        """Column in the basis by place; -1 - e is the slack of row e."""
        self.inverse = np.eye(rows)
        """[row, place]: transposed, so that a sparse column times the inverse adds whole lines."""
        self.level = self.right.copy()
        self.prices = np.zeros(rows)
        self.pivots = 0
        self.rows_of: list[Ints] = []
        self.loads_of: list[Floats] = []
        self.gains: list[float] = []
        self._flat: tuple[Ints, Ints, Floats] = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        self._flat_columns = 0

    def add(self, rows: Ints, loads: Floats, gain: float) -> int:
        """Add a column by its entries that are not zero; returns its number."""
        self.rows_of.append(rows)
        self.loads_of.append(loads)
        self.gains.append(gain)
        return len(self.gains) - 1

    def value(self) -> float:
        """The objective of the basis."""
        return float(sum(self.gains[c] * self.level[i] for i, c in enumerate(self.basis) if c >= 0))

    def weights(self) -> dict[int, float]:
        """Columns above zero."""
        return {c: float(self.level[i]) for i, c in enumerate(self.basis) if c >= 0 and self.level[i] > 0}

    def solve(self, most_pivots: int = 100_000) -> None:
        """Pivot until no column of the pool improves."""
        for _ in range(most_pivots):
            reduced = self._reduced()
            best = int(np.argmax(reduced)) if len(reduced) else -1
            slack = int(np.argmin(self.prices))
            gain = float(reduced[best]) if best >= 0 else 0.0
            if max(gain, -float(self.prices[slack])) <= TINY:
                return
            if gain >= -float(self.prices[slack]):
                self._enter(best, gain, self._spread(self.rows_of[best], self.loads_of[best]))
            else:
                self._enter(-1 - slack, -float(self.prices[slack]), self.inverse[slack].copy())

    def _reduced(self) -> Floats:
        if self._flat_columns < len(self.gains):
            new = range(self._flat_columns, len(self.gains))
            self._flat = (
                np.concatenate([self._flat[0], *(np.full(len(self.rows_of[c]), c) for c in new)]),
                np.concatenate([self._flat[1], *(self.rows_of[c] for c in new)]),
                np.concatenate([self._flat[2], *(self.loads_of[c] for c in new)]),
            )
            self._flat_columns = len(self.gains)
        column, row, load = self._flat
        costs = np.bincount(column, weights=self.prices[row] * load, minlength=len(self.gains))
        reduced: Floats = np.array(self.gains) - costs
        reduced[[c for c in self.basis if c >= 0]] = 0.0  # they are, but for the errors of many updates
        return reduced

    def _spread(self, rows: Ints, loads: Floats) -> Floats:
        """The inverse times a sparse column, added up line by line."""
        out: Floats = (self.inverse[rows] * loads[:, None]).sum(axis=0)
        return out

    def _enter(self, column: int, reduced: float, change: Floats) -> None:
        able = np.flatnonzero(change > TINY)
        if not len(able):
            raise ArithmeticError("linear program is unbounded")
        ratios = np.maximum(self.level[able], 0.0) / change[able]
        least = float(ratios.min())
        near = able[ratios <= least * (1 + 1e-12) + 1e-15]
        leave = int(near[np.argmax(change[near])])
        line = self._replace(leave, change)
        self.level -= least * change
        self.level[leave] = least
        self.prices = self.prices + reduced * line
        self.basis[leave] = column
        self.pivots += 1
        if self.pivots % FRESH_PIVOTS == 0:
            self._refresh()

    def _refresh(self) -> None:
        """The inverse anew, against the errors of many updates: from the slacks, columns of the basis one by one."""
        size = len(self.basis)
        columns = [column for column in self.basis if column >= 0]
        free = np.ones(size, dtype=bool)
        free[[-1 - column for column in self.basis if column < 0]] = False
        self.inverse = np.eye(size)
        self.basis = [-1 - row for row in range(size)]
        for column in columns:
            change = self._spread(self.rows_of[column], self.loads_of[column])
            place = int(np.argmax(np.where(free, np.abs(change), -1.0)))
            free[place] = False
            self._replace(place, change)
            self.basis[place] = column
        self.level = (self.inverse * self.right[:, None]).sum(axis=0)
        gains = np.array([self.gains[c] if c >= 0 else 0.0 for c in self.basis])
        self.prices = (np.ascontiguousarray(self.inverse.T) * gains[:, None]).sum(axis=0)

    def _replace(self, place: int, change: Floats) -> Floats:
        """Put the column that the inverse takes to `change` in a place of the basis; returns the inverse's new line."""
        line: Floats = self.inverse[:, place] / change[place]
        used, moved = np.flatnonzero(line), np.flatnonzero(change)
        self.inverse[np.ix_(used, moved)] -= line[used, None] * change[moved]
        self.inverse[:, place] = line
        return line
