"""Packing trees into capacities: a linear program with column generation, and a bound from its prices.

Maximise the sum of weights, subject to load <= capacity in every row. For prices on the rows, a pricer finds what
carries one unit at least cost; sum(capacity * price) / cost bounds every packing from above (weak duality), so the
search ends with a certificate. Prices are mixed with the best ones so far to damp oscillation (Wentges 1997). Programs
of many rows begin with multiplicative weights (Plotkin, Shmoys, Tardos 1995): one cheap column after another, under
prices that grow exponentially with the load of each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.interval import IntervalPlan
from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.forests.tree import Tree

FLOOR = 1e-7
"""Least price of a row, as a part of the mean: among paths without a price the shorter one is taken."""
DRAWN = 0.5
"""Share of the best prices so far in the mixed prices."""
MANY_ROWS = 64
"""Most rows of links of a program that does without multiplicative weights."""
TRIAL_TURNS = 12
"""Turns of column generation before multiplicative weights: often they are enough."""
FIRST_TURNS = 600
"""Most turns of multiplicative weights, and no more than there are rows. Where every root has a share of the payload,
a turn brings a tree of each, and the number is divided by the pairs of roots."""
FEWEST_TURNS = 12
"""Least turns of multiplicative weights."""
STEEP = 0.5
"""Exponent of the prices per turn, in the last turn; it begins at a tenth and rises linearly."""
PATIENCE = 4
"""Turns without an improving column at the program's own prices before the search ends."""
IMPROVES = 1e-9
"""Least gain of a column, as a part of its objective, that counts as an improvement."""
SMALLEST = 1e-6
"""Weights below this part of the greatest are rounding errors."""


class Pair(NamedTuple):
    """The tree (or plan) that reduces to a root and the tree that broadcasts from it; either may be None.

    The edges of a reduce tree lead away from the root, as those of a broadcast tree.
    """

    up: Tree | IntervalPlan | None
    down: Tree | None

    @property
    def root(self) -> int:
        """Root of both."""
        tree = self.up or self.down
        assert tree is not None, "something goes up or down"
        return tree.root

    @property
    def tree(self) -> Tree:
        """The broadcast tree, or the reduce tree where there is none."""
        tree = self.down or self.up
        assert isinstance(tree, Tree), "no plan that merges ranges"
        return tree

    @property
    def height(self) -> int:
        """Most edges between a rank and the root."""
        return max(tree.height for tree in self if tree is not None)


