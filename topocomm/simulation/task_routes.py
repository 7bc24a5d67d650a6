"""Routes of tasks: each route once, however many messages take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes, joined
from topocomm.planning.schedule.schedule import NO_PATH, row_keys
from topocomm.simulation.simulated_work import SEND, Work


@dataclass(frozen=True, eq=False)
class TaskRoutes:
    """The routes of a work's tasks on a machine.

    Attributes:
        of_task: int32 [n]: index into `routes`; other tasks than messages have a route without links.
        latency_us: float64 [n]: time from the last byte of each task to its arrival.
    """

    of_task: NDArray[np.int32]
    routes: Routes
    latency_us: Floats


def route_tasks(work: Work, paths: PathFinder) -> TaskRoutes:
    """Return the route of every task.

    Raises:
        NoRouteError: No route joins the ends of a message, or one of them is no endpoint and the message has no path.
        PlanError: A path does not lead from one end to the other.
    """
    sent = np.flatnonzero(work.kind == SEND)
    columns = [column[sent] for column in (work.src, work.dst, work.path)]
    first, inverse = _distinct(row_keys(*columns))
    src, dst, path = (column[first].astype(np.int64) for column in columns)
    cheapest = path == NO_PATH
    found = paths.routes(work.devices, src[cheapest], dst[cheapest])
    for missing in np.flatnonzero(np.isinf(found.latency_us))[:1]:
        ends = src[cheapest][missing], dst[cheapest][missing]
        paths.cheapest(*(work.devices[end] for end in ends))  # raises with the reason
    named = [
        paths.explicit(work.paths[way], work.devices[a], work.devices[b])
        for a, b, way in zip(*(column[~cheapest].tolist() for column in (src, dst, path)), strict=True)
    ]
    nothing = Routes(np.zeros(1), np.full(1, np.inf), np.zeros(1), np.zeros(2, dtype=np.int64), _NO_LINKS)
    routes = joined([found, paths.columns(named), nothing])
    place = np.empty(len(first), dtype=np.int32)
    place[cheapest], place[~cheapest] = np.arange(len(found)), len(found) + np.arange(len(named))
    of_task = np.full(len(work), len(routes) - 1, dtype=np.int32)
    of_task[sent] = place[inverse]
    own = np.isnan(work.latency_us)
    latency_us = np.where(own, routes.latency_us[of_task], work.latency_us)
    return TaskRoutes(of_task, routes, latency_us)


_NO_LINKS: Ints = np.zeros(0, dtype=np.int64)


def _distinct(keys: Ints) -> tuple[Ints, Ints]:
    """(index of one of each key, index among these of every key's)."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse
