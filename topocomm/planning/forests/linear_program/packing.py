"""Packing trees into capacities: the linear program whose columns are found one by one, and a bound from its prices.

maximise the sum of weights, subject to load <= capacity in every row. A pricer finds, for prices on the rows, what
carries one unit at least cost; sum(capacity * price) / (that cost) bounds every packing from above (weak duality), so
the search stops with a certificate. Prices are drawn towards the best ones so far, which keeps them from swinging
(Wentges 1997). Programs of many rows soon turn to the method of multiplicative weights (Plotkin, Shmoys, Tardos 1995):
one cheap column after the other, under prices that grow exponentially with what each row has carried so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.forests.tree import Tree

FLOOR = 1e-7
"""Least price of a row, as a part of the mean: of ways that cost nothing the shorter one is taken."""
DRAWN = 0.5
"""How much of the best prices so far is mixed into those of the linear program."""
MANY_ROWS = 64
"""Rows of links above which multiplicative weights help, unless a few turns are enough."""
TRIAL_TURNS = 12
FIRST_TURNS = 600
"""Most of these turns; as many as there are rows, if these are fewer. Where the payload has a share of every root, a
turn brings a tree of each: so many turns for a pair of them, and at least `FEWEST_TURNS`."""
FEWEST_TURNS = 12
STEEP = 0.5
"""Exponent of the prices in the last of these turns, per turn; it rises in proportion from a tenth of it."""
PATIENCE = 4
"""Turns without an improving column at the program's own prices before the search ends."""
IMPROVES = 1e-9
SMALLEST = 1e-6
"""Weights below this part of the greatest are errors of arithmetic."""


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


@dataclass(frozen=True)
class Column:
    """Something that carries payload, what one GB/s of it puts on the rows (not zeros), and what it gains."""

    rows: Ints
    loads: Floats
    carrier: Pair | None = None
    gain: float = 1.0

    @property
    def pair(self) -> Pair:
        """What carries; the columns from the start have none."""
        assert self.carrier is not None, "a column from the start carries nothing itself"
        return self.carrier


Parts = tuple[tuple[float, Column], ...]
"""(GB/s, column) of a packing, the heaviest first."""


class Pricer(Protocol):
    """Finds cheap columns."""

    row: Ints
    """int64 [links]: row of every link."""
    capacity: Floats
    """GB/s of every row; 0 of the rows that follow the links', which balance columns against each other."""
    links: int
    """Rows that stand for links: those that have a price."""

    def start(self) -> list[Column]:
        """Columns that are there from the start."""
        ...

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterable[Iterable[Column]]]:
        """(cost that no unit of payload undercuts, or 0 where not all was looked at; groups of columns to try).

        Of a group the first that improves the packing is taken, so the most welcome comes first.

        Args:
            prices: float64 [links], above zero.
            turn: Number of the call, for a pricer that takes turns among roots.
        """
        ...

    def relax(self) -> bool:
        """Offer more than so far, where offers were limited to welcome ones; False where nothing was left out."""
        ...

    def share(self, column: Column) -> float:
        """GB/s of the column in one GB/s of payload."""
        ...

    def total(self, parts: Sequence[tuple[float, Column]]) -> float:
        """GB/s of payload that weighted columns carry."""
        ...


@dataclass(frozen=True)
class Packing:
    """Weights of columns that keep all capacities.

    Attributes:
        parts: (GB/s, column), the heaviest first.
        gb_per_s: The payload that they carry.
        bound_gb_per_s: What no packing exceeds.
        columns: All that were tried, those from the start first.
        prices: Of the links' rows, those that gave the bound.
        last_prices: Those of the program at the end.
    """

    parts: Parts
    gb_per_s: float
    bound_gb_per_s: float
    columns: tuple[Column, ...]
    prices: Floats
    last_prices: Floats


def pack(pricer: Pricer, accuracy: float, most_turns: int, first_turns: int = FIRST_TURNS) -> Packing:
    """The best packing, to within `accuracy` of the bound unless the turns run out first.

    Of multiplicative weights there are at most `first_turns` more.
    """
    search = _Search(pricer)
    trial = 0 if pricer.start() else TRIAL_TURNS  # a column of every root is needed before anything is carried
    while search.turns < most_turns and search.value < search.bound * (1 - accuracy) and search.idle < PATIENCE:
        if search.turns == trial and pricer.links > MANY_ROWS:
            search.spread(first_turns)
        search.turn()
    return search.result()


def repack(pricer: Pricer, columns: Sequence[Column]) -> Parts:
    """The best weights of the given columns alone, the heaviest first."""
    return priced(pricer, columns)[0]


def priced(pricer: Pricer, columns: Sequence[Column]) -> tuple[Parts, Floats]:
    """(the best weights of the given columns alone, as by `repack`; the program's prices of all rows)."""
    program = _Program(pricer.capacity)
    for column in columns:
        program.add(column)
    program.simplex.solve()
    return program.parts(), program.simplex.prices * program.scale


