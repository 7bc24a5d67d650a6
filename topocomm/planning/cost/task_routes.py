"""Routes of tasks: each route once, however many messages take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.messages import distinct_routes
from topocomm.planning.cost.simulated_work import SEND, Work
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes, joined


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
    found, which = distinct_routes(columns, work.devices, work.paths, paths)
    nothing = Routes(np.zeros(1), np.full(1, np.inf), np.zeros(1), np.zeros(2, dtype=np.int64), _NO_LINKS)
    routes = joined([found, nothing])
    of_task = np.full(len(work), len(found), dtype=np.int32)
    of_task[sent] = which
    own = np.isnan(work.latency_us)
    latency_us = np.where(own, routes.latency_us[of_task], work.latency_us)
    return TaskRoutes(of_task, routes, latency_us)


_NO_LINKS: Ints = np.zeros(0, dtype=np.int64)
