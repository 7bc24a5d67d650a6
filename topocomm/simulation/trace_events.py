"""A timeline as Trace Event JSON, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" (Google, catapult project): complete events (`ph` X) with `ts` and `dur` in microseconds,
and metadata (`ph` M) that names processes and threads. A process is a host, with tracks for what its endpoints send
and compute; the links of a host are a process of their own. Events of one track must not overlap unless they nest, so
messages that share a link lie on as many tracks as there are at once.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import COMPUTE, SEND, describe
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.schedule.schedule import spans

MOST_TASKS = 500_000
"""Tasks of the largest trace: viewers take a few million events, and a task has one for itself and one a link."""


class _Span(NamedTuple):
    """One event before it has a track: process and row by name, task, and its time in whole nanoseconds."""

    process: str
    row: str
    task: int
    start_ns: int
    end_ns: int


def trace_json(timeline: Timeline) -> str:
    """Return the trace as one JSON text.

    Raises:
        PlanError: There are more tasks than a viewer can show.
    """
    if len(timeline.work) > MOST_TASKS:
        raise PlanError(
            f"trace of {len(timeline.work):,} tasks: a viewer shows {MOST_TASKS:,} at most; simulate fewer ranks"
        )
    spans_ = [*_of_endpoints(timeline), *_of_links(timeline)]
    events = [*_named_tracks(timeline, spans_)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _of_endpoints(timeline: Timeline) -> Iterator[_Span]:
    """Messages on their sender, from start to arrival, and phases of computing."""
    work, devices = timeline.work, timeline.paths.topology.by_id
    for task, (kind, src) in enumerate(zip(work.kind.tolist(), work.src.tolist(), strict=True)):
        start_ns, end_ns = _ns(timeline.start_us[task]), _ns(timeline.arrival_us[task])
        if kind not in (SEND, COMPUTE) and end_ns == start_ns:
            continue
        end = work.devices[src]
        what = "sends" if kind == SEND else "computes" if kind == COMPUTE else "waits"
        yield _Span(devices[end].host, f"{end} {what}", task, start_ns, end_ns)


def _of_links(timeline: Timeline) -> Iterator[_Span]:
    """Messages on every link of their route, from the first to the last byte."""
    routes, edges, devices = timeline.tasks.routes, timeline.paths.edges, timeline.paths.topology.by_id
    flowed = np.flatnonzero(timeline.last_byte_us > timeline.first_byte_us)
    of = timeline.tasks.of_task[flowed]
    starts, places = spans(routes.starts[of], routes.hops[of])
    tasks = np.repeat(flowed, np.diff(starts)).tolist()
    for task, link in zip(tasks, routes.links[places].tolist(), strict=True):
        src, dst = edges[link]
        times = _ns(timeline.first_byte_us[task]), _ns(timeline.last_byte_us[task])
        yield _Span(f"links of {devices[src].host}", f"{src} -> {dst}", task, *times)


def _named_tracks(timeline: Timeline, found: Iterable[_Span]) -> Iterator[dict[str, Any]]:
    """The events, each on a track on which no other is at that time, and the names of processes and tracks."""
    by_row: dict[tuple[str, str], list[_Span]] = {}
    for span in found:
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
            yield _event(timeline, span, processes[process], lane)


def _event(timeline: Timeline, span: _Span, pid: int, tid: int) -> dict[str, Any]:
    work = timeline.work
    label = work.labels[work.label[span.task]] or "task"
    return {
        "name": f"{label} round {work.round[span.task]}",
        "cat": "computing" if work.kind[span.task] == COMPUTE else "message",
        "ph": "X",
        "ts": _microseconds(span.start_ns),
        "dur": _microseconds(span.end_ns - span.start_ns),
        "pid": pid,
        "tid": tid,
        "args": {"task": describe(work, span.task), "bytes": int(work.payload_bytes[span.task])},
    }


def _ns(time_us: float) -> int:
    return round(float(time_us) * 1000)


def _microseconds(ns: int) -> float:
    """Microseconds that a viewer turns into the same nanoseconds, whether it rounds or cuts off."""
    return round((ns + 0.2) / 1000, 4)


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
