"""The end of a process: others learn that a rank leaves, and nobody hangs on the way out.

MPI_Finalize waits for all ranks. So before it every rank asks, with a time limit, whether all are leaving. If they are
not, an open communicator tells the others, who may be waiting for this rank; one that has failed ends the process here.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakSet

from topocomm.errors import RankFailedError, TopocommError

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator
    from topocomm.execute.transports.transport import Transport

PATIENCE_S = 1.0
"""How long an open communicator waits for others to leave too before it tells them."""
FAILED_PATIENCE_S = 5.0
"""How long one that has failed waits before its process ends without the others."""

_alive: WeakSet[Communicator] = WeakSet()
_bereaved: list[Transport] = []
"""The first transport that has lost ranks: its communicator may have been dropped for a smaller one long before."""


def watch_departure(comm: Communicator) -> None:
    """Have the other ranks told when this process ends before `comm` is closed."""
    if comm.size > 1 and not comm.transport.in_process:
        _alive.add(comm)
        _at_exit()


def note_loss(transport: Transport) -> None:
    """Remember at this process's end that ranks are gone, whatever becomes of the communicator that found it out."""
    if not _bereaved and not transport.in_process:
        _bereaved.append(transport)


@cache
def _at_exit() -> None:
    atexit.register(_depart)


def _depart() -> None:
    for comm in list(_alive):
        failed = comm.failed
        if not failed and not comm.open:
            continue
        if comm.gone or (failed and comm.transport.failed()):
            note_loss(comm.transport)
            continue
        if comm.transport.all_leave(FAILED_PATIENCE_S if failed else PATIENCE_S):
            continue
        if failed:
            sys.stderr.write(
                f"rank {comm.rank}: the other ranks do not come to the end of the job; this process ends without them\n"
            )
            sys.stdout.flush()
            sys.stderr.flush()
            comm.transport.end_process()
            continue
        with suppress(TopocommError):
            comm.fail(RankFailedError(f"rank {comm.rank} has left: its process ends"))
    for transport in _bereaved:
        _finish_alone(transport)


def _finish_alone(transport: Transport) -> None:
    """Finish a transport some of whose ranks are gone: it may know that, or wait for them for ever."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(FAILED_PATIENCE_S, exit=True, file=nowhere)  # works where Python does not
        transport.finish()
        faulthandler.cancel_dump_traceback_later()
