"""Why it took as long: the chain of tasks back from the last arrival, and what limited each of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from topocomm.planning.cost.simulated_work import COMPUTE, JOIN, NO_TASK, SEND
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import spans

FULL_SHARE = 0.999
"""Share of its own limit above which that held a message, and not a link."""


class Step(NamedTuple):
    """One task of the critical path, from its start to the start of the next one.

    Attributes:
        task: Its number.
        start_us, end_us: When it started, and when the next task of the path could.
        before_us: Of this time, what passed before the first byte (launch, handshake), or computing.
        bytes_us: Of it, the time from the first to the last byte.
        latency_us: Of it, the way of the last byte, or of the port's release.
        port: Whether the next task waited for a port that this one held, and not for what it brought.
        link: Number of the link that limited the bytes; NO_TASK where none did.
        sharers: Messages that were on that link meanwhile, this one among them.
    """

    task: int
    start_us: float
    end_us: float
    before_us: float
    bytes_us: float
    latency_us: float
    port: bool
    link: int
    sharers: int

    @property
    def took_us(self) -> float:
        """Time of the step."""
        return self.end_us - self.start_us


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The critical path of a timeline, first task first; its steps follow each other and add up to the total."""

    timeline: Timeline
    steps: tuple[Step, ...]

    @cached_property
    def by_cause(self) -> dict[str, float]:
        """Microseconds by what took them, most first: bytes by kind of link, computing by label, latency, start."""
        work = self.timeline.work
        kinds = {(link.src, link.dst): link.kind for link in self.timeline.paths.topology.links}
        edges = self.timeline.paths.edges
        causes: defaultdict[str, float] = defaultdict(float)
        for step in self.steps:
            label = work.labels[work.label[step.task]]
            kind = work.kind[step.task]
            before = {SEND: "start of messages", COMPUTE: f"computing: {label}", JOIN: "launches"}[int(kind)]
            causes[before] += step.before_us
            where = "limit of the message" if step.link == NO_TASK else kinds[edges[step.link]]
            causes[f"bytes: {where}"] += step.bytes_us
            causes["latency"] += step.latency_us
        return {name: us for name, us in sorted(causes.items(), key=lambda entry: -entry[1]) if us > 0}


def critical_path(timeline: Timeline) -> CriticalPath:
    """Return the chain of tasks that ends with the last arrival: each waited for the one before it last."""
    chain = []
    task = timeline.last
    while task != NO_TASK:
        chain.append(task)
        task = int(timeline.awaited[task])
    chain.reverse()
    on_link = _LinkTasks(timeline, chain)
    steps = []
    for place, task in enumerate(chain):
        following = chain[place + 1] if place + 1 < len(chain) else None
        end_us = timeline.arrival_us[task] if following is None else timeline.start_us[following]
        start_us, first_us, last_us = (
            float(column[task]) for column in (timeline.start_us, timeline.first_byte_us, timeline.last_byte_us)
        )
        first_us, last_us = min(first_us, end_us), min(last_us, end_us)
        link, sharers = on_link.limiting(task)
        steps.append(
            Step(
                task,
                start_us,
                float(end_us),
                first_us - start_us,
                last_us - first_us,
                float(end_us) - last_us,
                following is not None and task not in _awaited_of(timeline, following),
                link,
                sharers,
            )
        )
    return CriticalPath(timeline, tuple(steps))


def _awaited_of(timeline: Timeline, task: int) -> Ints:
    starts = timeline.work.after_starts
    return timeline.work.after[starts[task] : starts[task + 1]].astype(np.int64)


class _LinkTasks:
    """The messages of the links that a chain of tasks crosses."""

    def __init__(self, timeline: Timeline, chain: list[int]) -> None:
        self._timeline = timeline
        tasks, self._routes = timeline.tasks.of_task, timeline.tasks.routes
        crossed = self._routes.take(tasks[np.array(chain, dtype=np.int64)].astype(np.int64)).links
        wanted = np.zeros(len(timeline.paths.edges), dtype=bool)
        wanted[crossed] = True
        flowed = np.flatnonzero(timeline.last_byte_us > timeline.first_byte_us)
        starts, places = spans(self._routes.starts[tasks[flowed]], self._routes.hops[tasks[flowed]])
        links, of = self._routes.links[places], np.repeat(flowed, np.diff(starts))
        links, of = links[wanted[links]], of[wanted[links]]
        order = np.lexsort((timeline.first_byte_us[of], links))
        self._of = of[order]
        self._ends = np.cumsum(np.bincount(links, minlength=len(wanted)))
        self._until_us: dict[int, Floats] = {}
        """By link, for each of its messages in order of their first bytes, the latest last byte up to it."""

    def limiting(self, task: int) -> tuple[int, int]:
        """(the link of a message that was used most while it flowed, messages on it meanwhile)."""
        timeline = self._timeline
        low_us, high_us = float(timeline.first_byte_us[task]), float(timeline.last_byte_us[task])
        if timeline.work.kind[task] != SEND or high_us <= low_us:
            return NO_TASK, 0
        rate = timeline.work.payload_bytes[task] / (high_us - low_us)
        if rate >= FULL_SHARE * timeline.work.most_gb_per_s[task] * 1e3:
            return NO_TASK, 0
        route = timeline.tasks.of_task[task]
        best = (-1.0, NO_TASK, 0)
        for link in self._routes.links[self._routes.starts[route] : self._routes.starts[route + 1]].tolist():
            on = self._meanwhile(link, low_us, high_us)
            first_us, last_us = timeline.first_byte_us[on], timeline.last_byte_us[on]
            common_us = np.minimum(last_us, high_us) - np.maximum(first_us, low_us)
            carried = (timeline.work.payload_bytes[on] * common_us / (last_us - first_us)).sum()
            share = carried / ((high_us - low_us) * timeline.paths.link_gb_per_s[link] * 1e3)
            if share > best[0] + 1e-9:
                best = (float(share), link, len(on))
        return best[1], best[2]

    def _meanwhile(self, link: int, low_us: float, high_us: float) -> Ints:
        """The messages that flowed over a link at some time between these two."""
        on = self._of[self._ends[link - 1] if link else 0 : self._ends[link]]
        if link not in self._until_us:
            self._until_us[link] = np.maximum.accumulate(self._timeline.last_byte_us[on])
        begin = np.searchsorted(self._until_us[link], low_us, side="right")
        end = np.searchsorted(self._timeline.first_byte_us[on], high_us, side="left")
        met: Ints = on[begin:end]
        return met[self._timeline.last_byte_us[met] > low_us]
