"""What a communicator does when it fails: who is gone, and the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocomm.execute.log import LOGGER

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator
    from topocomm.execute.transports.transport import Transport


def gone_with(transport: Transport, error: BaseException) -> set[int]:
    """The ranks that are known to be gone, this error taken into account."""
    gone = set(transport.failed())
    report = getattr(error, "report", None)
    if report is not None and report["kind"] == "RankFailedError":
        gone.add(report["rank"])
    return gone - {transport.rank}


def write_record(comm: Communicator, error: BaseException) -> None:
    """Write the last calls of this rank to a file, and note with the error where they are."""
    header = {
        "rank": comm.rank,
        "size": comm.size,
        "transport": comm.transport.name,
        "calls": comm.recorder.calls,
        "error": type(error).__name__,
        "message": str(error)[:2000],
    }
    open_calls = {call.number for call in comm.waiting.under_way} | {comm.recorder.calls}
    path = comm.recorder.write(comm.settings.record_dir, header, comm.describe_tag, open_calls)
    LOGGER.info("rank %d: %s: %s", comm.rank, header["error"], header["message"])
    if path is not None and comm.size > 1:
        error.add_note(f"rank {comm.rank}: its last calls are in {path}")
