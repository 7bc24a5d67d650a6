"""Kernels of a call are on the device before any rank waits for another there.

A kernel is loaded when it is first launched, and loading one may wait until its device is through with everything (CUDA
Programming Guide, "Lazy Loading", concurrent execution). Where ranks are threads of one process, that wait may keep the
others from putting there what is awaited (meta-pytorch/torchcomms#2334). So a call that is prepared runs everything but
its messages once, and all ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable

from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import GATHER_TAG


def load_together(session: Session, load: Callable[[], object]) -> None:
    """Have this rank's device load what a call runs there, while no rank's call waits on a device; collective.

    Args:
        session: The communicator, whose ranks have agreed on the call if they ever do: what they called before is on
            their streams then, and comes to its end.
        load: Loads it.
    """
    if session.transport.in_process and session.settings.check == "never":
        _meet(session)
    load()
    if session.transport.in_process:
        _meet(session)


def _meet(session: Session) -> None:
    gather_notes(session.waiting, b"1", tag=GATHER_TAG, what="the set-up of kernels")
