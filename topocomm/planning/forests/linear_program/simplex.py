"""A linear program solved the same on every machine: primal simplex with an explicit inverse.

maximise c x subject to A x <= b, x >= 0, with b >= 0, so that the slacks are the first basis. Columns may be added
between calls (column generation). Arithmetic is element by element and in one order, without BLAS, so the same input
gives the same bits everywhere. Right sides are raised by tiny distinct amounts, which keeps degenerate programs, as
packings of trees are, from cycling (Charnes 1952); `weights` reckons with the raised ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RAISED = 1e-7
"""Largest relative change of a right side."""
TINY = 1e-9
"""Reduced costs and pivots below it count as zero; rows are scaled so that loads are about 1."""
MANY_ENTRIES, PROMISING, STILL_GOOD = 100_000, 64, 0.1
"""Entries of all columns above which a look at all of them picks so many; of these alone the next columns come, as long
as one gains so much of what the best one gained at that look."""
DENSE = 0.1
"""Part of the inverse that a pivot changes above which all of it is written: picking costs ten times as much."""
FRESH_PIVOTS = 1000
"""Pivots after which the inverse is computed anew."""


class _Columns:
    """Columns of a program laid end to end."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._place: dict[int, int] = {}
        self._column, self._row, self._load = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._gains = np.zeros(0)

    @property
    def entries(self) -> int:
        """Of all columns, without zeros."""
        return len(self._row)

    def extended(self, program: Simplex, numbers: Sequence[int]) -> _Columns:
        """These and more columns."""
        found = _Columns()
        found.numbers = [*self.numbers, *numbers]
        found._place = {number: place for place, number in enumerate(found.numbers)}
        places = [np.full(len(program.rows_of[n]), place) for place, n in enumerate(numbers, len(self.numbers))]
        found._column = np.concatenate([self._column, *places])
        found._row = np.concatenate([self._row, *(program.rows_of[n] for n in numbers)])
        found._load = np.concatenate([self._load, *(program.loads_of[n] for n in numbers)])
        found._gains = np.array([program.gains[n] for n in found.numbers])
        return found

    def reduced(self, prices: Floats, basis: Sequence[int]) -> Floats:
        """What a unit of every column gains at these prices of the rows."""
        costs = np.bincount(self._column, weights=prices[self._row] * self._load, minlength=len(self.numbers))
        reduced: Floats = self._gains - costs
        known = [self._place[c] for c in basis if c in self._place]
        reduced[known] = 0.0  # they are, but for the errors of many updates
        return reduced


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
        self._all = _Columns()
        self._promising: _Columns | None = None
        self._gained = 0.0

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
            best, gain = self._best()
            slack = int(np.argmin(self.prices))
            if max(gain, -float(self.prices[slack])) <= TINY:
                return
            if gain >= -float(self.prices[slack]):
                self._enter(best, gain, self._spread(self.rows_of[best], self.loads_of[best]))
            else:
                self._enter(-1 - slack, -float(self.prices[slack]), self.inverse[slack].copy())

    def _best(self) -> tuple[int, float]:
        """(a column that gains most by a unit, what it gains), of all or of those that were best of all a while ago."""
        if self._promising is not None:
            reduced = self._promising.reduced(self.prices, self.basis)
            best = int(np.argmax(reduced))
            if float(reduced[best]) > max(TINY, STILL_GOOD * self._gained):
                return self._promising.numbers[best], float(reduced[best])
        if len(self._all.numbers) < len(self.gains):
            self._all = self._all.extended(self, range(len(self._all.numbers), len(self.gains)))
        reduced = self._all.reduced(self.prices, self.basis)
        self._gained = float(reduced.max(initial=0.0))
        if self._all.entries > MANY_ENTRIES:
            order = np.argsort(-reduced, kind="stable")[:PROMISING]
            self._promising = _Columns().extended(self, np.sort(order).tolist())
        best = int(np.argmax(reduced)) if len(reduced) else -1
        return best, self._gained

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
        if len(used) * len(moved) < DENSE * self.inverse.size:
            self.inverse[np.ix_(used, moved)] -= line[used, None] * change[moved]
        else:
            self.inverse -= line[:, None] * change
        self.inverse[:, place] = line
        return line
