"""Shrinking: the surviving ranks meet, with a time limit, and make a new communicator."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import TYPE_CHECKING

from topocomm.errors import DeadlineError, RankFailedError, TopocommError
from topocomm.execute.transports.transport import SHRINK_TAG, Transport

if TYPE_CHECKING:
    from topocomm.execute.session import Session


def survivors(session: Session) -> list[int]:
    """Return the surviving ranks, the same on each of them; collective over them.

    Raises:
        TopocommError: The communicator has not failed because of a rank that is gone.
        DeadlineError: A rank that is not known to be gone does not call `shrink`.
    """
    if not session.failed:
        raise TopocommError(
            f"rank {session.rank}: shrink() follows a RankFailedError; this communicator has not failed"
        )
    meeting = _Meeting(session.transport, set(session.gone))
    limit_s = session.settings.timeout_s
    until_s = time.monotonic() + limit_s
    while not meeting.complete():
        if time.monotonic() > until_s:
            raise DeadlineError(
                f"rank {session.rank}: shrink() is collective over the ranks that are left; still waiting for "
                f"rank {', '.join(map(str, meeting.awaited()))} after {limit_s:g} s (limit: TOPOCOMM_TIMEOUT_S)"
            )
        session.transport.pause()
    members = [rank for rank in range(session.size) if rank not in meeting.gone]
    if len(members) == session.size:
        raise RankFailedError(f"rank {session.rank}: shrink(): no rank is gone; make a new communicator instead")
    return members


@contextmanager
def ending_after(transport: Transport, limit_s: float, members: Sequence[int]) -> Iterator[None]:
    """End this process if what runs inside does not come back in time: MPI's own shrinking cannot be given up."""

    def give_up() -> None:
        others = ", ".join(str(rank) for rank in members if rank != transport.rank)
        sys.stderr.write(
            f"rank {transport.rank}: shrink(): still waiting for rank {others} after {limit_s:g} s (limit: "
            "TOPOCOMM_TIMEOUT_S), in a call of MPI that cannot be given up; this process ends\n"
        )
        sys.stderr.flush()
        transport.end_process()

    timer = Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Meeting:
    """Each rank tells the others whom it knows to be gone, whenever that grows; all agree in the end."""

    def __init__(self, transport: Transport, gone: set[int]) -> None:
        self._transport = transport
        self.gone = gone
        self._told: set[int] | None = None
        self._heard: dict[int, set[int]] = {}

    def awaited(self) -> list[int]:
        """Return the ranks that have not come, or do not know yet what this one knows."""
        others = set(range(self._transport.size)) - self.gone - {self._transport.rank}
        return sorted(peer for peer in others if self._heard.get(peer) != self.gone)

    def complete(self) -> bool:
        """Return whether all surviving ranks know the same."""
        rank = self._transport.rank
        self.gone |= set(self._transport.failed()) - {rank}
        others = set(range(self._transport.size)) - self.gone - {rank}
        for peer in others:
            while (note := self._transport.take(peer, SHRINK_TAG)) is not None:
                self._heard[peer] = set(json.loads(note))
                self.gone |= self._heard[peer] - {rank}
        if self._told != self.gone:
            self._told = set(self.gone)
            note = json.dumps(sorted(self.gone)).encode()
            for peer in others:
                self._transport.post(peer, SHRINK_TAG, note)
        return not self.awaited()
