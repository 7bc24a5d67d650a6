"""What a rank did in its calls and when, for a trace: kept while it is asked for, see `measure.traced_calls`."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import NamedTuple

MOST_EVENTS = 100_000
"""Events that a rank keeps, the last ones."""


class CallEvent(NamedTuple):
    """One stretch of time of a rank: its row in the trace, `CLOCK_MONOTONIC` in ns, and plain facts."""

    row: str
    name: str
    start_ns: int
    end_ns: int
    facts: dict[str, object]


class CallTrace:
    """Events of one rank, in the order in which they ended."""

    def __init__(self) -> None:
        self._events: deque[CallEvent] = deque(maxlen=MOST_EVENTS)

    def add(self, row: str, name: str, start_ns: int, facts: dict[str, object]) -> None:
        """Add what began then and ends now."""
        self._events.append(CallEvent(row, name, start_ns, now_ns(), facts))

    def encode(self) -> bytes:
        """Return the events as JSON, which `decode` reads on another rank."""
        return json.dumps(list(self._events)).encode()


def decode(data: bytes) -> list[CallEvent]:
    """Return the events of a rank's note."""
    return [CallEvent(*event) for event in json.loads(data)]


def now_ns() -> int:
    """Return the clock of events, one for all processes of a host."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
