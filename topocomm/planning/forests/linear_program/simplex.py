"""A linear program solved with the same bits on every machine: primal simplex with an explicit inverse.

Maximise c x subject to A x <= b, x >= 0, with b >= 0: the slacks are the first basis. Columns may be added between
calls (column generation). Arithmetic is element by element in one order, without BLAS. Right sides are raised by tiny
distinct amounts against cycling, since packings of trees are degenerate (Charnes 1952); `weights` uses the raised ones.
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
"""Reduced costs and pivots below this count as zero; rows are scaled so that loads are about 1."""
MANY_ENTRIES, PROMISING, STILL_GOOD = 100_000, 64, 0.1
"""Partial pricing: with more entries than this, the best columns of a full look are priced alone, while one of them
gains at least this part of what the best of that look gained."""
DENSE = 0.1
"""Share of the inverse that a pivot changes above which all of it is written: indexing costs ten times as much."""
FRESH_PIVOTS = 1000
"""Pivots after which the inverse is recomputed."""


class _Columns:
    """Columns of a program as one sparse table."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._place: dict[int, int] = {}
        self._column, self.row, self._load = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._gains = np.zeros(0)

    def extended(self, program: Simplex, numbers: Sequence[int]) -> _Columns:
        """Return these and more columns."""
        columns = _Columns()
        columns.numbers = [*self.numbers, *numbers]
        columns._place = {number: place for place, number in enumerate(columns.numbers)}
        places = [np.full(len(program.rows_of[n]), place) for place, n in enumerate(numbers, len(self.numbers))]
        columns._column = np.concatenate([self._column, *places])
        columns.row = np.concatenate([self.row, *(program.rows_of[n] for n in numbers)])
        columns._load = np.concatenate([self._load, *(program.loads_of[n] for n in numbers)])
        columns._gains = np.array([program.gains[n] for n in columns.numbers])
        return columns

    def reduced(self, prices: Floats, basis: Sequence[int]) -> Floats:
        """Return the reduced cost of every column at these prices of the rows."""
        costs = np.bincount(self._column, weights=prices[self.row] * self._load, minlength=len(self.numbers))
        reduced: Floats = self._gains - costs
        known = [self._place[c] for c in basis if c in self._place]
        reduced[known] = 0.0  # exact, without the errors of many updates
        return reduced


class Simplex:
    """One linear program, its columns so far, and a basis of them.

    The right sides of the rows are about 1 each; a 0 becomes the raised amount alone.
    """

    def __init__(self, right: Floats) -> None:
        rows = len(right)
        golden = (np.arange(1, rows + 1) * 0.6180339887498949) % 1.0
        self.right = right + RAISED * (0.5 + golden)
        self.basis = [-1 - row for row in range(rows)]
        """Column in the basis by place; -1 - r is the slack of row r."""
        self.inverse = np.eye(rows)
        """Transposed, [row, place]: a sparse column times the inverse adds whole lines."""
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
        """Add a column by its entries that are not zero; return its number."""
        self.rows_of.append(rows)
        self.loads_of.append(loads)
        self.gains.append(gain)
        return len(self.gains) - 1

    def value(self) -> float:
        """Return the objective of the basis."""
        return float(sum(self.gains[c] * self.level[i] for i, c in enumerate(self.basis) if c >= 0))

    def weights(self) -> dict[int, float]:
        """Return the columns above zero, with their values."""
        return {c: float(self.level[i]) for i, c in enumerate(self.basis) if c >= 0 and self.level[i] > 0}

    def solve(self, most_pivots: int = 100_000) -> None:
        """Pivot until no column improves."""
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
        """Return (column of greatest reduced cost, that cost), of all columns or by partial pricing."""
        if self._promising is not None:
            reduced = self._promising.reduced(self.prices, self.basis)
            best = int(np.argmax(reduced))
            if float(reduced[best]) > max(TINY, STILL_GOOD * self._gained):
                return self._promising.numbers[best], float(reduced[best])
        if len(self._all.numbers) < len(self.gains):
            self._all = self._all.extended(self, range(len(self._all.numbers), len(self.gains)))
        reduced = self._all.reduced(self.prices, self.basis)
        self._gained = float(reduced.max(initial=0.0))
        if len(self._all.row) > MANY_ENTRIES:
            order = np.argsort(-reduced, kind="stable")[:PROMISING]
            self._promising = _Columns().extended(self, np.sort(order).tolist())
        best = int(np.argmax(reduced)) if len(reduced) else -1
        return best, self._gained

    def _spread(self, rows: Ints, loads: Floats) -> Floats:
        """Return the inverse times a sparse column, added up line by line."""
        out: Floats = (self.inverse[rows] * loads[:, None]).sum(axis=0)
        return out

    def _enter(self, column: int, reduced: float, change: Floats) -> None:
        able = np.flatnonzero(change > TINY)
        if not len(able):
            raise ArithmeticError("linear program is unbounded")
        ratios = np.maximum(self.level[able], 0.0) / change[able]
        least = float(ratios.min())
        tied = able[ratios <= least * (1 + 1e-12) + 1e-15]
        leave = int(tied[np.argmax(change[tied])])
        line = self._replace(leave, change)
        self.level -= least * change
        self.level[leave] = least
        self.prices = self.prices + reduced * line
        self.basis[leave] = column
        self.pivots += 1
        if self.pivots % FRESH_PIVOTS == 0:
            self._refresh()

    def _refresh(self) -> None:
        """Recompute the inverse from the slacks, columns of the basis one by one."""
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
        """Put the column of this change in a place of the basis; return the new line of the inverse."""
        line: Floats = self.inverse[:, place] / change[place]
        used, moved = np.flatnonzero(line), np.flatnonzero(change)
        if len(used) * len(moved) < DENSE * self.inverse.size:
            self.inverse[np.ix_(used, moved)] -= line[used, None] * change[moved]
        else:
            self.inverse -= line[:, None] * change
        self.inverse[:, place] = line
        return line
