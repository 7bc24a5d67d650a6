"""The neighbour exchange on device memory: a stream of its own moves the bytes while the current one computes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from topocomm.errors import TopocommError
from topocomm.execute.device.device_library import Device, await_event, reached
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.host.shift import HostShift
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.transport import DeviceTransport, Message
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.tensors import as_array

if TYPE_CHECKING:
    from topocomm.execute.session import Session

GROUPS_KEPT = 16
"""Groups of messages kept for calls with the same tensors: a ring takes turns with few."""


class Exchange(NamedTuple):
    """One group of messages, prepared.

    Attributes:
        run: Puts it on a stream.
        sent: Where what is sent is copied to before; empty: it is sent from where it is.
        received: Where what has come is copied from afterwards; empty: it is received in place.
        messages: Sends and receives.
    """

    run: Callable[[Any], None]
    sent: Sequence[Any]
    received: Sequence[Any]
    messages: tuple[list[Message], list[Message]]


class DeviceShift:
    """The exchange by the device transport of a communicator.

    Tensors that all lie in one allocation are sent from there and received there; others are copied to its own memory.

    Attributes:
        ranks: The neighbours.
    """

    def __init__(self, session: Session, path: DevicePath, tag: int) -> None:
        assert path.transport is not None, "made where there is one"
        assert path.in_flight is not None
        self._device: Device = path.device
        self._transport: DeviceTransport = path.transport
        self._in_flight: Any = path.in_flight  # which takes whatever has the methods of an engine
        self._tag = tag
        self._following, self._preceding = (session.rank + 1) % session.size, (session.rank - 1) % session.size
        self.ranks = tuple(sorted({self._following, self._preceding}))
        self._alone = session.size == 1
        self._exchanges: OrderedDict[Any, Exchange] = OrderedDict()
        self._arena: Any = None
        self._allocation: tuple[int, ...] = ()
        """The allocation for which groups are kept."""
        self._current: Exchange | None = None
        self._receives: Sequence[Any] = ()
        with self._device.current():
            self._stream = self._device.new_stream()
            self._begun, self._done, self._mark = (self._device.event() for _ in range(3))
        self._captured = False

    def start(self, sends: Sequence[Any], receives: Sequence[Any], number: int) -> None:
        """Put the messages on the stream of this shift, behind what is on the current one."""
        device = self._device
        with device.current():
            self._captured = device.capturing()
            if not self._captured:
                self._in_flight.look()
            elif not self._transport.in_graphs:
                raise TopocommError(
                    f"shift by {self._transport.name}: no graph records it; call it outside of the capture"
                )
            self._current, self._receives = self._exchange(sends, receives), receives
            if self._captured:  # a graph has one stream, on which nothing is asked
                for memory in self._own_memory():
                    self._in_flight.keep(memory)
                self._put(self._current, sends, device.stream())
                return
            self._begun.record(device.stream())
            self._stream.wait_event(self._begun)
            with device.on(self._stream):
                self._put(self._current, sends, self._stream)
                self._done.record(self._stream)
            for tensor in (*sends, *receives, *self._own_memory()):
                device.keep(tensor, self._stream)
            self._in_flight.add(self, self._tag, number)

    def advance(self, timeout_s: float) -> bool:
        """Whether the device is through with what was marked, or is so within about `timeout_s`."""
        return reached(self._mark, timeout_s, lambda: self._transport.check(self.ranks))

    def progress(self) -> None:
        """Do nothing: a stream moves the bytes."""

    def wait(self) -> None:
        """Have the current stream wait for the messages; the host does not."""
        device, exchange = self._device, self._current
        assert exchange is not None, "started before"
        with device.current():
            if not self._captured:
                stream = device.stream()
                stream.wait_event(self._done)
                for memory in self._own_memory():
                    device.keep(memory, stream)
            for x, place in zip(self._receives, exchange.received, strict=False):
                x.copy_(place)
        self._receives = ()

    def mark(self) -> None:
        self._mark.record(self._stream)

    def awaited(self) -> AwaitedMessages:
        """Return all messages of the call: a device does not say how far it is."""
        sends, receives = ([], []) if self._current is None else self._current.messages
        return AwaitedMessages(None, sends, receives)

    def free(self) -> None:
        """Forget the messages; a stream that still needs the memory keeps it."""
        self._exchanges.clear()
        self._arena = self._current = None
        self._allocation = ()

    def _own_memory(self) -> list[Any]:
        """Return the memory of its own that the exchange uses, if any."""
        return [self._arena] if self._current is not None and self._current.sent else []

    def _put(self, exchange: Exchange, sends: Sequence[Any], stream: Any) -> None:
        for x, place in zip(sends, exchange.sent, strict=False):
            place.copy_(x)
        exchange.run(stream)

    def _exchange(self, sends: Sequence[Any], receives: Sequence[Any]) -> Exchange:
        """Return the group for these tensors: kept by place in one allocation, by size where they are copied."""
        tensors = (*sends, *receives)
        storages = {x.untyped_storage().data_ptr() for x in tensors if x.numel()}
        in_place = len(storages) == 1 and not self._alone
        allocation = tuple(storages) if in_place else ()
        if allocation != self._allocation:  # the memory of another allocation is not kept
            self._exchanges.clear()
            self._allocation = allocation
        key = tuple((x.data_ptr() if in_place else 0, x.numel()) for x in tensors)
        exchange = self._exchanges.get(key)
        if exchange is None:
            exchange = self._bind(tensors, len(sends), in_place)
            self._exchanges[key] = exchange
            if len(self._exchanges) > GROUPS_KEPT:
                self._exchanges.popitem(last=False)
        self._exchanges.move_to_end(key)
        return exchange

    def _bind(self, tensors: Sequence[Any], count: int, in_place: bool) -> Exchange:
        """Prepare the messages of so many tensors to send, and of the others, to receive."""
        if in_place:
            storage = next(x for x in tensors if x.numel()).untyped_storage()
            arena = tensors[0].new_empty(0).set_(storage, 0, (storage.nbytes(),))
            starts = [x.data_ptr() - arena.data_ptr() for x in tensors]
        else:
            sizes = [-(-x.numel() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for x in tensors]
            *starts, end = accumulate(sizes, initial=0)
            if self._arena is None or self._arena.numel() < end:
                self._exchanges.clear()  # they are bound to the memory before
                self._arena = self._device.memory(end + end // 8)
            arena = self._arena
        ranges = [(start, x.numel()) for start, x in zip(starts, tensors, strict=True)]
        places = [] if in_place else [arena[start : start + size] for start, size in ranges]
        if self._alone:
            return Exchange(lambda stream: None, places[:count], places[:count], ([], []))
        sends, receives = (
            [Message(peer, (part,)) for part in parts if part[1]]
            for peer, parts in ((self._following, ranges[:count]), (self._preceding, ranges[count:]))
        )
        run = self._transport.group(arena, sends, receives)
        return Exchange(run, places[:count], places[count:], (sends, receives))


class PinnedShift:
    """The exchange of device memory by pinned host memory, where nothing moves device memory between the ranks."""

    def __init__(self, session: Session, in_host: HostShift, device: Device) -> None:
        self._session, self._in_host, self._device = session, in_host, device
        self._memory: dict[tuple[bool, int], Any] = {}
        self._receives: Sequence[Any] = ()
        with device.current():
            self._sent_event, self._received_event = device.event(), device.event()

    def start(self, sends: Sequence[Any], receives: Sequence[Any], number: int) -> None:
        """Copy what is sent to host memory, for which the host waits, and post all messages there."""
        device, waiting = self._device, self._session.waiting
        if device.capturing():
            raise TopocommError(
                f"rank {self._session.rank}: this shift goes through host memory, where no graph records it"
            )
        await_event(self._received_event, waiting, device, "this shift")  # what was received before has left the memory
        self._receives = receives
        sent, received = (
            [self._pinned(is_sent, index, x.numel()) for index, x in enumerate(tensors)]
            for is_sent, tensors in ((True, sends), (False, receives))
        )
        with device.current():
            for place, x in zip(sent, sends, strict=True):
                place.copy_(x, non_blocking=True)
            self._sent_event.record(device.stream())
        await_event(self._sent_event, waiting, device, "this shift")
        self._in_host.start([as_array(x) for x in sent], [as_array(x) for x in received], number)

    def progress(self) -> None:
        """Let bytes move; does not wait."""
        self._in_host.progress()

    def wait(self) -> None:
        """Copy what has come to the device, on the current stream."""
        self._in_host.wait()
        with self._device.current():
            for index, x in enumerate(self._receives):
                x.copy_(self._pinned(False, index, x.numel()), non_blocking=True)
            self._received_event.record(self._device.stream())

    def free(self) -> None:
        """Do nothing: requests belong to the exchange of host memory."""

    def _pinned(self, is_sent: bool, index: int, size: int) -> Any:
        memory = self._memory.get((is_sent, index))
        if memory is None or memory.numel() < size:
            memory = self._memory[is_sent, index] = self._device.pinned(max(size + size // 8, ALIGNMENT_BYTES))
        return memory[:size]
