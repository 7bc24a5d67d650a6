"""The small abstract class between plans and the wire.

A transport moves bytes between the ranks of one communicator. Data goes through batches: messages whose buffers
and peers are fixed once and started many times. Notes are small messages outside any plan: agreement between
ranks, and the word that a rank has failed. All waiting is done in slices, so that the caller keeps its deadline.

Messages of one (source, destination) pair arrive in the order they were started. A message carries the tag of
its call; a rank that waits can peek at the tag of what its peer sent, so a call that does not fit is named
instead of awaited for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from topocomm.operators.operator import Buffer

FAILURE_TAG = 1
AGREEMENT_TAG = 2
GATHER_TAG = 3
FIRST_CALL_TAG = 16


class Message(NamedTuple):
    """One message of a batch: bytes ranges [(offset, length), ...] of the batch's buffer, in order."""

    peer: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes on the wire."""
        return sum(length for _, length in self.ranges)


class Batch(ABC):
    """Messages that are started together and awaited together, any number of times."""

    sends: Sequence[Message]
    receives: Sequence[Message]

    @abstractmethod
    def start(self) -> None:
        """Post all sends and receives; does not wait."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until all messages are complete, or at most about `timeout_s`; True when complete."""

    @abstractmethod
    def pending(self) -> tuple[list[Message], list[Message]]:
        """(sends, receives) started and not complete."""

    @abstractmethod
    def free(self) -> None:
        """Give back what the batch holds; what messages under way still need lives on."""


class Transport(ABC):
    """Bytes between the ranks of one communicator."""

    name: str
    rank: int
    size: int
    most_tag: int
    one_host: bool = False
    """Whether all ranks are processes of one host, which can map one memory."""
    shares_memory: bool = False
    """Whether all ranks have found that they can run in such memory."""
    standings: Any = None
    """int64 [size], shared: number << 32 | tag of the call that each rank is in; None where ranks share no memory."""

    @abstractmethod
    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        """Prepare messages on `buffer`, which must stay alive as long as the batch."""

    @abstractmethod
    def post(self, peer: int, tag: int, data: bytes) -> None:
        """Send a note; buffered, does not wait."""

    @abstractmethod
    def peek(self, peer: int) -> tuple[int, int] | None:
        """(tag, bytes) of the oldest message from `peer` that nobody has received, or None."""

    @abstractmethod
    def take(self, peer: int, tag: int) -> bytes | None:
        """The oldest note from `peer` with this tag, or None."""

    @abstractmethod
    def pause(self) -> None:
        """Let other ranks run for a moment while polling."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; collective, called once, and only while no rank has failed."""
