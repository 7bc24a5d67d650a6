"""Kernels of a call are on the device before any rank waits for another there.

A kernel is loaded when it is first launched, and loading one may wait until its device is through with everything (CUDA
Programming Guide, "Lazy Loading", concurrent execution). Where ranks are threads of one process, that wait may keep the
others from putting there what is awaited (meta-pytorch/torchcomms#2334). So a call that is prepared runs everything but
its messages once, and all ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from topocomm.execute.agreement import gather_notes
from topocomm.execute.device import Device
from topocomm.execute.transports.transport import GATHER_TAG

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator


def load_together(comm: Communicator, load: Callable[[], object]) -> None:
    """Have this rank's device load what a call runs there, while no rank's call waits on a device; collective.

    Args:
        comm: The communicator, whose ranks have agreed on the call if they ever do: what they called before is on
            their streams then, and comes to its end.
        load: Loads it.
    """
    if comm.transport.in_process and comm.settings.check == "never":
        _meet(comm)
    load()
    if comm.transport.in_process:
        _meet(comm)


def load_copies(device: Device, dtypes: Iterable[Any]) -> None:
    """Load what copies tensors of torch dtypes that are not dense; dense ones are copied without a kernel."""
    import torch

    for dtype in dict.fromkeys(dtypes):
        dense, turned = (torch.empty((2, 3), dtype=dtype, device=device.place) for _ in range(2))
        dense.view(3, 2).copy_(turned.t())


def _meet(comm: Communicator) -> None:
    gather_notes(comm.waiting, b"1", tag=GATHER_TAG, what="the set-up of kernels")
