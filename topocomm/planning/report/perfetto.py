"""Spans of time as Trace Event JSON, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" (Google, catapult project): complete events (`ph` X) with `ts` and `dur` in microseconds,
and metadata (`ph` M) that names processes and threads. Events of one track must not overlap unless they nest, so spans
of one row lie on as many tracks as there are at once.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One event: its process and row by name, its times in whole nanoseconds, and what a viewer tells of it."""

    process: str
    row: str
    start_ns: int
    end_ns: int
    name: str
    category: str
    args: Mapping[str, Any]


def trace_text(spans: Iterable[Span]) -> str:
    """Return the trace as one JSON text; processes and rows are in the order in which they come first."""
    return json.dumps({"traceEvents": [*_events(spans)], "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _events(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """The events, each on a track on which no other is at that time, and the names of processes and tracks."""
    by_row: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        by_row.setdefault((span.process, span.row), []).append(span)
    processes: dict[str, int] = {}
    track = 0
    for (process, row), own in by_row.items():
        if process not in processes:
            processes[process] = len(processes) + 1
            yield _metadata("process_name", processes[process], 0, process)
        lanes: list[tuple[int, int]] = []
        first = track
        for span in sorted(own, key=lambda each: (each.start_ns, each.end_ns)):
            if lanes and lanes[0][0] <= span.start_ns:
                _, lane = heapq.heappop(lanes)
            else:
                lane = track = track + 1
                name = row if lane == first + 1 else f"{row} ({lane - first})"
                yield _metadata("thread_name", processes[process], lane, name)
            heapq.heappush(lanes, (span.end_ns, lane))
            yield {
                "name": span.name,
                "cat": span.category,
                "ph": "X",
                "ts": _microseconds(span.start_ns),
                "dur": _microseconds(span.end_ns - span.start_ns),
                "pid": processes[process],
                "tid": lane,
                "args": dict(span.args),
            }


def _microseconds(ns: int) -> float:
    """Microseconds that a viewer turns into the same nanoseconds, whether it rounds or cuts off."""
    return round((ns + 0.2) / 1000, 4)


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
