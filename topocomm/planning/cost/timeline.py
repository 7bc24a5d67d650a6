"""What was simulated: the times of every task, and what every link carried."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.simulated_work import NO_TASK, Work
from topocomm.planning.cost.task_routes import TaskRoutes
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import spans


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of all tasks in microseconds from the start.

    Attributes:
        start_us: float64 [n]: when what the task comes after had arrived, and its ports admitted it.
        first_byte_us: float64 [n]: when it began to flow.
        last_byte_us: float64 [n]: when its last byte left, or its phase of computing ended.
        arrival_us: float64 [n]: when it was there.
        awaited: int32 [n]: the task that each one awaited last, NO_TASK for those that started at once: one that it
            comes `after`, or one that held a port of its.
        events: Number of starts, last bytes, arrivals and changes of a rate.
        wall_s: Seconds that the simulation took.
    """

    work: Work
    paths: PathFinder
    tasks: TaskRoutes
    start_us: Floats
    first_byte_us: Floats
    last_byte_us: Floats
    arrival_us: Floats
    awaited: NDArray[np.int32]
    events: int
    wall_s: float

    def __repr__(self) -> str:
        return f"<Timeline of {len(self.arrival_us)} tasks: {self.total_us:.2f} us, {self.events} events>"

    @property
    def total_us(self) -> float:
        """Time of the last arrival; 0 without tasks."""
        return float(self.arrival_us.max(initial=0.0))

    @property
    def events_per_s(self) -> float:
        """Events that were simulated in a second."""
        return self.events / max(self.wall_s, 1e-9)

    @cached_property
    def link_bytes(self) -> Floats:
        """float64 [links]: bytes that every directed link carried, by its number in `paths`."""
        routes, of_task = self.tasks.routes, self.tasks.of_task
        sizes = np.bincount(of_task, self.work.payload_bytes, minlength=len(routes))
        return np.bincount(routes.links, np.repeat(sizes, routes.hops), minlength=len(self.paths.edges)).astype(float)

    @cached_property
    def link_messages(self) -> Ints:
        """int64 [links]: messages that every directed link carried."""
        routes = self.tasks.routes
        counts = np.bincount(self.tasks.of_task, minlength=len(routes))
        carried = np.bincount(routes.links, np.repeat(counts, routes.hops), minlength=len(self.paths.edges))
        return carried.astype(np.int64)

    @cached_property
    def link_busy_us(self) -> Floats:
        """float64 [links]: time in which a message with bytes was on every directed link."""
        routes = self.tasks.routes
        flowed = np.flatnonzero(self.last_byte_us > self.first_byte_us)
        flowed = flowed[np.argsort(self.first_byte_us[flowed], kind="stable")]
        of_task = self.tasks.of_task[flowed]
        starts, places = spans(routes.starts[of_task], routes.hops[of_task])
        links = routes.links[places]
        order = np.argsort(links, kind="stable")
        links, task = links[order], np.repeat(flowed, np.diff(starts))[order]
        # Before this message, the link was busy until the latest end of the earlier ones: a running maximum by link.
        far_us = self.total_us + 1.0
        ends = np.maximum.accumulate(self.last_byte_us[task] + links * far_us)
        before_us = np.concatenate([[0.0], ends[:-1]]) - links * far_us
        busy_us = np.maximum(self.last_byte_us[task] - np.maximum(self.first_byte_us[task], before_us), 0.0)
        return np.bincount(links, busy_us, minlength=len(self.paths.edges)).astype(float)

    @cached_property
    def link_use(self) -> Floats:
        """float64 [links]: bytes of every directed link over what it could have carried in the whole time, 0 to 1."""
        possible = self.paths.link_gb_per_s * 1e3 * self.total_us
        return np.divide(self.link_bytes, possible, out=np.zeros(len(possible)), where=possible > 0)

    @property
    def last(self) -> int:
        """The task that arrived last, NO_TASK without tasks; of several the lowest number."""
        return int(self.arrival_us.argmax()) if len(self.arrival_us) else NO_TASK