@dataclass(frozen=True)
class Column:
    """The load of one GB/s of a carrier on the rows (zeros left out), and its gain in the objective."""

    rows: Ints
    loads: Floats
    carrier: Pair | None = None
    gain: float = 1.0

    @property
    def pair(self) -> Pair:
        """The carrier; columns from the start have none."""
        assert self.carrier is not None, "a column from the start carries nothing itself"
        return self.carrier

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Equal for columns of equal loads."""
        return self.rows.tobytes(), self.loads.tobytes()


Parts = tuple[tuple[float, Column], ...]
"""(GB/s, column) of a packing, the heaviest first."""


class Pricer(ABC):
    """Finds cheap columns for prices on the rows.

    Attributes:
        row: Row of every link, int64 [links].
        capacity: GB/s of every row; 0 of rows after those of links, which balance columns against each other.
        links: Number of rows that stand for links and have prices.
    """

    def __init__(self, network: Network, row: Ints, capacity: Floats) -> None:
        self.network, self.row, self.capacity, self.links = network, row, capacity, len(capacity)

    def start(self) -> list[Column]:
        """Return the columns of the program before any is generated."""
        return []

    @abstractmethod
    def price(self, prices: Floats, turn: int) -> tuple[float, Iterable[Iterable[Column]]]:
        """Return (least cost of a unit of payload, or 0 if unknown; groups of columns to try, the best of each first).

        Prices are float64 [links], above zero; `turn` numbers the calls, for pricers that alternate between roots.
        """

    def relax(self) -> bool:
        """Lift a limit on the columns offered; False where there is none."""
        return False

    def share(self, column: Column) -> float:
        """Return the GB/s of the column in one GB/s of payload."""
        return 1.0

    def total(self, parts: Sequence[tuple[float, Column]]) -> float:
        """Return the GB/s of payload that weighted columns carry."""
        return sum(weight for weight, _ in parts)


@dataclass(frozen=True)
class Packing:
    """Weights of columns that keep all capacities, a bound that none exceed, and all columns, the start's first.

    Attributes:
        prices: float64 [links]: the prices of the bound, of whole capacities; they sum to 1.
    """

    parts: Parts
    bound_gb_per_s: float
    columns: tuple[Column, ...]
    prices: Floats


def pack(pricer: Pricer, accuracy: float, most_turns: int, first_turns: int = FIRST_TURNS) -> Packing:
    """Return the best packing, to within `accuracy` (relative) of the bound unless the turns run out first.

    `first_turns` is the most turns of multiplicative weights, `most_turns` those of column generation.
    """
    search = _Search(pricer)
    trial = 0 if pricer.start() else TRIAL_TURNS  # a column of every root is needed before anything is carried
    while search.turns < most_turns and search.value < search.bound * (1 - accuracy) and search.idle < PATIENCE:
        if search.turns == trial and pricer.links > MANY_ROWS:
            search.spread(first_turns)
        search.turn()
    return Packing(search.program.parts(), search.bound, tuple(search.program.columns), search.best)


def repack(pricer: Pricer, columns: Sequence[Column]) -> Parts:
    """Return the best weights of these columns alone."""
    return priced(pricer, columns)[0]


def priced(pricer: Pricer, columns: Sequence[Column]) -> tuple[Parts, Floats]:
    """Return (the best weights of these columns alone, prices of all rows)."""
    program = _Program(pricer.capacity)
    for column in columns:
        program.add(column)
    program.simplex.solve()
    return program.parts(), program.simplex.prices * program.scale


def _power_of_two(exponents: Floats) -> Floats:
    """Return about 2 to the exponents, linear between whole ones: `exp` has other last bits on other machines."""
    whole = np.floor(exponents)
    powers: Floats = np.ldexp(1 + (exponents - whole), whole.astype(np.int32))
    return powers


class _Program:
    """The linear program over the columns so far, rows scaled to a capacity of 1."""

    def __init__(self, capacity: Floats) -> None:
        self.capacity = capacity
        self.unit = float(capacity.max())
        """GB/s of a weight of 1."""
        self.scale = np.divide(self.unit, capacity, out=np.ones(len(capacity)), where=capacity > 0)
        self.simplex = Simplex((capacity > 0).astype(float))
        self.columns: list[Column] = []

    def improves(self, column: Column) -> bool:
        """Whether the column would raise the objective at the program's own prices."""
        costs = self.simplex.prices[column.rows] * column.loads * self.scale[column.rows]
        return float(sum(costs.tolist())) < column.gain - IMPROVES * max(column.gain, 1e-3)

    def add(self, column: Column) -> None:
        self.columns.append(column)
        self.simplex.add(column.rows, column.loads * self.scale[column.rows], column.gain)

    def parts(self) -> Parts:
        """Return weights scaled to keep the capacities exactly; tiny ones are left out."""
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
    """The state of one packing."""

    def __init__(self, pricer: Pricer) -> None:
        self.pricer = pricer
        self.program = _Program(pricer.capacity)
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
        """Add the columns of multiplicative weights to the program."""
        load = np.zeros(len(self.capacity))
        turns = min(len(load), most_turns)
        shares = sum([len(column.rows) for column in self.pricer.start()])
        turns = max(2 * turns // max(shares, 2), FEWEST_TURNS)
        for turn in range(turns):
            steep = STEEP * (0.1 * turns + 0.9 * turn)
            prices = _power_of_two(steep * (load / load.max() - 1)) if turn else np.ones(len(load))
            offers = self._price(prices / float(prices.sum()), turn)
            for column in (next(iter(group)) for group in offers):
                own = column.rows < len(load)
                load[column.rows[own]] += (
                    self.pricer.share(column) * column.loads[own] / self.capacity[column.rows[own]]
                )
                self._add_new(column)
        self._solve()

    def turn(self) -> None:
        """Price once, with prices for scaled rows, and solve if a column improves."""
        own = np.maximum(self.program.simplex.prices[: len(self.capacity)], 0.0)
        total = float(own.sum())
        mixed = self.drawn * self.best * total + (1 - self.drawn) * own if total else self.best.copy()
        offers = self._price(mixed / float(mixed.sum()), self.turns)
        self.turns += 1
        taken = [any(self.program.improves(c) and self._add_new(c) for c in group) for group in offers]
        if any(taken):  # the first of each group that improves the program
            self._solve()
            self.drawn, self.idle = DRAWN, 0
        elif self.drawn:
            self.drawn = 0.0
        elif not self.pricer.relax():
            self.idle += 1

    def _solve(self) -> None:
        self.program.simplex.solve()
        self.value = self.program.simplex.value() * self.program.unit

    def _price(self, prices: Floats, turn: int) -> Iterable[Iterable[Column]]:
        """Return the columns offered at prices that add up to 1, and keep the bound if it is better."""
        prices = (prices + FLOOR / len(prices)) / (1 + FLOOR)
        least, offers = self.pricer.price(prices / self.capacity, turn)
        if least and 1 / least < self.bound:
            self.bound, self.best = 1 / least, prices
        return offers

    def _add_new(self, column: Column) -> bool:
        """Add the column to the program unless it was added before; return whether it was added."""
        if column.key in self.known:
            return False
        self.known.add(column.key)
        self.program.add(column)
        return True
