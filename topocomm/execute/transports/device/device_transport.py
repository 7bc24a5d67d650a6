"""What moves the bytes of device memory between ranks, beside the transport that moves notes and host memory.

A wire runs groups of messages in the order of a stream: one group is one step there, and does not wait here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from topocomm.execute.transports.transport import Message

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
