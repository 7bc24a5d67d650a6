"""How values on devices travel between the ranks of a communicator: found out at the first call with such values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topocomm.errors import OperatorError
from topocomm.execute.device import Device, visible_devices
from topocomm.execute.device_progress import Flights
from topocomm.execute.lanes import Work
from topocomm.execute.log import say
from topocomm.execute.peer_lane import PeerPlan
from topocomm.execute.peer_memory import PeerMemory, find_peers
from topocomm.execute.transports import mpi_devices, nccl_library, torch_wire
from topocomm.execute.transports.mpi import MpiTransport, load_mpi
from topocomm.execute.transports.mpi_wire import MpiWire, prove
from topocomm.execute.transports.nccl_library import Facts, mpi_refusal
from topocomm.execute.transports.nccl_setup import connect, gather_facts, own_facts
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.transports.wire import NoWire, Wire
from topocomm.topology.model import Topology

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator


class Way:
    """What the ranks have agreed upon.

    Attributes:
        device: Where this rank's values are.
        wire: What moves bytes between devices; None: values are staged through host memory.
        reason: Why it is not NCCL by CuPy.
        peer: The memory for calls by one kernel; None where the ranks cannot map each other's.
        flights: Calls that were not seen to end; None where all values are staged.
    """

    def __init__(
        self, comm: Communicator, device: Device, wire: Wire | None, reason: str, peer: PeerMemory | None = None
    ) -> None:
        self.device, self.wire, self.reason, self.peer = device, wire, reason, peer
        means = [one for one in (wire, peer) if one is not None]
        self.flights = Flights(comm.waiting, device, *means) if means else None

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


def find_way(comm: Communicator, device: Device) -> Way:
    """The way of a communicator whose ranks all give values on devices; collective.

    Raises:
        TopocommError: NCCL takes these ranks, and cannot be set up.
        DeadlineError, RankFailedError: As for any call.
    """
    comm.recorder.begin(GATHER_TAG)
    if comm.size == 1:
        return Way(comm, device, NoWire(), "")
    group = comm.transport.device_group
    has_group = torch_wire.device_backend(group) is not None
    mpi = comm.transport if isinstance(comm.transport, MpiTransport) else None
    why_not = Facts._field_defaults["mpi"] if mpi is None else mpi_devices.refusal(load_mpi())
    facts = gather_facts(comm.waiting, own_facts(device, group=has_group, mpi=why_not))
    reason = nccl_library.refusal(facts)
    peer, why_not = find_peers(comm, device)
    say(comm.rank, "short values on devices go by one kernel" if peer else f"no kernel runs whole calls: {why_not}")
    if reason is None:
        way = Way(comm, device, connect(comm.waiting, device), "", peer)
        say(comm.rank, f"values on devices go by NCCL {nccl_library.version_text(facts[0].version or 0)}")
    elif nccl_library.group_refusal(facts) is None:
        way = Way(comm, device, torch_wire.TorchWire(group, device, comm.settings.timeout_s), reason, peer)
        say(comm.rank, f"values on devices go by a torch process group, since CuPy's NCCL cannot be used: {reason}")
    else:
        wire, no_mpi = _by_mpi(comm, mpi, device, facts)
        way = Way(comm, device, wire, reason, peer)
        how = "are staged through host memory" if wire is None else "go by MPI, which takes device memory"
        say(comm.rank, f"values on devices {how}, since NCCL cannot be used: {reason}{no_mpi}")
    planned = comm.topology.by_id[comm.places[comm.rank]].bus_id
    if planned is not None and device.bus_id not in (None, planned):
        say(comm.rank, f"the values are on GPU {device.bus_id}, the topology has this rank on {planned}: costs are its")
    return way


def _by_mpi(
    comm: Communicator, mpi: MpiTransport | None, device: Device, facts: Sequence[Facts]
) -> tuple[MpiWire | None, str]:
    """MPI between devices, if it says and shows that it takes their memory, else what is in the way; collective."""
    refusal = mpi_refusal(facts)
    if mpi is None or refusal is not None:
        return None, f"; nor MPI: {refusal}" if mpi is not None else ""
    wire = MpiWire(mpi, device, comm.waiting)
    failure = prove(comm.waiting, device, wire)
    if failure:
        wire.close()
        return None, f"; nor MPI, which says that it takes device memory: {failure}"
    return wire, ""


def own_gpu(topology: Topology, place: str) -> int | None:
    """The number by which this process knows the GPU that a rank is placed on; None where it does not see it.

    Args:
        topology: The machine.
        place: The rank's endpoint.
    """
    bus_id = topology.by_id[place].bus_id
    if topology.by_id[place].kind != "gpu" or bus_id is None:
        return None
    return next((device.index for device in visible_devices() if device.bus_id == bus_id), None)
