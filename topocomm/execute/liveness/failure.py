"""Failure: ranks known to be gone, the record of the last calls, the hook for uncaught exceptions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from topocomm.execute.liveness.log import LOGGER
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.transport import Transport


def gone_with(transport: Transport, error: BaseException) -> set[int]:
    """Return the ranks known to be gone, including by this error."""
    gone = set(transport.failed())
    report = getattr(error, "report", None)
    if report is not None and report["kind"] == "RankFailedError":
        gone.add(report["rank"])
    return gone - {transport.rank}


def write_record(waiting: Waiting, folder: Path, error: BaseException) -> None:
    """Write the last calls of this rank to a file in `folder`, and note with the error where they are."""
    transport, recorder = waiting.transport, waiting.recorder
    header: dict[str, object] = {
        "rank": transport.rank,
        "size": transport.size,
        "transport": transport.name,
        "calls": recorder.calls,
        "error": type(error).__name__,
        "message": str(error)[:2000],
    }
    open_calls = {call.number for call in waiting.under_way} | {recorder.calls}
    path = recorder.write(folder, header, waiting.describe, open_calls)
    LOGGER.info("rank %d: %s: %s", transport.rank, header["error"], header["message"])
    if path is not None and transport.size > 1:
        error.add_note(f"rank {transport.rank}: its last calls are in {path}")


def end_on_uncaught(rank: int, size: int, end: Callable[[BaseException], None]) -> None:
    """Show an uncaught exception of this process with its rank, then call `end` with it.

    Without this the other ranks would wait for ever: a rank that leaves on an exception does not tell them, and
    under MPI it blocks in MPI_Finalize. The rank is that of the first call; later calls only add another `end`.
    """
    hook = sys.excepthook
    if not isinstance(hook, _Hook):
        sys.excepthook = hook = _Hook(rank, size, hook)
    if end not in hook.ends:
        hook.ends.append(end)


class _Hook:
    """A `sys.excepthook` that runs the one before it, then `ends`."""

    def __init__(self, rank: int, size: int, before: Callable[..., object]) -> None:
        self.ends: list[Callable[[BaseException], None]] = []
        self._who, self._before = f"rank {rank} of {size}", before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(f"{self._who} failed:\n")
        self._before(kind, error, trace)
        sys.stderr.flush()
        sys.stdout.flush()
        for end in self.ends:
            end(error)
