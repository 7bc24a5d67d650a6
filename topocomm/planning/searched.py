"""Plans by search, for machines on which no pattern meets the bound: a gossip, then its schedule."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_parts import (
    gossip_allgather,
    gossip_alltoall,
    gossip_gather,
    gossip_reduce_scatter,
    gossip_scatter,
)
from topocomm.planning.algorithms.gossip_schedule import (
    Gossip,
    gossip_allreduce,
    gossip_broadcast,
    gossip_reduce,
    gossip_scan,
)
from topocomm.planning.algorithms.multiport import reversed_gossip
from topocomm.planning.collectives import FROM_ROOT, TO_ROOT, Collective
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.search.gossip_search import search_gossip

MOST_SEARCHED_RANKS = 64
"""Most ranks for a search: above, it takes tens of seconds and rarely beats the patterns."""


@dataclass(frozen=True)
class Searched:
    """The result of a search.

    Attributes:
        schedule: One better than the candidates, if there is one.
        least: The best figure of the search and the candidates.
        proof: Why no schedule is below `least`, in words; empty where only the bound is proved.
    """

    schedule: Schedule | None
    least: float
    proof: str


def is_searched(request: Request) -> bool:
    """Whether a search can beat candidates by the figure of the objective: latency (alpha, us) or rounds."""
    return request.objective == "rounds" or (request.objective == "latency" and request.port_model == "alpha")


def searched(request: Request, paths: PathFinder, reached: float, bound: float) -> Searched | None:
    """Return a schedule better than the candidates, or a proof, for objective latency (alpha, us) or rounds.

    For other objectives it searches only where there is no candidate, because some ranks reach each other only over
    others: then for low latency. `reached` is the figure of the best candidate, infinite where there is none; `bound`
    is its lower bound. Returns None where no search is made.
    """
    ends, objective = request.endpoints, request.objective
    modelled = is_searched(request)
    if reached < inf and (not modelled or reached <= bound + SAME_US):
        return None
    if request.collective.shards or not 2 <= len(ends) <= MOST_SEARCHED_RANKS or len(set(ends)) < len(ends):
        return None
    latency_us = paths.latencies_us([a for a in ends for _ in ends], list(ends) * len(ends)).reshape(len(ends), -1)
    np.fill_diagonal(latency_us, 0.0)
    if objective != "rounds" and (latency_us <= 0).sum() > len(ends):
        return None  # the search needs messages that take time; only the diagonal is 0
    if request.collective.name == "reduce_scatter":
        latency_us = latency_us.T  # searched as the reverse allgather
    result = search_gossip(
        latency_us,
        _wants(request.collective),
        ports=request.ports,
        objective="rounds" if objective == "rounds" else "latency",
        lower_bound=bound if modelled else None,
    )
    if result is None:
        return None
    least = min(result.time, reached)
    proved = modelled and result.proved and result.time > bound + SAME_US and result.time <= least + SAME_US
    schedule = built(result.gossip, request) if result.time < reached - SAME_US else None
    return Searched(schedule, least, result.argument if proved else "")


def built(gossip: Gossip, request: Request) -> Schedule:
    """Return the schedule of a gossip; of reduce_scatter, of the gossip of an allgather of the same parts."""
    collective, rows = request.collective, request.layout.rows
    tree = aligned_tree(collective.ranks)
    if collective.name == "allreduce":
        return gossip_allreduce(gossip, tree, rows)
    if collective.name == "reduce":
        return gossip_reduce(gossip, tree, rows, collective.root)
    if collective.name == "broadcast":
        return gossip_broadcast(gossip, collective.ranks, rows, collective.root)
    if collective.name == "allgather":
        return gossip_allgather(gossip, collective.parts)
    if collective.name == "alltoall":
        return gossip_alltoall(gossip, collective.parts, collective.ranks)
    if collective.name == "gather":
        return gossip_gather(gossip, collective.parts, collective.root)
    if collective.name == "scatter":
        return gossip_scatter(reversed_gossip(gossip), collective.parts, collective.root)
    if collective.name == "reduce_scatter":
        return gossip_reduce_scatter(gossip, collective.parts, None if request.operator.commutative else tree)
    return gossip_scan(gossip, tree, rows, own=collective.name == "scan")


def _wants(collective: Collective) -> NDArray[np.bool_]:
    """wants[a, b]: rank b needs a contribution of rank a; of reduce_scatter as of the reverse allgather."""
    ranks = collective.ranks
    wants = np.ones((ranks, ranks), dtype=bool)
    if collective.name in ("scan", "exscan"):
        wants = np.triu(wants)
    if collective.name == "alltoall" and any(collective.parts):
        wants = np.array(collective.parts).reshape(ranks, ranks) > 0
    elif collective.parts and any(collective.parts):
        axis = wants.T if collective.name == "scatter" else wants
        axis[np.array(collective.parts) == 0] = False
    if collective.name in TO_ROOT:
        wants[:, np.arange(ranks) != collective.root] = False
    elif collective.name in FROM_ROOT:
        wants[np.arange(ranks) != collective.root] = False
    return wants
