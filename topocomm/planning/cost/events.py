"""Discrete events: tasks start, flow, share links and arrive; what happens at one instant is handled at once.

Machines are regular, so thousands of equal messages start and end together; an instant is a few operations on columns,
whatever it has of them. Rates are worked out again for the flows alone that a change reaches over common links.
"""

from __future__ import annotations

import heapq
import time
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.link_sharing import LinkSharing, span_places
from topocomm.planning.cost.port_queues import Queues, queues_of
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.cost.simulated_work import NO_TASK, Work, distinct
from topocomm.planning.cost.task_routes import TaskRoutes, route_tasks
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import stable_order
from topocomm.topology.model import Topology

BEGIN, END, ARRIVE, RELEASE, RELEASE_NIC = range(5)
"""Kinds of events: the first byte leaves; the last byte; arrival; ports of endpoints, and NICs, are free."""
TOLERANCE_US, RELATIVE_TOLERANCE = 1e-9, 1e-13
"""Events so close to each other are one instant: times that are equal but for rounding. In us, and of the time."""
COARSE = 1e-4
"""The same, of the time, where so many instants came before that exact ones would take too long."""


def simulate(
    work: Work,
    machine: Topology | PathFinder,
    *,
    ports: int | None = None,
    port_model: PortModel = "loggp",
    most_us: float = inf,
    exact_instants: float = inf,
) -> Timeline:
    """Return the timeline of a work on a machine.

    Args:
        work: Messages and phases of computing.
        machine: The topology, or its routes where these are at hand.
        ports: Messages that an endpoint sends, and receives, at once; None: any number.
        port_model: "alpha": messages hold the ports of their endpoints until they arrive; "loggp": for their gap and
            their bytes, and NICs serve one message per gap.
        most_us: Time after which it ends, whatever is still under way: what has not arrived by then never does.
        exact_instants: Number of instants after which events are one instant that are within COARSE of the time.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A path does not lead from one end of its message to the other, or a link has an impossible figure.
    """
    began = time.perf_counter()
    paths = PathFinder(machine) if isinstance(machine, Topology) else machine
    tasks = route_tasks(work, paths)
    queues = queues_of(work, tasks, paths, ports=ports, loggp=port_model == "loggp")
    events = _Events(work, tasks, queues, paths)
    events.run(most_us, exact_instants)
    return Timeline(
        work,
        paths,
        tasks,
        events.start_us,
        events.first_us,
        events.last_us,
        events.arrival_us,
        events.awaited,
        events.count,
        time.perf_counter() - began,
    )


