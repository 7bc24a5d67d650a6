"""How the ranks of a communicator set NCCL up over the transport that they have; collective.

Every rank tells what it has, so that all come to the same decision. Rank 0 makes the unique id and sends it, or why it
could not, so that no rank waits for an id that never comes. Each rank makes its NcclCommunicator on a helper thread:
that waits for the others inside NCCL, where nothing can be asked.
"""

from __future__ import annotations

import json
from typing import Any

from topocomm.errors import TopocommError
from topocomm.execute.calls.agreement import gather_texts
from topocomm.execute.device.device_library import Device
from topocomm.execute.liveness.background_call import BackgroundCall
from topocomm.execute.liveness.pollable import AwaitedMessages
from topocomm.execute.liveness.waiting import UnderWay, Waiting
from topocomm.execute.setup.process_space import process_space
from topocomm.execute.transports.device import nccl_library
from topocomm.execute.transports.device.nccl import NcclDeviceTransport
from topocomm.execute.transports.device.nccl_library import Facts
from topocomm.execute.transports.transport import GATHER_TAG, Message

WHAT = "the set-up of NCCL"


def own_facts(device: Device, *, group: bool, mpi: str) -> Facts:
    """What this rank tells.

    Args:
        device: Where its values are.
        group: Whether its communicator was made of a torch process group with NCCL or RCCL.
        mpi: Why its MPI is not given device memory; empty if it says that it takes it.
    """
    version, why = None, ""
    try:
        version = int(nccl_library.load_nccl().get_version())
    except TopocommError as error:
        why = str(error)
    except (RuntimeError, KeyError) as error:
        why = f"NCCL does not tell its version: {error}"
    address = device.bus_id or f"number {device.index}"
    gpu = device.uuid or "/".join([*process_space(), address])
    return Facts(gpu, address, version, why, nccl_library.allows_several(), group, mpi)


def gather_facts(waiting: Waiting, own: Facts) -> list[Facts]:
    """What all ranks tell, in rank order; collective."""
    return [Facts(*json.loads(text)) for text in gather_texts(waiting, json.dumps(own).encode(), what=WHAT)]


def connect(waiting: Waiting, device: Device) -> NcclDeviceTransport:
    """NCCL between all ranks, none of which refuses it; collective.

    Raises:
        TopocommError: Rank 0 makes no id, or NCCL cannot be set up here.
        DeadlineError, RankFailedError: Not all ranks come, or one fails.
    """
    nccl, transport = nccl_library.load_nccl(), waiting.transport
    unique_id = _share_id(waiting, nccl)
    everyone = [Message(peer, ()) for peer in range(transport.size) if peer != transport.rank]
    others = AwaitedMessages(0, (), everyone)
    making = BackgroundCall(lambda: _make(nccl, device, transport.size, unique_id, transport.rank), "nccl", others)
    waiting.for_call(UnderWay(making, GATHER_TAG, waiting.recorder.calls, WHAT))
    if making.error is not None:
        raise TopocommError(
            f"rank {transport.rank}: NCCL cannot be set up: {making.error}; NCCL_DEBUG=WARN shows more"
        ) from making.error
    return NcclDeviceTransport(nccl, making.made, transport.rank, device, waiting.timeout_s)


def _share_id(waiting: Waiting, nccl: Any) -> bytes:
    """Rank 0's unique id, or its reason as an error on every rank."""
    rank, told = waiting.transport.rank, {}
    if rank == 0:
        try:
            told = {"id": nccl_library.id_to_bytes(nccl.get_unique_id()).hex()}
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            told = {"why": f"{type(error).__name__}: {error}"}
    first = json.loads(gather_texts(waiting, json.dumps(told).encode(), what=WHAT)[0])
    if "why" in first:
        raise TopocommError(f"rank {rank}: NCCL cannot be set up: rank 0 makes no unique id: {first['why']}")
    unique_id = bytes.fromhex(first["id"])
    if len(unique_id) != nccl_library.ID_BYTES:
        raise TopocommError(
            f"rank {rank}: NCCL cannot be set up: rank 0's unique id has {len(unique_id)} bytes, "
            f"not {nccl_library.ID_BYTES}"
        )
    return unique_id


def _make(nccl: Any, device: Device, size: int, unique_id: bytes, rank: int) -> Any:
    with device.current():
        return nccl_library.make_communicator(nccl, size, unique_id, rank)
