"""The memory of a prepared call and what a rank does in it.

A lane is one set of buffers with this rank's program bound to them. Calls by messages have one lane. Calls in
memory that all ranks map have two, used in turn; they run in one compiled call where the operator has a compiled
fold, else stage by stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from topocomm.execute.structure import Fields
from topocomm.execute.transports.shared_memory import SharedMemory
from topocomm.execute.transports.transport import Batch
from topocomm.operators.operator import Buffer, Layout, Operator
from topocomm.planning.plan import Plan

BUSY = "another call is running; one at a time"
LongWait = Callable[[Batch], None]
"""Waits for a batch that did not complete at once; raises at the limit."""


@dataclass(frozen=True)
class Work:
    """What lanes are made for."""

    plan: Plan
    operator: Operator
    layout: Layout
    tag: int

    def chunk_bytes(self, chunk: int) -> int:
        """Packed bytes of a chunk."""
        return self.layout.packed_bytes(self.chunk_rows(chunk))

    def chunk_rows(self, chunk: int) -> int:
        """Rows of a chunk."""
        return self.plan.schedule.chunks[chunk][1]


class Lane(ABC):
    """One set of buffers and this rank's program on them."""

    shared: SharedMemory | None = None
    """The shared memory that this lane is in; its epoch says whose turn it is."""
    memory: Buffer
    """Where everything of this lane lies."""
    views: Fields | None
    """The send buffer in the user's shapes; None where this rank gives no value or the plan splits it."""
    takes_value: bool
    """Whether this rank gives a value."""
    gives_result: bool
    """Whether this rank gets a result."""

    @abstractmethod
    def run(self, fields: Fields | None, target: Fields | None, apart: bool) -> None:
        """Run the call once.

        Args:
            fields: The value by field; None where it is in the send buffer, or there is none.
            target: C-contiguous arrays for the result; None where there is none.
            apart: Whether the target is surely other memory than the value's.
        """

    @abstractmethod
    def free(self) -> None:
        """Give back what the transport holds for it."""
