"""What engines in device memory have in common: a call is put on a stream, and asked about later."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from topocomm.execute.device.device_folds import identity_tensors
from topocomm.execute.device.device_library import Device, load_copies
from topocomm.execute.device.events import reached
from topocomm.execute.host.call_engine import CallEngine, Work
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.transport import Message
from topocomm.operators.tensors import torch_dtype


class StreamEngine(CallEngine):
    """An engine whose steps a stream runs one after the other.

    Args:
        work: The call.
        device: Where it is.
        sends: Bytes that this rank sends, by rank.
        receives: Bytes that it receives, by rank.

    Attributes:
        last: The stream that ran it last, or made it.
        ranks: With whom this rank exchanges data.
    """

    memory: Any
    """A tensor of the device: what its arrays lie in."""

    def __init__(self, work: Work, device: Device, sends: Mapping[int, int], receives: Mapping[int, int]) -> None:
        self._work, self._device = work, device
        self._peers = [
            [Message(peer, ((0, size),)) for peer, size in sorted(sizes.items())] for sizes in (sends, receives)
        ]
        self.ranks: Sequence[int] = tuple(sorted({*sends, *receives}))
        self._event = device.event()
        self._identity = self._first_of_exscan()
        self.last: Any = device.stream()  # whose memory this is: it may still be in use there

    @abstractmethod
    def check(self) -> None:
        """Raise where it is known that the call does not come through; asks nothing of the device."""

    def load(self) -> None:
        """Have the device load all kernels that a call runs; see `device_loading`."""
        load_copies(self._device, (torch_dtype(field.dtype) for field in self._work.layout.fields))

    def mark(self) -> None:
        """From now on `advance` tells of the calls that were begun so far."""
        self._event.record(self.last)

    def advance(self, timeout_s: float) -> bool:
        """Whether the device is through with what was marked, or is so within about `timeout_s`."""
        return reached(self._event, timeout_s, self.check)

    def awaited(self) -> AwaitedMessages:
        """All that this rank exchanges in the call: a device does not say how far it is."""
        return AwaitedMessages(None, *self._peers)

    def free(self) -> None:
        """Nothing: a stream that still needs the memory keeps it."""

    def follow(self, before: Any, stream: Any, memories: Sequence[Any]) -> bool:
        """Have the stream wait for one that used the same memories before; whether it is another one.

        Args:
            before: That stream.
            stream: The current one.
            memories: Tensors.
        """
        if before == stream or self._device.capturing():  # no graph waits for what is outside of it
            return False
        event = self._device.event()
        event.record(before)
        stream.wait_event(event)
        for memory in memories:
            self._device.keep(memory, stream)
        return True

    def _first_of_exscan(self) -> dict[str, Any] | None:
        """What the first rank gets, which nothing comes before."""
        if self._work.plan.collective.name != "exscan" or self._work.rank:
            return None
        told = identity_tensors(self._work.operator, self._work.layout)
        return {name: value.to(self._device.place) for name, value in told.items()}
