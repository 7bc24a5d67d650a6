"""The planner: candidate schedules, each proved and costed on the topology, and the best of them as a Plan.

Planning is pure: equal inputs give equal plans, byte for byte, on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.operator import Operator
from topocomm.planning.bounds import Bounds, bounds_of
from topocomm.planning.candidate import Candidate, candidate_of, in_order, merit_of, plan_of
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import collective_of, shards_of, whole_number
from topocomm.planning.cost.cost_models import Cost, PortModel
from topocomm.planning.native import with_native
from topocomm.planning.payload import layout_of
from topocomm.planning.plan import Objective, Plan
from topocomm.planning.program.scratch import scratch_bytes
from topocomm.planning.relayed import relayed_builds
from topocomm.planning.request import Builds, Limits, Request, place_ranks, port_model_of
from topocomm.planning.routing.connectivity import refuse_disconnected
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.searched import Searched, searched
from topocomm.planning.shared_results import SharedResults
from topocomm.topology.model import Topology


def plan(  # noqa: PLR0913 - a fixed public signature: the one place that takes a request apart
    topology: Topology,
    collective: str = "allreduce",
    *,
    payload_bytes: int,
    operator: Operator = SUM,
    objective: Objective = "auto",
    ports: int = 1,
    port_model: PortModel | None = None,
    ranks: Sequence[str] | None = None,
    root: int = 0,
    parts: Sequence[int] | None = None,
    order: str = "any",
    shards: Sequence[int] | None = None,
    max_trees: int | None = None,
    max_scratch_bytes: int | None = None,
) -> Plan:
    """The best plan for `payload_bytes` of an operator's rows on a machine.

    Args:
        topology: The machine.
        collective: allreduce, reduce, broadcast, allgather, reduce_scatter, scan or exscan.
        payload_bytes: Bytes of one rank's value (of allgather and reduce_scatter: of the whole): a whole number of
            rows of the operator at its default sizes (`sum`: 4 bytes, `attention.logsumexp`: 516); 0 plans for
            latency alone.
        operator: What is reduced.
        objective: "latency", "rounds", "throughput" or "auto" (the predicted time of this payload).
        ports: Messages that an endpoint can send, and receive, at once.
        port_model: "alpha" or "loggp"; None takes loggp for "auto" and alpha otherwise.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        root: Root rank of reduce and broadcast.
        parts: Rows that each rank gives (allgather) or gets (reduce_scatter); None: as even as possible.
        order: "any": operands in rank order unless the operator commutes. "canonical" (allreduce only): one tree
            over virtual shards, the same for every rank count and layout (`canonical_allreduce.py`).
        shards: Of canonical order, the first virtual shard of each rank and the end of the last rank's: (0, 3, 3, 8)
            gives 3 ranks the shards 0..2, none, and 3..7. None gives every rank one shard.
        max_trees: Trees per root of packed trees; None: as many as give the most.
        max_scratch_bytes: Bytes that a plan may take beside a rank's own value; None: any.

    Raises:
        PlanError: An argument is out of range, no way leads from a rank to one that needs it, or every plan takes
            more scratch.
        OperatorError: It is no operator, or an axis of it has no default size.
    """
    layout = layout_of(operator, whole_number("payload_bytes", payload_bytes))
    endpoints = place_ranks(topology, ranks)
    owned = shards_of(order, len(endpoints), shards)
    request = Request(
        collective_of(collective, len(endpoints), layout.rows, root=root, parts=parts, shards=owned),
        operator,
        layout,
        endpoints,
        objective,
        whole_number("ports", ports),
        port_model or port_model_of(objective),
        limits=Limits(max_trees, max_scratch_bytes),
        launch_us=topology.launch_us or 0.0,
        native=True,
    )
    return make_plan(topology, request)


def make_plan(topology: Topology, request: Request) -> Plan:
    """Return the best plan for one request on one machine.

    Args:
        topology: The machine.
        request: What is to be planned.

    Raises:
        PlanError: A rank is on no endpoint of the machine, no way leads from a rank to one that needs it, or every
            plan takes more scratch.
    """
    place_ranks(topology, request.endpoints)
    best = _searches.get((_Machine(topology), request))[0]
    return with_native(best, topology, request.operator, request.layout) if request.native else best


def chosen_from(topology: Topology, request: Request) -> tuple[tuple[str, Cost], ...]:
    """Name and cost of every candidate of a request, best first: that of the plan, and its rivals."""
    return _searches.get((_Machine(topology), request))[1]


def every_plan(topology: Topology, request: Request) -> list[Plan]:
    """The plans of all algorithms that fit, the best first: what `make_plan` chooses from, without what is searched."""
    paths = PathFinder(topology)
    refuse_disconnected(paths, request.collective, request.endpoints)
    found = in_order(_candidates(candidate_builds(request, paths), request, paths), request)
    bounds = _bounds(request, paths)
    return [plan_of(request, one, paths, bounds) for one in found]


@dataclass(frozen=True)
class _Machine:
    """A topology that is compared by its digest."""

    topology: Topology = field(compare=False)
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.topology.digest)


def _search(key: tuple[_Machine, Request]) -> tuple[Plan, tuple[tuple[str, Cost], ...]]:
    """The best plan; name and cost of every candidate, best first."""
    machine, request = key
    paths = PathFinder(machine.topology)
    refuse_disconnected(paths, request.collective, request.endpoints)
    found = _candidates(candidate_builds(request, paths), request, paths)
    bounds = _bounds(request, paths)
    better, by_search = _searched(found, request, paths, bounds)
    found += better
    found = found or _candidates(relayed_builds(request, paths), request, paths)
    if not found:
        raise PlanError(
            f"topology {paths.topology.name!r}: no algorithm that fits {request.collective} has routes for all its "
            "messages; plan for fewer ranks, or add links or switches between their endpoints"
        )
    found = in_order(_within_scratch(found, request), request)
    plan = plan_of(request, found[0], paths, bounds)
    if by_search is not None and merit_of(found[0], request.objective) <= by_search.least + SAME_US:
        plan = replace(plan, certificate=replace(plan.certificate, proved_by_search=by_search.proof))
    return plan, tuple((one.algorithm, one.cost) for one in found)


_searches = SharedResults(_search, most=256)
"""Ranks on threads ask for the same plan at the same time: one of them makes it."""


def _within_scratch(found: list[Candidate], request: Request) -> list[Candidate]:
    """The candidates that take no more scratch than is allowed."""
    most = request.limits.max_scratch_bytes
    if most is None:
        return found
    taken = [scratch_bytes(one.schedule, request.layout.packed_bytes, ALIGNMENT_BYTES) for one in found]
    if min(taken) > most:
        raise PlanError(f"scratch of at most {most} B: every plan for this takes more, the least {min(taken)} B")
    return [one for one, scratch in zip(found, taken, strict=True) if scratch <= most]


def _searched(
    found: list[Candidate], request: Request, paths: PathFinder, bounds: Bounds
) -> tuple[list[Candidate], Searched | None]:
    """What a search finds where no candidate meets the bound, and what it proves."""
    bound = bounds.rounds if request.objective == "rounds" else bounds.alpha_us
    reached = min((merit_of(one, request.objective) for one in found), default=inf)
    result = searched(request, paths, reached, bound)
    if result is None or result.schedule is None:
        return [], result
    return [candidate_of("searched", result.schedule, request, paths)], result


def _candidates(builds: Builds, request: Request, paths: PathFinder) -> list[Candidate]:
    """All algorithms whose messages have routes here, proved and costed."""
    found = []
    for name, build in builds:
        with suppress(NoRouteError):
            found.append(candidate_of(name, build(), request, paths))
    return found


def _bounds(request: Request, paths: PathFinder) -> Bounds:
    return bounds_of(request.collective, request.endpoints, paths, ports=request.ports, port_model=request.port_model)