class _Events:
    """The simulation: counters of what tasks await, flows, and a heap of batches of equal events at one time."""

    def __init__(self, work: Work, tasks: TaskRoutes, queues: Queues, paths: PathFinder) -> None:
        n = len(work)
        self.now_us, self.count, self.relative_tolerance = 0.0, 0, RELATIVE_TOLERANCE
        self.start_us, self.first_us, self.last_us, self.arrival_us = (np.zeros(n) for _ in range(4))
        self.arrival_us[:] = inf
        self.awaited = np.full(n, NO_TASK, dtype=np.int32)
        self.before_us, self.latency_us = work.before_us, tasks.latency_us
        self.queues = queues
        waits = np.repeat(np.arange(n), np.diff(work.after_starts))
        order = stable_order(work.after)
        self.then = waits[order]
        """Tasks that come after each one, one task after the other."""
        self.then_starts = np.concatenate([[0], np.cumsum(np.bincount(work.after, minlength=n))]).astype(np.int64)
        self.blocked = np.diff(work.after_starts).astype(np.int32)
        for kind in (queues.ends, queues.nics):
            self.blocked += np.bincount(kind.waiting(), minlength=n).astype(np.int32)
        flows = tasks.routes.hops[tasks.of_task] > 0
        self.left_bytes = np.where(flows, work.payload_bytes, 0).astype(float)
        self.rate, self.since_us, self.end_us = np.zeros(n), np.zeros(n), np.full(n, np.inf)
        most = None if np.isinf(work.most_gb_per_s).all() else work.most_gb_per_s * 1e3
        link_bytes_per_us = paths.link_gb_per_s * 1e3
        routes = tasks.routes
        self.flows = routes.starts, routes.links, link_bytes_per_us, tasks.of_task, most
        self.heap: list[tuple[float, int, int, Ints]] = []
        self.pushed = 0
        self.started: list[Ints] = []
        """Flows that began at this instant."""

    def run(self, most_us: float, exact_instants: float) -> None:
        """Run until the last event, or until the time is over."""
        try:
            from topocomm.native._native import run_events
        except ImportError:  # nothing is compiled here: the same, a hundred times slower
            self.run_plainly(most_us, exact_instants)
        else:
            self.count = run_events(*self._columns(), most_us, exact_instants)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        """The columns of `run_events` as C reads them; the last nine are written."""
        route_starts, links, link_bytes_per_us, of_task, most = self.flows
        ends, nics = self.queues.ends, self.queues.nics
        whole = self.then_starts, self.then, route_starts, links
        times = self.before_us, self.latency_us, self.queues.hold_us, self.queues.gap_us
        return (
            *(np.ascontiguousarray(column, dtype=np.int64) for column in whole),
            np.ascontiguousarray(of_task, dtype=np.int32),
            *(np.ascontiguousarray(column, dtype=np.int64) for column in (*ends.columns(), *nics.columns())),
            *(np.ascontiguousarray(column, dtype=float) for column in times),
            np.zeros(0) if most is None else np.ascontiguousarray(most),
            np.ascontiguousarray(link_bytes_per_us),
            ends.next_place,
            nics.next_place,
            self.blocked,
            self.left_bytes,
            self.start_us,
            self.first_us,
            self.last_us,
            self.arrival_us,
            self.awaited,
        )

    def run_plainly(self, most_us: float, exact_instants: float) -> None:
        """As `run`, without the compiled part."""
        starts, links, link_bytes_per_us, of_task, most = self.flows
        self.sharing = LinkSharing(starts, links, link_bytes_per_us, route_of=of_task, most_bytes_per_us=most)
        instants = 0
        self._start(np.flatnonzero(self.blocked == 0))
        self._share([])
        while self.heap:
            self.now_us = self.heap[0][0]
            if self.now_us > most_us:
                return
            instants += 1
            if instants > exact_instants:
                self.relative_tolerance = COARSE
            until_us = self.now_us + self._tolerance_us()
            ended = []
            while self.heap and self.heap[0][0] <= until_us:
                _, _, kind, tasks = heapq.heappop(self.heap)
                if kind == END:
                    tasks = tasks[self.end_us[tasks] <= until_us]
                    self.end_us[tasks] = np.inf
                    ended.append(tasks)
                    self._leave(tasks)
                elif kind == ARRIVE:
                    self._arrive(tasks)
                elif kind == BEGIN:
                    self._begin(tasks)
                else:
                    queues = self.queues.ends if kind == RELEASE else self.queues.nics
                    self._unblock(*queues.release(tasks))
            self._share(ended)

    def _tolerance_us(self) -> float:
        return max(TOLERANCE_US, self.relative_tolerance * self.now_us)

    def _start(self, tasks: Ints) -> None:
        """Start tasks that await nothing any more."""
        if not len(tasks):
            return
        self.count += len(tasks)
        self.start_us[tasks] = self.now_us
        before_us = self.before_us[tasks]
        if before_us.any():
            later = before_us > 0
            self._push(BEGIN, self.now_us + before_us[later], tasks[later])
            tasks = tasks[~later]
        self._begin(tasks)

    def _begin(self, tasks: Ints) -> None:
        """The first byte leaves: NICs serve the next message after the gap."""
        if not len(tasks):
            return
        self.first_us[tasks] = self.now_us
        flows = self.left_bytes[tasks] > 0
        if flows.all():
            self.started.append(tasks)
        else:
            if flows.any():
                self.started.append(tasks[flows])
            self._leave(tasks[~flows])
        self._free(RELEASE_NIC, tasks, self.queues.gap_us[tasks])

    def _leave(self, tasks: Ints) -> None:
        """The last byte left: it arrives after the latency, and ports are free after the hold."""
        if not len(tasks):
            return
        self.count += len(tasks)
        self.last_us[tasks] = self.now_us
        self._push(ARRIVE, self.now_us + self.latency_us[tasks], tasks)
        self._free(RELEASE, tasks, self.queues.hold_us[tasks])

    def _free(self, kind: int, tasks: Ints, hold_us: Floats) -> None:
        """Ports are free after the hold; at once where it is 0, but in a turn of its own: queues may be long."""
        if not (self.queues.ends if kind == RELEASE else self.queues.nics).empty:
            self._push(kind, self.now_us + hold_us, tasks)

    def _arrive(self, tasks: Ints) -> None:
        self.count += len(tasks)
        self.arrival_us[tasks] = self.now_us
        first = self.then_starts[tasks]
        counts = self.then_starts[tasks + 1] - first
        self._unblock(self.then[span_places(first, counts)], tasks.repeat(counts))

    def _unblock(self, tasks: Ints, awaited: Ints) -> None:
        """Count one thing less that each of these tasks awaits, and start those that await nothing."""
        if not len(tasks):
            return
        np.subtract.at(self.blocked, tasks, 1)
        self.awaited[tasks] = awaited
        ready = tasks[self.blocked[tasks] == 0]
        self._start(distinct(ready))

    def _share(self, ended: list[Ints]) -> None:
        """Set the rates after flows began and ended, and when each will end by them."""
        if not self.started and not ended:
            return
        changed = self.sharing.change(_joined(self.started), _joined(ended))
        self.started = []
        if not len(changed):
            return
        self.count += len(changed)
        self.left_bytes[changed] -= self.rate[changed] * (self.now_us - self.since_us[changed])
        rate = self.sharing.rate_bytes_per_us[changed]
        self.rate[changed], self.since_us[changed] = rate, self.now_us
        end_us = self.now_us + np.maximum(self.left_bytes[changed], 0.0) / rate
        self.end_us[changed] = end_us
        self._push(END, end_us, changed)

    def _push(self, kind: int, times_us: Floats, tasks: Ints) -> None:
        """Add events, those at one time as one batch."""
        if not len(tasks):
            return
        low_us, high_us = float(times_us.min()), float(times_us.max())
        tolerance_us = self._tolerance_us()
        if high_us - low_us <= tolerance_us:
            self._push_batch(high_us, kind, tasks)
            return
        order = np.argsort(times_us, kind="stable")
        times_us, tasks = times_us[order], tasks[order]
        lasts = np.append(np.flatnonzero(np.diff(times_us) > tolerance_us), len(tasks) - 1).tolist()
        first = 0
        for last, time_us in zip(lasts, times_us[lasts].tolist(), strict=True):
            self._push_batch(time_us, kind, tasks[first : last + 1])
            first = last + 1

    def _push_batch(self, time_us: float, kind: int, tasks: Ints) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (time_us, self.pushed, kind, tasks))


def _joined(parts: list[Ints]) -> Ints:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
