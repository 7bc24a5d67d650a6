"""The collectives that can be planned: who puts a value in, and what each result holds.

Of `allgather` and `reduce_scatter` the payload is the whole (all rows that allgather puts out, all rows that
reduce_scatter takes in), cut in one contiguous part per rank: what the rank gives (allgather) or gets
(reduce_scatter). Every chunk of their schedules lies within one part. In canonical order the contributions are
virtual shards instead of ranks: `shards` says which contiguous range of them each rank owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import index
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.schedule.schedule import split_rows

Column = NDArray[np.int64]
CollectiveName = Literal["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "scan", "exscan"]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)
IN_PARTS = ("allgather", "reduce_scatter")
"""Collectives whose payload is cut in one part per rank."""
CARRYING = ("broadcast", "allgather")
"""Collectives that move values and combine none."""
ORDERS = ("any", "canonical")


@dataclass(frozen=True)
class Collective:
    """One collective over `ranks` ranks.

    Attributes:
        name: One of `COLLECTIVES`.
        ranks: How many.
        root: Counts for reduce and broadcast only.
        parts: Rows that each rank gives (allgather) or gets (reduce_scatter), in rank order; a rank's part is the
            rows after those of the ranks before it. Zeros are allowed. Empty for the other collectives.
        shards: Canonical order (allreduce only): first virtual shard of each rank's contiguous range, and the end
            of the last: (0, 3, 3, 8) gives rank 0 the shards 0..2, rank 1 none, rank 2 the shards 3..7. Empty: any
            order.
    """

    name: str
    ranks: int
    root: int = 0
    parts: tuple[int, ...] = ()
    shards: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            raise PlanError(f"unknown collective {self.name!r}; expected one of {', '.join(COLLECTIVES)}")
        if self.ranks < 1:
            raise PlanError(f"a collective needs at least one rank, got {self.ranks}")
        if not 0 <= self.root < self.ranks:
            raise PlanError(f"root {self.root} is outside ranks 0..{self.ranks - 1}")
        self._check_parts()
        self._check_shards()

    def __str__(self) -> str:
        told = [f"{self.name} over {self.ranks} ranks"]
        told += [f"root {self.root}"] * (self.name in ("reduce", "broadcast"))
        told += [f"parts {_few(self.parts)}"] * bool(self.parts)
        told += [f"virtual shards {_few(self.shards)}"] * bool(self.shards)
        return ", ".join(told)

    @property
    def order(self) -> str:
        """The order of its operands, one of `ORDERS`."""
        return "canonical" if self.shards else "any"

    @property
    def contributors(self) -> range:
        """Ranks whose value goes in."""
        return range(self.root, self.root + 1) if self.name == "broadcast" else range(self.ranks)

    @property
    def receivers(self) -> range:
        """Ranks that hold a result; of reduce_scatter each holds its part."""
        if self.name == "reduce":
            return range(self.root, self.root + 1)
        return range(min(1, self.ranks), self.ranks) if self.name == "exscan" else range(self.ranks)

    def receives(self, rank: int, owner: int | None = None) -> bool:
        """Whether the rank's result has the chunks of this owner's part."""
        return rank in self.receivers and (self.name != "reduce_scatter" or rank == owner)

    def expected(self, rank: int, owner: int | None = None) -> range:
        """Contributions that the result of `rank` holds, each once.

        Args:
            rank: Whose result.
            owner: Whose part the chunk lies in; of allgather and reduce_scatter only.
        """
        if self.shards:
            return range(self.shards[-1])
        if self.name == "allgather":
            assert owner is not None, "a chunk of an allgather has an owner"
            return range(owner, owner + 1)
        if self.name in ("scan", "exscan"):
            return range(rank + (self.name == "scan"))
        return self.contributors

    def receive_columns(self, ranks: Column, owners: Column) -> NDArray[np.bool_]:
        """`receives` of many ranks, and owners of the chunks' parts, at once."""
        among = (ranks >= self.receivers.start) & (ranks < self.receivers.stop)
        return among & (ranks == owners) if self.name == "reduce_scatter" else among

    def expected_columns(self, ranks: Column, owners: Column) -> tuple[Column, Column]:
        """First contribution, and the end, of `expected` for many ranks and owners at once."""
        none = np.zeros_like(ranks)
        if self.shards:
            return none, none + self.shards[-1]
        if self.name == "allgather":
            return owners, owners + 1
        if self.name in ("scan", "exscan"):
            return none, ranks + (self.name == "scan")
        return none + self.contributors.start, none + self.contributors.stop

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.parts))

    def part(self, rank: int) -> tuple[int, int]:
        """(first row, rows) of the rank's part of the payload."""
        return self._starts[rank], self.parts[rank]

    def owners(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Whose part each chunk (first row, rows) lies in; empty for collectives without parts.

        A payload of no rows has as many chunks for one rank as for another, in rank order.

        Raises:
            PlanError: A chunk does not lie within one part.
        """
        if not self.parts:
            return ()
        if not self._starts[-1]:
            if not chunks or len(chunks) % self.ranks:
                raise PlanError(f"{self.name} of no rows: {len(chunks)} chunks, expected one per rank, {self.ranks}")
            each = len(chunks) // self.ranks
            return tuple(chunk // each for chunk in range(len(chunks)))
        found, owner = [], 0
        for chunk, (first, rows) in enumerate(chunks):
            while owner < self.ranks - 1 and first >= self._starts[owner + 1]:
                owner += 1
            if not (self._starts[owner] <= first and first + rows <= self._starts[owner + 1] and rows):
                raise PlanError(f"{self.name}: chunk {chunk}, rows {first} to {first + rows}, is within no rank's part")
            found.append(owner)
        return tuple(found)

    def _check_parts(self) -> None:
        if self.name not in IN_PARTS:
            if self.parts:
                raise PlanError(f"parts {self.parts}: {self.name} has none; they go with {' and '.join(IN_PARTS)}")
        elif len(self.parts) != self.ranks or min(self.parts) < 0:
            raise PlanError(
                f"{self.name}: parts {_few(self.parts)}: expected the rows of each of {self.ranks} ranks, 0 or more"
            )

    def _check_shards(self) -> None:
        if not self.shards:
            return
        if self.name != "allreduce":
            raise PlanError(f"{self.name} in canonical order: expected allreduce, the only collective that has it")
        falling = any(before > after for before, after in pairwise(self.shards))
        if len(self.shards) != self.ranks + 1 or self.shards[0] or falling or not self.shards[-1]:
            raise PlanError(
                f"shards {_few(self.shards)}: expected the first virtual shard of each of {self.ranks} ranks and the "
                "end of the last, starting at 0, never falling, ending at 1 or more"
            )


def collective_of(
    name: str,
    ranks: int,
    rows: int,
    *,
    root: int = 0,
    parts: Sequence[int] | None = None,
    shards: Sequence[int] = (),
) -> Collective:
    """Return the collective with its parts filled in and checked against the rows.

    Args:
        name: One of `COLLECTIVES`.
        ranks: How many.
        rows: Of the payload.
        root: Of reduce and broadcast.
        parts: Rows that each rank gives (allgather) or gets (reduce_scatter); None: as even as possible.
        shards: As of `Collective`.

    Raises:
        PlanError: An argument is out of range, or the parts do not add up to the rows.
    """
    if parts is None:
        parts = [size for _, size in split_rows(rows, ranks)] if name in IN_PARTS else ()
    made = Collective(
        name, ranks, whole_number("root", root), whole_numbers("parts", parts), whole_numbers("shards", shards)
    )
    if made.parts and sum(made.parts) != rows:
        raise PlanError(f"{name}: parts of {sum(made.parts)} rows in all, the payload has {rows}")
    return made


def shards_of(order: str, ranks: int, shards: Sequence[int] | None) -> tuple[int, ...]:
    """Return the virtual shards of an order: empty for "any", one per rank for "canonical" unless they are given.

    Raises:
        PlanError: No such order, shards without canonical order, or no shards at all.
    """
    if order not in ORDERS:
        raise PlanError(f"order {order!r}: expected one of {', '.join(ORDERS)}")
    if order != "canonical":
        if shards is not None:
            raise PlanError(f"shards go with order 'canonical', the order is {order!r}")
        return ()
    found = whole_numbers("shards", range(ranks + 1) if shards is None else shards)
    if not found:
        raise PlanError(f"no shards given; expected the first of each of {ranks} ranks and the end, or None")
    return found


def whole_numbers(what: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers, one per rank, as Python integers.

    Raises:
        PlanError: They are no whole numbers.
    """
    try:
        return tuple(index(number) for number in numbers)
    except TypeError:
        raise PlanError(f"{what} {numbers!r}: expected whole numbers, one per rank") from None


def whole_number(what: str, number: int) -> int:
    """Return the number as a Python integer.

    Raises:
        PlanError: It is no whole number.
    """
    try:
        return index(number)
    except TypeError:
        raise PlanError(f"{what} {number!r}: expected a whole number") from None


def _few(numbers: Sequence[int]) -> str:
    """The numbers, cut where they are many."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"({shown}, ... {len(numbers)} in all)" if len(numbers) > 8 else f"({shown})"
