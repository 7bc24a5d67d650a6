"""How values on devices travel between the ranks, and the calls there that are not known to have ended.

A call on a device returns before it is through. Errors and time limits are checked later: at the next call, at
`Communicator.synchronize` and at `close`. Each call has at most one event out, and only the oldest is asked. The time
limit counts from when an event was put on the stream: a device that is busy for hours is not taken for one that hangs.
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.errors import OperatorError
from topocomm.execute.device.device_engine import StreamEngine
from topocomm.execute.device.device_library import Device, StreamEnd
from topocomm.execute.device.peer.peer_engine import PeerPlan
from topocomm.execute.device.peer.peer_memory import PeerMemory
from topocomm.execute.host.call_engine import Work
from topocomm.execute.liveness.log import say
from topocomm.execute.liveness.waiting import UnderWay, Waiting, WaitMonitor
from topocomm.execute.transports.transport import GATHER_TAG, DeviceTransport


class InFlightCalls:
    """The calls of one communicator on a device that nobody has seen to end."""

    def __init__(self, waiting: Waiting, device: Device, *means: DeviceTransport | PeerMemory) -> None:
        self._waiting, self._device, self._means = waiting, device, means
        self._out: dict[StreamEngine, tuple[UnderWay, WaitMonitor]] = {}
        """Engines with an event out, the oldest first, each with the call that it stands for."""
        self._begun: dict[StreamEngine, UnderWay] = {}
        """Engines with calls that nobody has waited for, each with the last of them."""
        self._recorded: set[object] = set()

    def look(self) -> None:
        """Ask whether calls that were begun can still come through; does not wait.

        Raises:
            DeadlineError: One is not through after the limit.
            MismatchError, RankFailedError: As for any call.
        """
        self._check(next(iter(self._out)).ranks if self._out else ())
        while self._out:
            engine, (call, monitor) = next(iter(self._out.items()))
            if not engine.advance(0.0):
                monitor.at_times(engine.awaited)
                return
            del self._out[engine]
            if self._begun.get(engine) is call:
                del self._begun[engine]
            else:
                self._mark(engine)

    def add(self, engine: StreamEngine, tag: int, number: int) -> None:
        """A call was put on a stream."""
        self._begun[engine] = UnderWay(engine, tag, number)
        if engine not in self._out:
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
        with self._device.current():
            stream = StreamEnd(self._device, self._check)
        number = self._waiting.recorder.calls
        self._waiting.for_call(UnderWay(stream, GATHER_TAG, number, f"what is on the stream of {self._device.place}"))
        self._check()

    def _mark(self, engine: StreamEngine) -> None:
        """Have an event out for the last call of an engine."""
        engine.mark()
        call = self._begun[engine]
        self._out[engine] = call, WaitMonitor(self._waiting, call, self._waiting.timeout_s)

    def _check(self, ranks: Sequence[int] = ()) -> None:
        """Raise what is known of errors, of graphs that were replayed too."""
        for means in self._means:
            means.check(ranks)


class DevicePath:
    """How the ranks have agreed to move values on devices.

    Attributes:
        device: Where this rank's values are.
        transport: What moves bytes between devices; None: values are staged through host memory.
        reason: Why it is not NCCL by CuPy.
        peer: The memory for calls by one kernel; None where the ranks cannot map each other's.
        in_flight: Calls that were not seen to end; None where all values are staged.
    """

    def __init__(
        self,
        waiting: Waiting,
        device: Device,
        wire: DeviceTransport | None,
        reason: str,
        peer: PeerMemory | None = None,
    ) -> None:
        self.device, self.transport, self.reason, self.peer = device, wire, reason, peer
        means = [link for link in (wire, peer) if link is not None]
        self.in_flight = InFlightCalls(waiting, device, *means) if means else None

    def check(self, device: Device) -> None:
        """Raise OperatorError where values are on another device than the path was made for."""
        if self.in_flight is not None and device is not self.device:
            raise OperatorError(
                f"the value is on {device.place}; this communicator's first value was on {self.device.place}: all "
                "values of one communicator are on one device"
            )

    def peer_plan(self, work: Work) -> PeerPlan | None:
        """How one kernel runs a call; None where none does."""
        if self.peer is None:
            return None
        plan = PeerPlan(work, self.peer, self.device.place.type)
        if plan.refusal:
            say(work.rank, f"{work.operator.name} of {work.layout} goes by no kernel of its own: {plan.refusal}")
        return None if plan.refusal else plan

    def abort(self) -> None:
        """End what the device waits for; the transport last, which waits for kernels before it on a stream."""
        for means in (self.peer, self.transport):
            if means is not None:
                means.abort()

    def leave(self) -> None:
        """Give back what belongs to other ranks; the device is through with all calls."""
        if self.peer is not None:
            self.peer.leave()

    def close(self) -> None:
        """Give everything back; all ranks have left."""
        if self.in_flight is not None:
            self.in_flight.forget()
        for means in (self.transport, self.peer):
            if means is not None:
                means.close()
