"""The memory of a prepared call and what a rank does in it.

An engine is one set of buffers with this rank's program bound to them. Calls by messages have one engine. Calls in
memory that all ranks map have two, used in turn; on one host they run in C, apart from folds that are not compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from topocomm.execute.calls.structure import Fields
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.shared_memory import SharedArena, SharedMemory
from topocomm.execute.transports.transport import Message
from topocomm.operators.layout import Buffer, Fold, Layout
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import IN_PARTS, ROOTED, TO_ROOT
from topocomm.planning.plan import Plan
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule

NOTHING = object()
"""Placeholder returned on ranks that receive no result, where None has another meaning."""


class Unsettled(NamedTuple):
    """A result that counts where flags say so (`row_flags.py`), which are missing or tell of changes."""

    result: Any


@dataclass(frozen=True)
class Span:
    """The rows of the whole payload that one array holds.

    Attributes:
        first: The first of them.
        leading: The array's shape in place of `*rows`.
        stretches: Where they are not contiguous, the first row in the payload, and in the array, of each stretch.
    """

    first: int
    leading: tuple[int, ...]
    stretches: tuple[tuple[int, int], ...] = ()

    def place(self, row: int) -> int:
        """Return the place in the array of a row of the payload, which it holds."""
        if not self.stretches:
            return row - self.first
        first, place = self.stretches[bisect_right(self.stretches, row, key=itemgetter(0)) - 1]
        return place + row - first

    @property
    def rows(self) -> int:
        return prod(self.leading)


@dataclass(frozen=True)
class Work:
    """Work of a call's engines on one rank.

    Attributes:
        schedule: The plan's, unrolled: whoever executes it knows nothing of `repeat`.
        layout: Of the whole payload.
        value: What this rank's value holds; `result` what its result holds.
        tensors: Whether the operator's combine is given tensors.
        chunks: (first row, rows) of every chunk; None takes the schedule's.
        arena: Where its shared memory is taken from.
    """

    plan: Plan
    schedule: Schedule
    operator: Operator
    layout: Layout
    tag: int
    rank: int
    value: Span
    result: Span
    tensors: bool = False
    chunks: tuple[tuple[int, int], ...] | None = None
    arena: SharedArena = field(default_factory=SharedArena, compare=False, repr=False)

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """(first row, rows) of every chunk."""
        return self.schedule.chunks if self.chunks is None else self.chunks

    @staticmethod
    def input_slots(pieces: Sequence[Piece]) -> list[int]:
        """The slots of a rank's value: several in canonical order, one after the other in the value's rows."""
        return list(dict.fromkeys(slot for slot, _ in pieces))

    def chunk_bytes(self, chunk: int) -> int:
        """Return the packed bytes of a chunk."""
        return self.layout.packed_bytes(self.chunk_rows(chunk))

    def chunk_rows(self, chunk: int) -> int:
        return self.parts[chunk][1]

    def bind_fold(self, memory: Buffer, offsets: Mapping[Piece, int], combine: Combine) -> Fold:
        """Bind a fold of the schedule to operands that lie at these offsets of a memory."""
        places = [offsets[slot, combine.chunk] for slot in combine.operands]
        rows = self.chunk_rows(combine.chunk)
        return self.operator.bind_fold(self.layout, memory, rows, places, tensors=self.tensors)

    def send_buffer(self, memory: Buffer, offsets: Mapping[Piece, int], pieces: Sequence[Piece]) -> Fields | None:
        """Return the send buffer in the user's shapes; None if this rank has no value or the plan splits it."""
        layout, span = self.layout, self.value
        if len(pieces) != 1 or self.chunk_rows(pieces[0][1]) != span.rows:
            return None
        views = layout.views(memory, offsets[pieces[0]], span.rows)
        return {f.name: views[f.name].reshape((*span.leading, *f.row_shape)) for f in layout.fields}

    @property
    def gives_result(self) -> bool:
        """Whether this rank gets a result."""
        return self.plan.collective.name not in TO_ROOT or self.rank == self.plan.collective.root

    @property
    def first_of_exscan(self) -> bool:
        """Whether this rank gets the identity, since nothing comes before it."""
        return self.plan.collective.name == "exscan" and not self.rank

    @property
    def synchronises(self) -> bool:
        """Whether no rank finishes a call that some rank has not begun.

        Then a rank in its call n + 2 knows that every rank has finished call n: each is in n + 1 at least.
        """
        collective = self.plan.collective
        everyone = collective.name == "allreduce" or (collective.name in IN_PARTS and collective.name not in ROOTED)
        owners = (*collective.parts, *(high - low for low, high in pairwise(collective.shards)))
        return everyone and all(count > 0 for count in owners)


class Part(NamedTuple):
    """Memory of some rows of one field.

    Attributes:
        rows: Range of the array's flattened rows.
        view: [rows, *dims], an array or a tensor.
    """

    name: str
    rows: slice
    view: Any


def parts_of_pieces(
    work: Work, views: Callable[[Piece, int], Mapping[str, Any]], pieces: Sequence[Piece], span: Span, *, value: bool
) -> tuple[Part, ...]:
    """Return where the pieces of a value, or of a result, lie; `views` has the fields of a piece of so many rows.

    A value that holds several slots has them one after the other.
    """
    parts, slots = [], work.input_slots(pieces)
    for slot, chunk in pieces:
        first, rows = work.parts[chunk]
        first = span.place(first) + (slots.index(slot) if value else 0) * work.layout.rows
        parts += [Part(name, slice(first, first + rows), view) for name, view in views((slot, chunk), rows).items()]
    return tuple(parts)


def messages_of(
    work: Work, moves: Mapping[tuple[int, int, int], Sequence[Piece]], offsets: Mapping[Piece, int]
) -> list[Message]:
    """Return the messages of a stage in one direction."""
    return [
        Message(peer, tuple((offsets[piece], work.chunk_bytes(piece[1])) for piece in pieces))
        for (_, peer, _), pieces in moves.items()
    ]


class CallEngine(ABC):
    """One set of buffers and this rank's program on them."""

    shared: SharedMemory | None = None
    """Its epoch counts the calls."""
    memory: Buffer
    views: Fields | None
    """As `Work.send_buffer`."""
    in_python = True
    """Whether any of its work is done in Python."""
    in_one_copy = False
    """Whether ranks read each other's values where these lie."""
    takes_value: bool
    gives_result: bool

    @abstractmethod
    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        """Begin a call; return whether it is complete.

        Args:
            fields: The value by field; None where it is in the send buffer, or there is none.
            target: C-contiguous arrays for the result; None where there is none.
            apart: Whether the target is surely other memory than the value's.
        """

    @abstractmethod
    def advance(self, timeout_s: float) -> bool:
        """Advance the call, waiting about `timeout_s` at each of its stages; return whether it is complete."""

    @abstractmethod
    def awaited(self) -> AwaitedMessages:
        """Return what the call waits for."""

    def withdraw(self) -> None:  # noqa: B027 - most have copied the value
        """Let no rank read the value any more; after a call that failed."""

    def free(self) -> None:  # noqa: B027 - memory goes with its last user
        """Release the transport's resources of the engine."""
