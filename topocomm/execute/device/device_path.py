"""How values on devices travel between the ranks of a communicator."""

from __future__ import annotations

from topocomm.errors import OperatorError
from topocomm.execute.device.device_library import Device
from topocomm.execute.device.device_progress import InFlightCalls
from topocomm.execute.device.peer.peer_engine import PeerPlan
from topocomm.execute.device.peer.peer_memory import PeerMemory
from topocomm.execute.host.call_engine import Work
from topocomm.execute.liveness.log import say
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.device.device_transport import DeviceTransport


class DevicePath:
    """What the ranks have agreed upon.

    Args:
        waiting: How the communicator waits.
        device: As below.
        wire: As below.
        reason: As below.
        peer: As below.

    Attributes:
        device: Where this rank's values are.
        wire: What moves bytes between devices; None: values are staged through host memory.
        reason: Why it is not NCCL by CuPy.
        peer: The memory for calls by one kernel; None where the ranks cannot map each other's.
        flights: Calls that were not seen to end; None where all values are staged.
    """

    def __init__(
        self,
        waiting: Waiting,
        device: Device,
        wire: DeviceTransport | None,
        reason: str,
        peer: PeerMemory | None = None,
    ) -> None:
        self.device, self.wire, self.reason, self.peer = device, wire, reason, peer
        means = [one for one in (wire, peer) if one is not None]
        self.flights = InFlightCalls(waiting, device, *means) if means else None

    def check(self, device: Device) -> None:
        """Raise OperatorError where values are on another device than the way was made for."""
        if self.flights is not None and device is not self.device:
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
        """End what the device waits for; the wire last, which waits for kernels before it on a stream."""
        for means in (self.peer, self.wire):
            if means is not None:
                means.abort()

    def leave(self) -> None:
        """Give back what belongs to other ranks; the device is through with all calls."""
        if self.peer is not None:
            self.peer.leave()

    def close(self) -> None:
        """Give everything back; all ranks have left."""
        if self.flights is not None:
            self.flights.forget()
        for means in (self.wire, self.peer):
            if means is not None:
                means.close()
