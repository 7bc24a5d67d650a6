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
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from topocomm.execute.transports.watch import Watch
from topocomm.operators.layout import Buffer

if TYPE_CHECKING:
    from topocomm.native._native import Requests

FAILURE_TAG = 1
AGREEMENT_TAG = 2
GATHER_TAG = 3
REPORT_TAG = 4
SHRINK_TAG = 5
REFUSED_TAG = 6
CLOSING_TAG = 7
DEVICE_TAG = 8
SHOWN_TAG = 9
FIRST_CALL_TAG = 16


class Message(NamedTuple):
    """One message of a batch: bytes ranges [(offset, length), ...] of the batch's buffer, in order."""

    peer: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes of the message."""
        return sum(length for _, length in self.ranges)


class Batch(ABC):
    """Messages that are started together and awaited together, any number of times."""

    sends: Sequence[Message]
    receives: Sequence[Message]

    @abstractmethod
    def start(self) -> None:
        """Post all sends and receives, without waiting."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until all messages are complete, or at most about `timeout_s`; True when complete."""

    @abstractmethod
    def pending(self) -> tuple[list[Message], list[Message]]:
        """(sends, receives) started and not complete."""

    def requests(self) -> Requests | None:
        """Return what starts and tests it without Python; None where nothing does."""
        return None

    def check(self) -> None:  # noqa: B027 - many find errors where they wait
        """Raise what its `requests` ran into."""

    def free(self) -> None:  # noqa: B027 - many have none
        """Release the batch's resources; those of messages in flight live on."""


class Transport(ABC):
    """Transport of bytes between the ranks of one communicator."""

    name: str
    rank: int
    size: int
    most_tag: int
    hosts: tuple[int, ...]
    """Group number of every rank; ranks of one group share memory; set by the communicator."""
    cores: int = 1
    """Cores that the ranks of this rank's group may use together; set by the communicator."""
    reads_peers: bool | None = None
    """Whether ranks of one host may read each other's memory; None before that was tried (`cross_memory`)."""
    in_process: bool = False
    """Whether the ranks are threads of one process."""
    device_group: Any = None
    """The torch process group of the same ranks, which the communicator was made of."""
    watch: Watch | None = None
    """Watcher of ended processes of this host; set by the communicator."""

    @abstractmethod
    def batch(self, buffer: Buffer, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Batch:
        """Prepare messages on `buffer`, which must stay alive as long as the batch."""

    @abstractmethod
    def post(self, peer: int, tag: int, data: bytes) -> None:
        """Send a note, buffered, without waiting."""

    @abstractmethod
    def take(self, peer: int, tag: int) -> bytes | None:
        """Return the oldest note from `peer` with this tag, or None."""

    @abstractmethod
    def pause(self) -> None:
        """Let other ranks run for a moment while polling."""

    @abstractmethod
    def subset(self, members: Sequence[int], number: int) -> Transport | None:
        """Make a transport for some of the ranks; collective over all, which form disjoint subsets.

        Args:
            members: The ranks, in the order of their new numbers; none for a rank that is in no subset.
            number: How many subsets this transport was asked for before; the same on all ranks.
        """

    @abstractmethod
    def shrink(self, members: Sequence[int], number: int) -> Transport:
        """Make a transport of the surviving ranks; collective over these."""

    def failed(self) -> dict[int, str]:
        """Return the ranks known to be gone, each with its evidence."""
        return {} if self.watch is None else self.watch.ended()

    def blamed(self, error: BaseException) -> dict[int, str]:
        """Return the ranks whose failure caused an error of the transport, with the evidence."""
        del error
        return {}

    def all_leave(self, timeout_s: float) -> bool:
        """Return whether all ranks reach the end of their process within this time; called at that end."""
        del timeout_s
        return True

    def finish(self) -> None:  # noqa: B027 - most need nothing
        """Finalise after ranks are gone, as the end of the process would; may hang."""

    def end_process(self) -> None:
        """End a process whose normal end would wait for ranks that are gone."""
        os._exit(1)

    @abstractmethod
    def close(self, timeout_s: float) -> bool:
        """Release everything together with all ranks; return whether they have, within about `timeout_s`.

        Called again where they have not; only while no rank has failed.
        """


NativeCall = Callable[[Any, Any, Any], None]
"""A library's own collective: a function of a value and its result, contiguous tensors, and the stream to put it on."""


class DeviceTransport(ABC):
    """Device memory between the ranks of one communicator."""

    name: str
    in_graphs: ClassVar[bool] = True
    """Whether a graph can capture a group."""

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
        """Return the library's own collective, or None; the same on all ranks.

        Args:
            collective: allreduce, reduce_scatter or allgather, in parts of one length.
            dtype: Name of the array's dtype; an all-gather takes any.
            operator: sum, prod, max or min; of an all-gather anything.
        """
        del collective, dtype, operator
        return None

    def check(self, peers: Sequence[int] = ()) -> None:  # noqa: B027 - most raise where messages are awaited
        """Raise an error that the transport knows of, without asking the device or waiting; it names the peers."""

    def abort(self) -> None:  # noqa: B027
        """Abort everything in flight at once, whatever other ranks do; nothing can be started afterwards."""

    def close(self) -> None:  # noqa: B027
        """Release everything; no rank has anything in flight."""


class NoDeviceTransport(DeviceTransport):
    """Of a communicator of one rank: there are no messages."""

    name = "alone"

    def group(self, arena: Any, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[Any], None]:
        del arena, sends, receives
        return lambda stream: None
