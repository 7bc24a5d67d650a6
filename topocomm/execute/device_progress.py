"""Calls on a device whose end nobody has seen: what a rank asks of them when it makes its next call.

A call on a device returns before it is through. So errors and time limits are asked of it later: at the next call, at
`Communicator.synchronize` and at `close`. One event is out per call at a time, and the oldest alone is asked, so a
program that keeps the device busy for hours is not taken for one that hangs: what counts is how long an event is out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from topocomm.execute.peer_memory import PeerMemory
from topocomm.execute.stream_lane import StreamLane
from topocomm.execute.transports.wire import Wire
from topocomm.execute.waiting import Look, UnderWay, Waiting


class Flight(NamedTuple):
    """A call with an event out."""

    lane: StreamLane
    look: Look


class Flights:
    """The calls of one communicator.

    Args:
        waiting: How it waits.
        means: What moves its bytes.
    """

    def __init__(self, waiting: Waiting, *means: Wire | PeerMemory) -> None:
        self._waiting, self._means = waiting, means
        self._out: deque[Flight] = deque()
        self._marked: set[StreamLane] = set()
        self._begun: dict[StreamLane, UnderWay] = {}
        """Lanes with calls that nobody has waited for, each with the last of them."""

    def look(self) -> None:
        """Ask whether calls that were begun can still come through; does not wait.

        Raises:
            DeadlineError: One is not through after the limit.
            MismatchError, RankFailedError: As for any call.
        """
        self._check(self._out[0].lane.ranks if self._out else ())
        while self._out:
            lane, look = self._out[0]
            if not lane.advance(0.0):
                look.at_times(lane.awaited)
                return
            self._out.popleft()
            self._marked.discard(lane)

    def add(self, lane: StreamLane, tag: int, number: int) -> None:
        """A call was put on a stream."""
        call = UnderWay(lane, tag, number)
        self._begun[lane] = call
        if lane not in self._marked:
            lane.mark()
            self._marked.add(lane)
            self._out.append(Flight(lane, Look(self._waiting, call, self._waiting.timeout_s)))

    def wait(self) -> None:
        """Return when the device is through with all calls; raises like `look`."""
        for lane, call in list(self._begun.items()):
            lane.mark()
            self._waiting.for_call(call)
            del self._begun[lane]
        self._out.clear()
        self._marked.clear()
        self._check()

    def _check(self, ranks: Sequence[int] = ()) -> None:
        """Raise what is known of errors, of graphs that were replayed too."""
        for means in self._means:
            means.check(ranks)