def _steeply(exponents: Floats) -> Floats:
    """About 2 to these exponents, linear between whole ones: `exp` differs in its last bit from machine to machine."""
    whole = np.floor(exponents)
    found: Floats = np.ldexp(1 + (exponents - whole), whole.astype(np.int32))
    return found


class _Program:
    """The linear program over the columns so far, its rows scaled to a capacity of 1."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.unit = float(capacity.max())
        """GB/s that a weight of 1 stands for."""
        self.scale = np.divide(self.unit, capacity, out=np.ones(len(capacity)), where=capacity > 0)
        self.simplex = Simplex((capacity > 0).astype(float))
        self.columns: list[Column] = []

    def improves(self, column: Column) -> bool:
        """Whether it would raise the objective at the program's own prices."""
        costs = self.simplex.prices[column.rows] * column.loads * self.scale[column.rows]
        return float(sum(costs.tolist())) < column.gain - IMPROVES * max(column.gain, 1e-3)

    def add(self, column: Column) -> None:
        self.columns.append(column)
        self.simplex.add(column.rows, column.loads * self.scale[column.rows], column.gain)

    def parts(self) -> Parts:
        """Weights that keep the capacities exactly, against the raised right sides; tiny ones are left out."""
        weights = self.simplex.weights()
        most = max((weight for c, weight in weights.items() if self.columns[c].carrier is not None), default=0.0)
        kept = sorted(c for c, w in weights.items() if self.columns[c].carrier is not None and w > SMALLEST * most)
        load = np.zeros(len(self.capacity))
        for c in kept:
            load[self.columns[c].rows] += weights[c] * self.columns[c].loads
        real = self.capacity > 0
        over = float((load[real] / self.capacity[real]).max(initial=0.0))
        order = sorted(kept, key=lambda c: (-weights[c], c))
        return tuple((weights[c] / over, self.columns[c]) for c in order)


class _Search:
    """One packing under way."""

    def __init__(self, pricer: Pricer) -> None:
        self.pricer = pricer
        self.program: _Program = _Program(pricer.capacity)
        for column in pricer.start():
            self.program.add(column)
        self.program.simplex.solve()
        self.capacity = pricer.capacity[: pricer.links]
        self.known: set[tuple[bytes, bytes]] = set()
        self.best = self.capacity / self.capacity.sum()
        self.bound, self.value = np.inf, 0.0
        self.turns = self.idle = 0
        self.drawn = 1.0

    def spread(self, most_turns: int) -> None:
        """Fill the program with the columns of multiplicative weights."""
        load = np.zeros(len(self.capacity))
        turns = min(len(load), most_turns)
        shares = sum([len(column.rows) for column in self.pricer.start()])
        turns = max(2 * turns // max(shares, 2), FEWEST_TURNS)
        for turn in range(turns):
            steep = STEEP * (0.1 * turns + 0.9 * turn)
            prices = _steeply(steep * (load / load.max() - 1)) if turn else np.ones(len(load))
            offers = self._price(prices / float(prices.sum()), turn)
            for column in (next(iter(group)) for group in offers):
                own = column.rows < len(load)
                load[column.rows[own]] += (
                    self.pricer.share(column) * column.loads[own] / self.capacity[column.rows[own]]
                )
                if self._new(column):
                    self.program.add(column)
        self.program.simplex.solve()
        self.value = self.program.simplex.value() * self.program.unit

    def turn(self) -> None:
        """Price once, and pivot if something improves. Prices here are for rows scaled to a capacity of 1."""
        own = np.maximum(self.program.simplex.prices[: len(self.capacity)], 0.0)
        total = float(own.sum())
        mixed = self.drawn * self.best * total + (1 - self.drawn) * own if total else self.best.copy()
        offers = self._price(mixed / float(mixed.sum()), self.turns)
        self.turns += 1
        if self._take(offers):
            self.program.simplex.solve()
            self.value = self.program.simplex.value() * self.program.unit
            self.drawn, self.idle = DRAWN, 0
        elif self.drawn:
            self.drawn = 0.0
        elif not self.pricer.relax():
            self.idle += 1

    def _price(self, prices: Floats, turn: int) -> Iterable[Iterable[Column]]:
        """What the pricer offers at prices that add up to 1, its bound taken down."""
        prices = (prices + FLOOR / len(prices)) / (1 + FLOOR)
        least, offers = self.pricer.price(prices / self.capacity, turn)
        if least and 1 / least < self.bound:
            self.bound, self.best = 1 / least, prices
        return offers

    def _new(self, column: Column) -> bool:
        key = (column.rows.tobytes(), column.loads.tobytes())
        new = key not in self.known
        self.known.add(key)
        return new

    def _take(self, offers: Iterable[Iterable[Column]]) -> bool:
        taken = False
        for group in offers:
            for column in group:
                if self.program.improves(column) and self._new(column):
                    self.program.add(column)
                    taken = True
                    break
        return taken

    def result(self) -> Packing:
        parts = self.program.parts()
        prices = self.best / self.capacity
        last = np.maximum(self.program.simplex.prices[: len(self.capacity)], 0.0) / self.capacity
        whole = self.pricer.total(parts)
        return Packing(parts, whole, self.bound, tuple(self.program.columns), prices, last)
