"""Ports: each admits a few tasks at once, in the order of their numbers; the next one when one is released."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.link_sharing import span_places
from topocomm.planning.cost.simulated_work import COMPUTE, SEND, Work
from topocomm.planning.cost.task_routes import TaskRoutes
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import spans, stable_order


class PortQueues:
    """Ports of one kind, each with the queue of its tasks.

    The r-th release of a port admits the task at place (places + r) of its queue, so tasks never overtake each other.

    Attributes:
        empty: Whether no task holds a port.
        next_place: int64 [ports]: the place in the queues at which the next task of each port waits.
    """

    def __init__(self, starts: Ints, ports: NDArray[np.integer], places: Ints) -> None:
        """Take the ports of every task.

        Args:
            starts: int64 [n + 1]: task i holds ports[starts[i]:starts[i + 1]].
            ports: Numbers of ports.
            places: int64 [ports]: tasks that each port admits at once.
        """
        self._starts, self._ports = starts, ports
        self.empty = not len(ports)
        order = stable_order(ports)
        self._queue = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[order]
        ends = np.cumsum(np.bincount(ports, minlength=len(places)))
        first = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]]) if len(ends) else ends
        self.next_place: Ints = np.minimum(first + places, ends)
        self._end = ends
        self._mark = np.zeros(len(places), dtype=np.int64)

    def columns(self) -> tuple[Ints, NDArray[np.integer], Ints, Ints]:
        """Return `starts` and `ports` of all tasks, the queues of all ports, and where each of these ends."""
        return self._starts, self._ports, self._queue, self._end

    def waiting(self) -> Ints:
        """Return the tasks that a port does not admit at first, once for each such port."""
        return self._queue[span_places(self.next_place, self._end - self.next_place)]

    def release(self, tasks: Ints) -> tuple[Ints, Ints]:
        """Release all ports of these tasks; returns (tasks admitted, one for each port; the task that each awaited)."""
        first = self._starts[tasks]
        counts = self._starts[tasks + 1] - first
        places = span_places(first, counts)
        if not len(places):
            return _NONE, _NONE
        ports, who = self._ports[places], np.repeat(tasks, counts)
        self._mark[ports] = marks = np.arange(len(ports))
        if (self._mark[ports] != marks).any():  # several tasks release one port
            ports, index, freed = np.unique(ports, return_index=True, return_counts=True)
            low = self.next_place[ports]
            high = self.next_place[ports] = np.minimum(low + freed, self._end[ports])
            return self._queue[span_places(low, high - low)], np.repeat(who[index], high - low)
        low = self.next_place[ports]
        more = low < self._end[ports]
        if not more.all():
            ports, low, who = ports[more], low[more], who[more]
        self.next_place[ports] = low + 1
        return self._queue[low], who


class Queues(NamedTuple):
    """The ports of a machine.

    Attributes:
        ends: Ports of endpoints to send, to receive and to compute; held until `hold_us` after the last byte.
        nics: NICs, which serve one message per gap; held until the gap after the first byte.
        hold_us: float64 [n].
        gap_us: float64 [n].
    """

    ends: PortQueues
    nics: PortQueues
    hold_us: Floats
    gap_us: Floats


def queues_of(work: Work, tasks: TaskRoutes, paths: PathFinder, *, ports: int | None, loggp: bool) -> Queues:
    """Return the ports under the rules of docs/concepts/cost-models.md; `ports` None: endpoints admit any number."""
    devices = len(work.devices)
    numbers: dict[str, int] = {}
    end = np.array([numbers.setdefault(name, len(numbers)) for name in work.devices], dtype=np.int32)
    counts = np.array([0 if ports is None else 2, 1, 0])[work.kind]
    starts, _ = spans(np.zeros_like(counts), counts)
    held = np.empty(starts[-1], dtype=np.int32)
    computing, sent = work.kind == COMPUTE, work.kind == SEND
    held[starts[:-1][computing]] = end[work.src[computing]]
    if ports is not None:
        held[starts[:-1][sent]] = devices + end[work.src[sent]]
        held[starts[:-1][sent] + 1] = 2 * devices + end[work.dst[sent]]
    places = np.repeat([1, ports or 1, ports or 1], devices).astype(np.int64)
    gap_us = tasks.routes.gap_us[tasks.of_task]
    hold_us = np.where(computing, 0.0, gap_us if loggp else tasks.latency_us)
    return Queues(PortQueues(starts, held, places), _nics(tasks, paths, loggp, ports is not None), hold_us, gap_us)


def _nics(tasks: TaskRoutes, paths: PathFinder, loggp: bool, in_order: bool) -> PortQueues:
    """The NICs on the routes; none under alpha.

    A NIC without a gap still keeps the order of its messages, which only matters where ports do (`in_order`).
    """
    routes, n = tasks.routes, len(tasks.of_task)
    nics = paths.link_nics[routes.links]
    if not loggp or not (in_order or routes.gap_us.any()):
        return PortQueues(np.zeros(n + 1, dtype=np.int64), _NONE, _NONE)
    of_route = np.repeat(np.arange(len(routes)), routes.hops)[nics >= 0]
    counts = np.bincount(of_route, minlength=len(routes))
    nics = nics[nics >= 0]
    first = np.cumsum(counts) - counts
    starts, places = spans(first[tasks.of_task], counts[tasks.of_task])
    return PortQueues(starts, nics[places], np.ones(int(nics.max(initial=-1)) + 1, dtype=np.int64))


_NONE: Ints = np.zeros(0, dtype=np.int64)
