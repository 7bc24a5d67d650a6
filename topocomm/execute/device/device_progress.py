"""Calls on a device whose end nobody has seen: what a rank asks of them when it makes its next call.

A call on a device returns before it is through. So errors and time limits are asked of it later: at the next call, at
`Communicator.synchronize` and at `close`. One event is out per call at a time, and the oldest alone is asked, so a
program that keeps the device busy for hours is not taken for one that hangs: what counts is how long an event is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from topocomm.execute.device.device_library import Device
from topocomm.execute.device.events import reached
from topocomm.execute.device.peer.peer_memory import PeerMemory
from topocomm.execute.device.stream_engine import StreamEngine
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay, Waiting, WaitMonitor
from topocomm.execute.transports.device.device_transport import DeviceTransport
from topocomm.execute.transports.transport import GATHER_TAG


class InFlightCall(NamedTuple):
    """A call with an event out."""

    engine: StreamEngine
    call: UnderWay
    look: WaitMonitor


class _Stream:
    """What is on a stream now, as something to wait for.

    Args:
        device: Whose current stream.
        check: Raises where it is known that an end does not come.
    """

    def __init__(self, device: Device, check: Callable[[], None]) -> None:
        self._check, self._event = check, device.event()
        self._event.record(device.stream())

    def advance(self, timeout_s: float) -> bool:
        """Whether the device is through with it, or is so within about `timeout_s`."""
        return reached(self._event, timeout_s, self._check)

    def awaited(self) -> AwaitedMessages:
        """Nobody knows whom a graph awaits."""
        return AwaitedMessages(None, (), ())


class InFlightCalls:
    """The calls of one communicator.

    Args:
        waiting: How it waits.
        device: On which the calls are.
        means: What moves its bytes.
    """

    def __init__(self, waiting: Waiting, device: Device, *means: DeviceTransport | PeerMemory) -> None:
        self._waiting, self._device, self._means = waiting, device, means
        self._out: deque[InFlightCall] = deque()
        self._marked: set[StreamEngine] = set()
        self._begun: dict[StreamEngine, UnderWay] = {}
        """Engines with calls that nobody has waited for, each with the last of them."""
        self._recorded: set[object] = set()

    def look(self) -> None:
        """Ask whether calls that were begun can still come through; does not wait.

        Raises:
            DeadlineError: One is not through after the limit.
            MismatchError, RankFailedError: As for any call.
        """
        self._check(self._out[0].engine.ranks if self._out else ())
        while self._out:
            engine, call, look = self._out[0]
            if not engine.advance(0.0):
                look.at_times(engine.awaited)
                return
            self._out.popleft()
            if self._begun.get(engine) is call:
                del self._begun[engine]
                self._marked.discard(engine)
            else:
                self._mark(engine)

    def add(self, engine: StreamEngine, tag: int, number: int) -> None:
        """A call was put on a stream."""
        self._begun[engine] = UnderWay(engine, tag, number)
        if engine not in self._marked:
            self._marked.add(engine)
            self._mark(engine)

    def keep(self, memory: object) -> None:
        """Keep what a graph has recorded as long as it may be replayed: until `forget`."""
        self._recorded.add(memory)

    def forget(self) -> None:
        """No graph is replayed any more."""
        self._recorded.clear()

    def wait(self) -> None:
        """Return when the device is through with all calls, and with what is on the current stream; as `look` raises.

        Graphs that are replayed there are none of the calls.
        """
        for engine, call in list(self._begun.items()):
            engine.mark()
            self._waiting.for_call(call)
            del self._begun[engine]
        self._out.clear()
        self._marked.clear()
        with self._device.current():
            stream = _Stream(self._device, self._check)
        number = self._waiting.recorder.calls
        self._waiting.for_call(UnderWay(stream, GATHER_TAG, number, f"what is on the stream of {self._device.place}"))
        self._check()

    def _mark(self, engine: StreamEngine) -> None:
        """Have an event out for the last call of an engine."""
        engine.mark()
        call = self._begun[engine]
        self._out.append(InFlightCall(engine, call, WaitMonitor(self._waiting, call, self._waiting.timeout_s)))

    def _check(self, ranks: Sequence[int] = ()) -> None:
        """Raise what is known of errors, of graphs that were replayed too."""
        for means in self._means:
            means.check(ranks)
