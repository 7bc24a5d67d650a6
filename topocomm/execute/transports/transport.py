"""Interfaces between plans and what moves bytes: of host memory and notes, and of device memory.

Data goes through batches: messages whose buffers and peers are fixed once and started many times. Notes are small
messages outside any plan: agreement between ranks, and the news that a rank has failed. All waiting is done in slices,
so that the caller keeps its deadline.

Messages of one (source, destination) pair arrive in the order they were started. A message carries the tag of its
call: one of another call is never taken for it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from topocomm.execute.transports.watch import Watch
from topocomm.operators.layout import Buffer

FAILURE_TAG = 1
AGREEMENT_TAG = 2
GATHER_TAG = 3
REPORT_TAG = 4
SHRINK_TAG = 5
REFUSED_TAG = 6
CLOSING_TAG = 7
DEVICE_TAG = 8
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
    hosts: tuple[int, ...]
    """For every rank the number of a group of ranks that share memory; set up by the communicator."""
    cores: int = 1
    """Cores that the ranks of this rank's group may run on, together; set up by the communicator."""
    in_process: bool = False
    """Whether the ranks are threads of one process."""
    device_group: Any = None
    """The torch process group of the same ranks, which the communicator was made of."""
    watch: Watch | None = None
    """Tells which processes of this host have ended; set up by the communicator."""

    @abstractmethod
    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        """Prepare messages on `buffer`, which must stay alive as long as the batch."""

    @abstractmethod
    def post(self, peer: int, tag: int, data: bytes) -> None:
        """Send a note; buffered, does not wait."""

    @abstractmethod
    def take(self, peer: int, tag: int) -> bytes | None:
        """The oldest note from `peer` with this tag, or None."""

    @abstractmethod
    def pause(self) -> None:
        """Let other ranks run for a moment while polling."""

    @abstractmethod
    def subset(self, members: Sequence[int], number: int) -> Transport | None:
        """A transport of its own for some of the ranks; collective over all, who make disjoint subsets.

        Args:
            members: The ranks, in the order of their new numbers; none for a rank that is in no subset.
            number: How many subsets this transport was asked for before; the same on all ranks.
        """

    @abstractmethod
    def shrink(self, members: Sequence[int], number: int) -> Transport:
        """A transport of the ranks that are left when others are gone; collective over those."""

    def failed(self) -> dict[int, str]:
        """Ranks known to be gone, each with how that is known."""
        return {} if self.watch is None else self.watch.ended()

    def blamed(self, error: BaseException) -> dict[int, str]:
        """Ranks whose failure is the cause of an error that the transport raised, with how that is known."""
        del error
        return {}

    def all_leave(self, timeout_s: float) -> bool:
        """Whether all ranks come to the end of their process within this time; asked at that end."""
        del timeout_s
        return True

    def finish(self) -> None:  # noqa: B027 - most need nothing
        """Finish what this process's end would finish, some ranks being gone; may hang."""

    def end_process(self) -> None:
        """End a process that could not end without waiting for ranks that are gone."""
        os._exit(1)

    @abstractmethod
    def close(self, timeout_s: float) -> bool:
        """Give everything back when all ranks do; whether they have, waiting about `timeout_s` at most.

        Called again where they have not; only while no rank has failed.
        """


NativeCall = Callable[[Any, Any, Any], None]
"""A library's own collective: a function of a value and its result, contiguous tensors, and the stream to put it on."""


class DeviceTransport(ABC):
    """Device memory between the ranks of one communicator."""

    name: str
    in_graphs: ClassVar[bool] = True
    """Whether a graph can hold what a group puts on a stream."""

    @abstractmethod
    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        """Prepare messages that start together.

        Args:
            arena: uint8 memory of the device, which must stay as long as a stream may read or write it.
            sends: From ranges of the arena; every range is a message of its own, in order.
            receives: Into ranges of the arena, as the peers send them.

        Returns:
            What puts the group on a stream, which is one of torch's.
        """

    def native(self, collective: str, dtype: str, operator: str) -> NativeCall | None:
        """The library's own collective, if it has it; the same on all ranks.

        Args:
            collective: allreduce, reduce_scatter or allgather, in parts of one length.
            dtype: Name of the array's dtype; an all-gather takes any.
            operator: sum, prod, max or min; of an all-gather anything.
        """
        del collective, dtype, operator
        return None

    @abstractmethod
    def check(self, peers: Sequence[int] = ()) -> None:
        """Raise where the wire knows of an error; asks nothing of the device, and does not wait.

        Args:
            peers: With whom messages are under way, for the error.
        """

    @abstractmethod
    def abort(self) -> None:
        """End what is under way, at once and whatever the others do; nothing can be started afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; nothing is under way, on any rank."""


class NoDeviceTransport(DeviceTransport):
    """Of a communicator of one rank: there are no messages."""

    name = "alone"

    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        del arena, sends, receives
        return lambda stream: None

    def check(self, peers: Sequence[int] = ()) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass
