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
from itertools import count
from typing import Any
from weakref import WeakSet

from topocomm.errors import RankFailedError, TopocommError
from topocomm.execute.transports.transport import Transport

PATIENCE_S = 1.0
"""Seconds that an open communicator waits for others to leave before it tells them."""
FAILED_PATIENCE_S = 5.0
"""Seconds that a failed communicator waits before its process ends without the others."""

_alive: WeakSet[Any] = WeakSet()
"""Sessions that may be told of the end of this process."""
_unclosed: dict[int, Transport] = {}
"""Transports of communicators that were not closed, by the order in which they were made: the same on all ranks,
whatever has become of the communicators."""
_failed: list[Transport] = []
"""The first transport whose communicator has failed."""
_lost_ranks: list[Transport] = []
"""The first transport that has lost ranks: its communicator may have been dropped for a smaller one long before."""
_numbers = count()


def watch_shutdown(session: Any) -> None:
    """Register a `Session`, so that others are told if this process ends before it is closed."""
    if session.size > 1 and not session.transport.in_process:
        _alive.add(session)
        number = next(_numbers)
        _unclosed[number] = session.transport
        if not number:
            atexit.register(_depart)


def note_close(transport: Transport) -> None:
    """Forget a communicator that was closed."""
    for number, other in list(_unclosed.items()):
        if other is transport:
            del _unclosed[number]


def note_failure(transport: Transport, *, gone: bool) -> None:
    """Remember at this process's end that a communicator has failed, and whether ranks are gone."""
    if transport.in_process:
        return
    if not _failed:
        _failed.append(transport)
    if gone and not _lost_ranks:
        _lost_ranks.append(transport)


def _depart() -> None:
    with suppress(
        OSError, ValueError, AttributeError
    ):  # MPI_Finalize may end the process, which loses what a pipe was not given yet
        sys.stdout.flush()
    if _lost_ranks or (_failed and _failed[0].failed()):
        with open(os.devnull, "w") as nowhere:  # MPI may know that ranks are gone, or wait for them for ever
            faulthandler.dump_traceback_later(FAILED_PATIENCE_S, exit=True, file=nowhere)  # works where Python does not
            (_lost_ranks or _failed)[0].finish()
            faulthandler.cancel_dump_traceback_later()
    elif _unclosed and not next(iter(_unclosed.values())).all_leave(FAILED_PATIENCE_S if _failed else PATIENCE_S):
        _leave_alone()


def _leave_alone() -> None:
    """The other ranks do not leave: tell those that may wait for this one, or end without MPI_Finalize."""
    failed = list(_failed)  # before the sessions below fail
    for session in list(_alive):
        if session.open:
            with suppress(TopocommError):
                session.fail(RankFailedError(f"rank {session.rank} has left: its process ends"))
    if failed:
        sys.stderr.write(
            f"rank {failed[0].rank}: the other ranks do not come to the end of the job; "
            "this process ends without them\n"
        )
        sys.stderr.flush()
        failed[0].end_process()
