"""Choice of the path that values on devices take between the ranks, made at the first call with such values."""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.execute.device.device_library import Device, visible_devices
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.device.peer.peer_memory import MOST_RANKS, PLENTY, PeerMemory
from topocomm.execute.liveness.log import say
from topocomm.execute.session import Session
from topocomm.execute.transports.device import mpi_device, nccl_library, peer_mapping
from topocomm.execute.transports.device import torch_device as torch_device
from topocomm.execute.transports.device.mpi_device import MpiDeviceTransport, prove
from topocomm.execute.transports.device.nccl import connect, gather_facts, own_facts
from topocomm.execute.transports.device.nccl_library import Facts, mpi_refusal
from topocomm.execute.transports.mpi import MpiTransport, load_mpi
from topocomm.execute.transports.transport import GATHER_TAG, DeviceTransport, NoDeviceTransport
from topocomm.topology.model import Topology


def choose_device_path(session: Session, device: Device) -> DevicePath:
    """The path of a communicator whose ranks all give values on devices; collective.

    Raises:
        TopocommError: NCCL takes these ranks, and cannot be set up.
        DeadlineError, RankFailedError: As for any call.
    """
    session.recorder.begin(GATHER_TAG)
    if session.size == 1:
        return DevicePath(session.waiting, device, NoDeviceTransport(), "")
    group = session.transport.device_group
    has_group = torch_device.device_backend(group) is not None
    mpi = session.transport if isinstance(session.transport, MpiTransport) else None
    why_not = Facts._field_defaults["mpi"] if mpi is None else mpi_device.refusal(load_mpi())
    facts = gather_facts(session.waiting, own_facts(device, group=has_group, mpi=why_not))
    reason = nccl_library.refusal(facts)
    peer, why_not = find_peers(session, device)
    say(session.rank, "short values on devices go by one kernel" if peer else f"no kernel runs whole calls: {why_not}")
    transport: DeviceTransport | None
    if reason is None:
        transport = connect(session.waiting, device)
        how = f"go by NCCL {nccl_library.version_text(facts[0].version or 0)}"
    elif nccl_library.group_refusal(facts) is None:
        transport = torch_device.TorchDeviceTransport(group, device, session.settings.timeout_s)
        how = f"go by a torch process group, since CuPy's NCCL cannot be used: {reason}"
    else:
        transport, no_mpi = _by_mpi(session, mpi, device, facts)
        how = "are staged through host memory" if transport is None else "go by MPI, which takes device memory"
        how += f", since NCCL cannot be used: {reason}{no_mpi}"
    path = DevicePath(session.waiting, device, transport, reason or "", peer)
    say(session.rank, f"values on devices {how}")
    planned = session.topology.by_id[session.places[session.rank]].bus_id
    if planned is not None and device.bus_id not in (None, planned):
        text = f"the values are on GPU {device.bus_id}, the topology has this rank on {planned}: costs are its"
        say(session.rank, text)
    return path


def _by_mpi(
    session: Session, mpi: MpiTransport | None, device: Device, facts: Sequence[Facts]
) -> tuple[MpiDeviceTransport | None, str]:
    """MPI between devices, if it says and shows that it takes their memory, else what is in the way; collective."""
    refusal = mpi_refusal(facts)
    if mpi is None or refusal is not None:
        return None, f"; nor MPI: {refusal}" if mpi is not None else ""
    wire = MpiDeviceTransport(mpi, device, session.waiting)
    failure = prove(session.waiting, device, wire)
    if failure:
        wire.close()
        return None, f"; nor MPI, which says that it takes device memory: {failure}"
    return wire, ""


def find_peers(session: Session, device: Device) -> tuple[PeerMemory | None, str]:
    """The memory of ranks that are on one host; None, on all ranks, where there is none, and why; collective.

    Raises:
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """
    group = session.transport.device_group
    facts = gather_facts(session.waiting, peer_mapping.peer_facts(device, group), peer_mapping.WHAT)
    reason = peer_mapping.peer_refusal(facts, MOST_RANKS)
    if reason is not None:
        return None, reason
    programs = peer_mapping.programs_of(facts)
    if not programs:
        return None, "a GPU has fewer than two multiprocessors for each rank on it"
    mapped = peer_mapping.map_memory(session.waiting, device, group, facts, PLENTY.total_bytes)
    if isinstance(mapped, str):
        return None, mapped
    mapping, addresses = mapped
    from topocomm.operators.kernels.gpu import backend_of

    memory = PeerMemory(
        device,
        session.rank,
        addresses,
        programs=programs,
        backend=backend_of(device.place.type),
        timeout_s=session.settings.timeout_s,
        crowded=len({fact.gpu for fact in facts}) < len(facts),
        mapping=mapping,
    )
    return memory, ""


def own_gpu(topology: Topology, place: str) -> int | None:
    """Return the number by which this process knows the GPU that a rank is placed on; None where it does not see it."""
    bus_id = topology.by_id[place].bus_id
    if topology.by_id[place].kind != "gpu" or bus_id is None:
        return None
    return next((device.index for device in visible_devices() if device.bus_id == bus_id), None)
