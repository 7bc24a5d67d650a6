"""The neighbour exchange on device memory: a stream of its own moves the bytes while the current one computes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from topocomm.errors import TopocommError
from topocomm.execute.device.device_library import Device, await_event, reached
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.transports.device.device_transport import DeviceTransport
from topocomm.execute.transports.transport import Message
from topocomm.operators.layout import ALIGNMENT_BYTES, Buffer
from topocomm.operators.tensors import as_array

if TYPE_CHECKING:
    from topocomm.execute.session import Session

GROUPS_KEPT = 16
"""Groups of messages kept for calls with the same tensors: a ring takes turns with few."""
Ranges = Sequence[tuple[int, int]]
Places = Sequence[Any] | None


class Exchange(NamedTuple):
    """One group of messages, prepared.

    Attributes:
        run: Puts it on a stream.
        sent: Where what is sent is copied to before; None: it is sent from where it is.
        received: Where what has come is copied from afterwards; likewise.
        messages: What goes and what comes.
    """

    run: Callable[[Any], None]
    sent: Sequence[Any] | None
    received: Sequence[Any] | None
    messages: tuple[list[Message], list[Message]]


class DeviceShift:
    """`Shift` by the wire of a communicator.

    Tensors that lie in one allocation, all of them, are sent from there and received there; others are copied into
    memory of its own and out of it.

    Args:
        session: The communicator.
        way: Its way, with a wire.
        tag: The first tag of the shift.

    Attributes:
        ranks: With whom messages are exchanged.
    """

    def __init__(self, session: Session, path: DevicePath, tag: int) -> None:
        assert path.transport is not None, "made where there is one"
        assert path.in_flight is not None
        self._device: Device = path.device
        self._transport: DeviceTransport = path.transport
        self._in_flight: Any = path.in_flight  # which takes whatever has the methods of an engine
        self._tag = tag
        self._after, self._before = (session.rank + 1) % session.size, (session.rank - 1) % session.size
        self.ranks = tuple(sorted({self._after, self._before}))
        self._alone = session.size == 1
        self._exchanges: OrderedDict[Any, Exchange] = OrderedDict()
        self._arena: Any = None
        self._held: tuple[int, ...] = ()
        """The allocation for which groups are kept."""
        self._now: Exchange | None = None
        self._receives: Sequence[Any] = ()
        with self._device.current():
            self._side = self._device.new_stream()
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
            self._now, self._receives = self._exchange(sends, receives), receives
            if self._captured:  # a graph has one stream, on which nothing is asked
                for memory in self._own():
                    self._in_flight.keep(memory)
                self._put(self._now, sends, device.stream())
                return
            self._begun.record(device.stream())
            self._side.wait_event(self._begun)
            with device.on(self._side):
                self._put(self._now, sends, self._side)
                self._done.record(self._side)
            for tensor in (*sends, *receives, *self._own()):
                device.keep(tensor, self._side)
            self._in_flight.add(self, self._tag, number)

    def wait(self) -> None:
        """Have the current stream wait for the messages; the host does not."""
        device, now = self._device, self._now
        assert now is not None, "started before"
        with device.current():
            if not self._captured:
                stream = device.stream()
                stream.wait_event(self._done)
                for memory in self._own():
                    device.keep(memory, stream)
            for x, place in zip(self._receives, now.received or (), strict=False):
                x.copy_(place)
        self._receives = ()

    def mark(self) -> None:
        """As `DeviceEngine.mark`."""
        self._mark.record(self._side)

    def advance(self, timeout_s: float) -> bool:
        """As `DeviceEngine.advance`."""
        return reached(self._mark, timeout_s, lambda: self._transport.check(self.ranks))

    def awaited(self) -> AwaitedMessages:
        """All messages of the call: a device does not say how far it is."""
        sends, receives = ([], []) if self._now is None else self._now.messages
        return AwaitedMessages(None, sends, receives)

    def free(self) -> None:
        """Forget the messages; a stream that still needs the memory keeps it."""
        self._exchanges.clear()
        self._arena = self._now = None
        self._held = ()

    def _own(self) -> list[Any]:
        """The memory of its own that the exchange uses, if any."""
        return [] if self._now is None or self._now.sent is None else [self._arena]

    def _put(self, now: Exchange, sends: Sequence[Any], stream: Any) -> None:
        for x, place in zip(sends, now.sent or (), strict=False):
            place.copy_(x)
        now.run(stream)

    def _exchange(self, sends: Sequence[Any], receives: Sequence[Any]) -> Exchange:
        """The group for these tensors: kept by place in one allocation, by size where they are copied."""
        tensors = (*sends, *receives)
        storages = {x.untyped_storage().data_ptr() for x in tensors if x.numel()}
        whole = len(storages) == 1 and not self._alone
        held = tuple(storages) if whole else ()
        if held != self._held:  # the memory of another allocation is not kept
            self._exchanges.clear()
            self._held = held
        key = tuple((x.data_ptr() if whole else 0, x.numel()) for x in tensors)
        made = self._exchanges.get(key)
        if made is None:
            made = self._exchanges[key] = self._in_place(sends, receives) if whole else self._copied(sends, receives)
            if len(self._exchanges) > GROUPS_KEPT:
                self._exchanges.popitem(last=False)
        self._exchanges.move_to_end(key)
        return made

    def _in_place(self, sends: Sequence[Any], receives: Sequence[Any]) -> Exchange:
        storage = next(x for x in (*sends, *receives) if x.numel()).untyped_storage()
        arena = sends[0].new_empty(0).set_(storage, 0, (storage.nbytes(),))
        start = arena.data_ptr()
        ours, theirs = ([(x.data_ptr() - start, x.numel()) for x in some] for some in (sends, receives))
        return self._bound(arena, ours, theirs, None, None)

    def _copied(self, sends: Sequence[Any], receives: Sequence[Any]) -> Exchange:
        offsets, end = [], 0
        for x in (*sends, *receives):
            offsets.append((end, x.numel()))
            end += -(-x.numel() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self._arena is None or self._arena.numel() < end:
            self._exchanges.clear()  # they are bound to the memory before
            self._arena = self._device.memory(end + end // 8)
        places = [self._arena[at : at + size] for at, size in offsets]
        count = len(sends)
        if self._alone:
            return Exchange(lambda stream: None, places[:count], places[:count], ([], []))
        return self._bound(self._arena, offsets[:count], offsets[count:], places[:count], places[count:])

    def _bound(self, arena: Any, ours: Ranges, theirs: Ranges, sent: Places, received: Places) -> Exchange:
        sends, receives = (
            [Message(peer, (one,)) for one in some if one[1]]
            for peer, some in ((self._after, ours), (self._before, theirs))
        )
        return Exchange(self._transport.group(arena, sends, receives), sent, received, (sends, receives))


class PinnedShift:
    """The same where no wire takes the ranks: by pinned host memory and the exchange of host memory.

    Args:
        device: Where the tensors are.
        timeout_s: How long the host waits for the device.
        rank: For errors.
    """

    def __init__(self, device: Device, timeout_s: float, rank: int) -> None:
        self._device, self._timeout_s, self._rank = device, timeout_s, rank
        self._memory: dict[tuple[bool, int], Any] = {}
        self._receives: Sequence[Any] = ()
        with device.current():
            self._side = device.new_stream()
            self._before, self._down, self._up = (device.event() for _ in range(3))
        self._copied = False

    def start(self, sends: Sequence[Any], receives: Sequence[Any]) -> tuple[list[Buffer], list[Buffer]]:
        """Bring what is sent to host memory; what is to be exchanged there. The host waits for it."""
        device = self._device
        if device.capturing():
            raise TopocommError(f"rank {self._rank}: this shift goes through host memory, where no graph records it")
        if self._copied:
            self._await(self._up)  # what came before has left the memory
        self._receives = receives
        sent, received = (
            [self._pinned(is_sent, number, x.numel()) for number, x in enumerate(some)]
            for is_sent, some in ((True, sends), (False, receives))
        )
        with device.current():
            self._before.record(device.stream())
            self._side.wait_event(self._before)
            with device.on(self._side):
                for place, x in zip(sent, sends, strict=True):
                    place.copy_(x, non_blocking=True)
                self._down.record(self._side)
            for x in sends:
                device.keep(x, self._side)
        self._await(self._down)
        return [as_array(x) for x in sent], [as_array(x) for x in received]

    def wait(self) -> None:
        """What has come to host memory goes to the device, on the current stream."""
        with self._device.current():
            for number, x in enumerate(self._receives):
                x.copy_(self._pinned(False, number, x.numel()), non_blocking=True)
            self._up.record(self._device.stream())
        self._copied = True

    def _pinned(self, is_sent: bool, number: int, size: int) -> Any:
        known = self._memory.get((is_sent, number))
        if known is None or known.numel() < size:
            known = self._memory[is_sent, number] = self._device.pinned(max(size + size // 8, ALIGNMENT_BYTES))
        return known[:size]

    def _await(self, event: Any) -> None:
        await_event(event, self._timeout_s, self._device, self._rank, "this shift")
