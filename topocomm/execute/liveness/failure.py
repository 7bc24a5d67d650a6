"""Failure: ranks known to be gone, the record of the last calls."""

from __future__ import annotations

from pathlib import Path

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
        "calls": recorder.users_number(recorder.calls),
        "error": type(error).__name__,
        "message": str(error)[:2000],
    }
    open_calls = {call.number for call in waiting.under_way} | {recorder.calls}
    path = recorder.write(folder, header, waiting.describe, open_calls)
    LOGGER.info("rank %d: %s: %s", transport.rank, header["error"], header["message"])
    if path is not None and transport.size > 1:
        error.add_note(f"rank {transport.rank}: its last calls are in {path}")
