"""Waiting with a time limit, and finding out meanwhile why nothing comes.

While a rank waits it looks, slice by slice, at what its peers sent: the word that one has failed, or a message of
another call. Both end the wait at once with an error that names the rank. A wait that reaches its limit raises
DeadlineError with the ranks awaited; after 10 s rank 0 says once whom it awaits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from topocomm.errors import DeadlineError, MismatchError, RankFailedError, TopocommError
from topocomm.execute.transports.transport import (
    AGREEMENT_TAG,
    FAILURE_TAG,
    GATHER_TAG,
    Batch,
    Message,
    Transport,
)

SLICE_S = 0.05
FIRST_LOOK_S = 0.001
SAY_AFTER_S = 10.0
FAILURES: dict[str, type[TopocommError]] = {
    "DeadlineError": DeadlineError,
    "MismatchError": MismatchError,
    "RankFailedError": RankFailedError,
}


@dataclass
class Waiting:
    """How one communicator waits."""

    transport: Transport
    timeout_s: float
    describe: Callable[[int], str]
    """What the call with a tag is, in words."""
    stand: Callable[[int | None], None]
    """Tells the other ranks of the host which call this rank is in: one with a tag, or (None) one by notes."""
    said: set[str] = field(default_factory=set)

    def for_batch(self, batch: Batch, tag: int) -> None:
        """Wait for a batch that did not complete at once.

        Raises:
            DeadlineError: The limit is reached.
            MismatchError: An awaited rank makes another call.
            RankFailedError: A rank reported a failure.
        """
        self.stand(tag)
        began_s = time.monotonic()
        while not batch.wait(SLICE_S):
            self._look(batch, tag)
            waited_s = time.monotonic() - began_s
            if waited_s >= SAY_AFTER_S or waited_s >= self.timeout_s:
                sends, receives = batch.pending()
                self._patience(waited_s, self.describe(tag), _awaited(sends, receives))

    def for_note(self, peer: int, tag: int, what: str) -> bytes:
        """Wait for a note from `peer`; raises like `for_batch`."""
        began_s = time.monotonic()
        next_look_s = began_s + FIRST_LOOK_S
        while (data := self.transport.take(peer, tag)) is None:
            now_s = time.monotonic()
            if now_s >= next_look_s:
                next_look_s = now_s + SLICE_S
                self.stand(None)
                self._failures()
                seen = self.transport.peek(peer)
                if seen is not None and seen[0] not in (tag, FAILURE_TAG):
                    self._mismatch(peer, seen[0], what)
                self._compare_standings(what)
                self._patience(now_s - began_s, what, f"rank {peer}")
            self.transport.pause()
        return data

    def _look(self, batch: Batch, tag: int) -> None:
        """Look at the oldest message of every awaited rank."""
        self._failures()
        seen = {m.peer: self.transport.peek(m.peer) for m in batch.pending()[1]}
        still = {m.peer for m in batch.pending()[1]}  # asked after peeking: else the awaited message is the older one
        for peer in still:
            found = seen.get(peer)
            if found is not None and found[0] not in (tag, FAILURE_TAG):
                self._mismatch(peer, found[0], self.describe(tag))
        self._compare_standings(self.describe(tag))

    def _compare_standings(self, what: str) -> None:
        """The n-th call is the same on all ranks, or some rank makes another one."""
        if self.transport.standings is None:
            return
        standings = self.transport.standings.tolist()
        mine = standings[self.transport.rank]
        for peer, theirs in enumerate(standings):
            stood = theirs & 0xFFFFFFFF  # 0 as long as a rank has not waited
            if stood and theirs >> 32 == mine >> 32 and theirs != mine:
                self._mismatch(peer, stood, what)

    def _failures(self) -> None:
        for peer in range(self.transport.size):
            note = self.transport.take(peer, FAILURE_TAG) if peer != self.transport.rank else None
            if note is not None:
                raise _reported(self.transport.rank, json.loads(note))

    def _mismatch(self, peer: int, tag: int, mine: str) -> None:
        notes = {AGREEMENT_TAG: "makes a call for the first time", GATHER_TAG: "is in a barrier or sets up a call"}
        theirs = notes[tag] if tag in notes else f"is in {self.describe(tag)}"
        raise MismatchError(
            f"rank {self.transport.rank}: rank {peer} {theirs}, this rank is in {mine}; "
            "all ranks must make the same calls in the same order"
        )

    def _patience(self, waited_s: float, what: str, whom: str) -> None:
        if waited_s >= self.timeout_s:
            raise DeadlineError(
                f"rank {self.transport.rank}: {what}: still waiting for {whom} after {self.timeout_s:g} s "
                "(limit: TOPOCOMM_TIMEOUT_S)"
            )
        if waited_s >= SAY_AFTER_S and self.transport.rank == 0 and what not in self.said:
            self.said.add(what)
            sys.stderr.write(f"topocomm: rank 0 has waited {waited_s:.0f} s in {what} for {whom}\n")
            sys.stderr.flush()


def failure_note(rank: int, error: BaseException) -> bytes:
    """The word that `rank` has failed; a rank that fails because another did passes that one's word on."""
    report = getattr(error, "report", None) or {"rank": rank, "kind": type(error).__name__, "text": str(error)[:800]}
    return json.dumps(report).encode()


def _reported(rank: int, report: dict[str, Any]) -> TopocommError:
    """The error that this rank raises because of another rank's failure."""
    origin, text = report["rank"], report["text"]
    told = text if text.startswith(f"rank {origin}: ") else f"rank {origin} failed: {report['kind']}: {text}"
    error = FAILURES.get(report["kind"], RankFailedError)(f"rank {rank}: stopped, since {told}")
    error.report = report  # type: ignore[attr-defined]
    return error


def _awaited(sends: Iterable[Message], receives: Iterable[Message]) -> str:
    parts = [f"rank {m.peer} ({m.payload_bytes} bytes from it)" for m in receives]
    parts += [f"rank {m.peer} (to take {m.payload_bytes} bytes)" for m in sends]
    return ", ".join(parts) or "messages under way"
