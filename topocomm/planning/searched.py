"""Plans found by search, for machines on which no pattern meets the bound: who tells whom, then the schedule of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_parts import gossip_allgather, gossip_reduce_scatter
from topocomm.planning.algorithms.gossip_schedule import (
    Gossip,
    gossip_allreduce,
    gossip_broadcast,
    gossip_reduce,
    gossip_scan,
)
from topocomm.planning.collectives import Collective
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.search.gossip_search import search_gossip

MOST_SEARCHED_RANKS = 64
"""Beyond so many ranks a search takes tens of seconds and finds little that the patterns have not."""


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        schedule: Better than what was reached; None: nothing better was found.
        least: The figure of the best that was found or reached, where an exhaustive search left nothing below it.
        proof: Why, in words; empty where nothing is proved beyond the bound.
    """

    schedule: Schedule | None
    least: float
    proof: str


def searched(request: Request, paths: PathFinder, reached: float, bound: float) -> Searched | None:
    """A schedule that is better than what was reached, of objective latency (alpha, us) or rounds, or a proof.

    Of other objectives only where nothing was reached, because some ranks have no way to each other but over others:
    then one of little latency.

    Args:
        request: What is planned.
        paths: Routes on the machine.
        reached: The figure of the best candidate, infinite where there is none.
        bound: Nothing is below it.

    Returns:
        None where nothing is to be searched.
    """
    ends, objective = request.endpoints, request.objective
    modelled = objective == "rounds" or (objective == "latency" and request.port_model == "alpha")
    if reached < inf and (not modelled or reached <= bound + SAME_US):
        return None
    if request.collective.shards or not 2 <= len(ends) <= MOST_SEARCHED_RANKS or len(set(ends)) < len(ends):
        return None
    latency_us = _latencies(request, paths)
    if objective != "rounds" and (latency_us <= 0).sum() > len(ends):
        return None  # the search wants messages that take time; only the diagonal is 0
    if request.collective.name == "reduce_scatter":
        latency_us = latency_us.T  # searched as the allgather that it is backwards
    found = search_gossip(
        latency_us,
        _wants(request.collective),
        ports=request.ports,
        objective="rounds" if objective == "rounds" else "latency",
        lower_bound=bound if modelled else None,
    )
    if found is None:
        return None
    least = min(found.time, reached)
    proved = modelled and found.proved and found.time > bound + SAME_US and found.time <= least + SAME_US
    schedule = built(found.gossip, request) if found.time < reached - SAME_US else None
    return Searched(schedule, least, found.argument if proved else "")


def built(told: Gossip, request: Request) -> Schedule:
    """The schedule of who tells whom; of reduce_scatter, of who would tell whom in the allgather of the same parts."""
    return _BUILDS[request.collective.name](told, request)


def _latencies(request: Request, paths: PathFinder) -> NDArray[np.float64]:
    ends = request.endpoints
    latency_us = paths.latencies_us([a for a in ends for _ in ends], list(ends) * len(ends)).reshape(len(ends), -1)
    np.fill_diagonal(latency_us, 0.0)
    return latency_us


def _wants(collective: Collective) -> NDArray[np.bool_]:
    """wants[a, b]: rank b needs something of rank a; of reduce_scatter as of the allgather of the same parts."""
    ranks = collective.ranks
    wants = np.ones((ranks, ranks), dtype=bool)
    if collective.name == "reduce":
        wants[:, np.arange(ranks) != collective.root] = False
    elif collective.name == "broadcast":
        wants[np.arange(ranks) != collective.root] = False
    elif collective.parts and any(collective.parts):
        wants[np.array(collective.parts) == 0] = False
    elif collective.name in ("scan", "exscan"):
        wants = np.triu(wants)
    return wants


def _allreduce(told: Gossip, request: Request) -> Schedule:
    return gossip_allreduce(told, aligned_tree(len(request.endpoints)), request.layout.rows)


def _reduce(told: Gossip, request: Request) -> Schedule:
    tree = aligned_tree(len(request.endpoints))
    return gossip_reduce(told, tree, request.layout.rows, request.collective.root)


def _broadcast(told: Gossip, request: Request) -> Schedule:
    return gossip_broadcast(told, len(request.endpoints), request.layout.rows, request.collective.root)


def _allgather(told: Gossip, request: Request) -> Schedule:
    return gossip_allgather(told, request.collective.parts)


def _reduce_scatter(told: Gossip, request: Request) -> Schedule:
    tree = None if request.operator.commutative else aligned_tree(len(request.endpoints))
    return gossip_reduce_scatter(told, request.collective.parts, tree)


def _scan(told: Gossip, request: Request) -> Schedule:
    tree, own = aligned_tree(len(request.endpoints)), request.collective.name == "scan"
    return gossip_scan(told, tree, request.layout.rows, own=own)


_BUILDS: dict[str, Callable[[Gossip, Request], Schedule]] = {
    "allreduce": _allreduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
    "exscan": _scan,
}
