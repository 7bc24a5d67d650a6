"""A timeline as a trace for ui.perfetto.dev and chrome://tracing (`planning.report.perfetto` is the format).

A process is a host, with tracks for what its endpoints send and compute; the links of a host are a process of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.cost.simulated_work import COMPUTE, SEND, describe
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.report.perfetto import Span, trace_text
from topocomm.planning.schedule.schedule import spans

MOST_TASKS = 500_000
"""Tasks of the largest trace: viewers take a few million events, and a task has one for itself and one a link."""


def trace_json(timeline: Timeline) -> str:
    """Return the trace as one JSON text.

    Raises:
        PlanError: There are more tasks than a viewer can show.
    """
    if len(timeline.work) > MOST_TASKS:
        raise PlanError(
            f"trace of {len(timeline.work):,} tasks: a viewer shows {MOST_TASKS:,} at most; simulate fewer ranks"
        )
    return trace_text([*_of_endpoints(timeline), *_of_links(timeline)])


def _of_endpoints(timeline: Timeline) -> Iterator[Span]:
    """Messages on their sender, from start to arrival, and phases of computing."""
    work, devices = timeline.work, timeline.paths.topology.by_id
    for task, (kind, src) in enumerate(zip(work.kind.tolist(), work.src.tolist(), strict=True)):
        start_ns, end_ns = _ns(timeline.start_us[task]), _ns(timeline.arrival_us[task])
        if kind not in (SEND, COMPUTE) and end_ns == start_ns:
            continue
        end = work.devices[src]
        what = "sends" if kind == SEND else "computes" if kind == COMPUTE else "waits"
        yield _span(timeline, task, devices[end].host, f"{end} {what}", (start_ns, end_ns))


def _of_links(timeline: Timeline) -> Iterator[Span]:
    """Messages on every link of their route, from the first to the last byte."""
    routes, edges, devices = timeline.tasks.routes, timeline.paths.edges, timeline.paths.topology.by_id
    flowed = np.flatnonzero(timeline.last_byte_us > timeline.first_byte_us)
    of = timeline.tasks.of_task[flowed]
    starts, places = spans(routes.starts[of], routes.hops[of])
    tasks = np.repeat(flowed, np.diff(starts)).tolist()
    for task, link in zip(tasks, routes.links[places].tolist(), strict=True):
        src, dst = edges[link]
        times = _ns(timeline.first_byte_us[task]), _ns(timeline.last_byte_us[task])
        yield _span(timeline, task, f"links of {devices[src].host}", f"{src} -> {dst}", times)


def _span(timeline: Timeline, task: int, process: str, row: str, times: tuple[int, int]) -> Span:
    work = timeline.work
    return Span(
        process,
        row,
        *times,
        name=f"{work.labels[work.label[task]] or 'task'} round {work.round[task]}",
        category="computing" if work.kind[task] == COMPUTE else "message",
        args={"task": describe(work, task), "bytes": int(work.payload_bytes[task])},
    )


def _ns(time_us: float) -> int:
    return round(float(time_us) * 1000)
