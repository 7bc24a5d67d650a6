"""The collectives that can be planned: their contributors, receivers, and the contributions of each result.

The payload of the collectives `IN_PARTS` is the whole (all output rows of allgather and gather, all input rows of
reduce_scatter and scatter), cut in one contiguous part per rank: its input (`PARTS_GIVEN`) or output (`PARTS_GOT`).
That of alltoall is cut by pairs: part s * ranks + d goes from rank s, whose input is contiguous, to rank d. Every chunk
of their schedules lies within one part. In canonical order the contributions are virtual shards instead of ranks, of
which each rank owns a contiguous range.
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
CollectiveName = Literal[
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall", "scan", "exscan"
]
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)
IN_PAIRS = ("alltoall",)
PARTS_GIVEN = ("allgather", "gather", *IN_PAIRS)
PARTS_GOT = ("reduce_scatter", "scatter", *IN_PAIRS)
IN_PARTS = tuple(dict.fromkeys((*PARTS_GIVEN, *PARTS_GOT)))
"""Collectives whose payload is cut in one part per rank, or per pair of ranks."""
FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")
ROOTED = (*FROM_ROOT, *TO_ROOT)
CARRYING = ("broadcast", "allgather", "gather", "scatter", "alltoall")
"""Collectives that move values and combine none."""
ORDERS = ("any", "canonical")


@dataclass(frozen=True)
class Collective:
    """One collective over `ranks` ranks.

    Attributes:
        name: One of `COLLECTIVES`.
        root: Root of reduce, broadcast, gather and scatter.
        parts: Rows that each rank gives (allgather, gather) or gets (reduce_scatter, scatter), in rank order; a rank's
            part is the rows after those of the ranks before it. Of alltoall the rows from each rank to each, by giving
            rank, then by getting rank. Zeros are allowed. Empty for the other collectives.
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
        if self.name not in IN_PARTS:
            if self.parts:
                raise PlanError(f"parts {self.parts}: {self.name} has none; they go with {', '.join(IN_PARTS)}")
        elif len(self.parts) != self.part_count or min(self.parts) < 0:
            which = f"{self.part_count} {'pairs of ranks' if self.name in IN_PAIRS else 'ranks'}"
            raise PlanError(f"{self.name}: parts {_few(self.parts)}: expected the rows of each of {which}, 0 or more")
        if self.shards:
            self._check_shards()

    def __str__(self) -> str:
        words = [f"{self.name} over {self.ranks} ranks"]
        words += [f"root {self.root}"] * (self.name in ROOTED)
        words += [f"parts {_few(self.parts)}"] * bool(self.parts)
        words += [f"virtual shards {_few(self.shards)}"] * bool(self.shards)
        return ", ".join(words)

    @property
    def order(self) -> str:
        """The order of its operands, one of `ORDERS`."""
        return "canonical" if self.shards else "any"

    @property
    def part_count(self) -> int:
        """Number of parts, where the payload is cut."""
        return self.ranks**2 if self.name in IN_PAIRS else self.ranks

    def givers(self, parts: Column) -> Column:
        """Return the rank that each part comes from, of `PARTS_GIVEN`."""
        return parts // self.ranks if self.name in IN_PAIRS else parts

    def takers(self, parts: Column) -> Column:
        """Return the rank that each part goes to, of `PARTS_GOT`."""
        return parts % self.ranks if self.name in IN_PAIRS else parts

    def counted(self, rows: int) -> int:
        """Return the rows of a payload of `rows` as nccl-tests counts them: of alltoall the most that a rank sends."""
        if self.name not in IN_PAIRS:
            return rows
        return max(sum(self.parts[low : low + self.ranks]) for low in range(0, self.part_count, self.ranks))

    @property
    def contributors(self) -> range:
        """Ranks that have an input."""
        return range(self.root, self.root + 1) if self.name in FROM_ROOT else range(self.ranks)

    @property
    def receivers(self) -> range:
        """Ranks that have a result; of reduce_scatter and scatter each has its part."""
        if self.name in TO_ROOT:
            return range(self.root, self.root + 1)
        return range(min(1, self.ranks), self.ranks) if self.name == "exscan" else range(self.ranks)

    def expected(self, rank: int, owner: int | None = None) -> range:
        """Return the contributions of the result of `rank`, for chunks of the owner's part."""
        low, high = self.expected_columns(np.array([rank]), np.array([owner or 0]))
        return range(int(low[0]), int(high[0]))

    def receive_columns(self, ranks: Column, owners: Column) -> NDArray[np.bool_]:
        """Return whether the result of each rank has the chunks of each owner's part."""
        among = (ranks >= self.receivers.start) & (ranks < self.receivers.stop)
        return among & (ranks == self.takers(owners)) if self.name in PARTS_GOT else among

    def expected_columns(self, ranks: Column, owners: Column) -> tuple[Column, Column]:
        """Return the first contribution, and the end, of the result of each rank, for chunks of each owner's part."""
        none = np.zeros_like(ranks)
        if self.shards:
            return none, none + self.shards[-1]
        if self.name in PARTS_GIVEN:
            givers = self.givers(owners)
            return givers, givers + 1
        if self.name in ("scan", "exscan"):
            return none, ranks + (self.name == "scan")
        return none + self.contributors.start, none + self.contributors.stop

    def input_owners(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Return the rank that has each chunk as input; empty where every rank with an input has all chunks."""
        if self.name not in PARTS_GIVEN:
            return ()
        return tuple(self.givers(np.array(self.owners(chunks), dtype=np.int64)).tolist())

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.parts))

    def part(self, rank: int) -> tuple[int, int]:
        """Return (first row, rows) of the rank's part of the payload."""
        return self._starts[rank], self.parts[rank]

    def owners(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        """Return the part that each chunk (first row, rows) lies in; empty for collectives without parts.

        A payload of no rows has equally many chunks for every part, in order.

        Raises:
            PlanError: A chunk does not lie within one part.
        """
        if not self.parts:
            return ()
        if not self._starts[-1]:
            count = self.part_count
            if not chunks or len(chunks) % count:
                raise PlanError(f"{self.name} of no rows: {len(chunks)} chunks, expected one per rank, {count}")
            each = len(chunks) // count
            return tuple(chunk // each for chunk in range(len(chunks)))
        owners, owner = [], 0
        for chunk, (first, rows) in enumerate(chunks):
            while owner < self.part_count - 1 and first >= self._starts[owner + 1]:
                owner += 1
            if not (self._starts[owner] <= first and first + rows <= self._starts[owner + 1] and rows):
                raise PlanError(f"{self.name}: chunk {chunk}, rows {first} to {first + rows}, is within no rank's part")
            owners.append(owner)
        return tuple(owners)

    def _check_shards(self) -> None:
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
    """Return the collective of a payload of `rows` rows; its parts, where None, are as even as possible.

    The rows are those of the whole; of alltoall, as `Collective.counted`.

    Raises:
        PlanError: An argument is out of range, or the parts do not add up to the rows.
    """
    if parts is None:
        parts = [size for _, size in split_rows(rows, ranks)] if name in IN_PARTS else ()
        parts *= ranks if name in IN_PAIRS else 1
    collective = Collective(
        name, ranks, whole_number("root", root), whole_numbers("parts", parts), whole_numbers("shards", shards)
    )
    if collective.parts and (in_all := collective.counted(sum(collective.parts))) != rows:
        most = "at most from a rank" if name in IN_PAIRS else "in all"
        raise PlanError(f"{name}: parts of {in_all} rows {most}, the payload has {rows}")
    return collective


def shards_of(order: str, ranks: int, shards: Sequence[int] | None) -> tuple[int, ...]:
    """Return the virtual shards of an order: none for "any"; for "canonical" one per rank unless given.

    Raises:
        PlanError: No such order, shards without canonical order, or no shards at all.
    """
    if order not in ORDERS:
        raise PlanError(f"order {order!r}: expected one of {', '.join(ORDERS)}")
    if order != "canonical":
        if shards is not None:
            raise PlanError(f"shards go with order 'canonical', the order is {order!r}")
        return ()
    owned = whole_numbers("shards", range(ranks + 1) if shards is None else shards)
    if not owned:
        raise PlanError(f"no shards given; expected the first of each of {ranks} ranks and the end, or None")
    return owned


def whole_numbers(what: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers as Python integers; a PlanError names `what` if they are no whole numbers."""
    try:
        return tuple(index(number) for number in numbers)
    except TypeError:
        raise PlanError(f"{what} {numbers!r}: expected whole numbers, one per rank") from None


def whole_number(what: str, number: int) -> int:
    """Return the number as a Python integer; a PlanError names `what` if it is no whole number."""
    try:
        return index(number)
    except TypeError:
        raise PlanError(f"{what} {number!r}: expected a whole number") from None


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"({shown}, ... {len(numbers)} in all)" if len(numbers) > 8 else f"({shown})"
