"""The planner: candidate schedules, each proved and costed on the topology, and the best of them as a Plan.

Planning is pure: equal inputs give equal plans, byte for byte, on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from operator import index
from threading import Lock

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import ALIGNMENT_BYTES, Layout, Operator
from topocomm.planning.bounds import Bounds, bounds_of
from topocomm.planning.candidate import Candidate, candidate_of, in_order, merit_of, plan_of
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import IN_PARTS, ORDERS, Collective
from topocomm.planning.connected import refuse_disconnected
from topocomm.planning.cost import Cost, PortModel
from topocomm.planning.native import with_native
from topocomm.planning.paths import NoRouteError, PathFinder
from topocomm.planning.payload import layout_of
from topocomm.planning.plan import OBJECTIVES, PORT_MODELS, Objective, Plan
from topocomm.planning.relayed import relayed_builds
from topocomm.planning.request import NO_LIMITS, Builds, Limits, Request
from topocomm.planning.schedule import split_rows
from topocomm.planning.scratch import scratch_bytes
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.searched import Searched, searched
from topocomm.topology.model import ENDPOINT_KINDS, Topology


def plan(  # noqa: PLR0913 - the whole request of a user, all but two keyword-only
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
        order: "any" or "canonical", as for `make_plan`.
        shards: Of canonical order, as for `make_plan`.
        max_trees: Trees per root of packed trees; None: as many as give the most.
        max_scratch_bytes: Bytes that a plan may take beside a rank's own value; None: any.

    Raises:
        PlanError: An argument is out of range, no way leads from a rank to one that needs it, or every plan takes
            more scratch.
        OperatorError: It is no operator, or an axis of it has no default size.
    """
    payload_bytes = _number("payload_bytes", payload_bytes)
    return make_plan(
        topology,
        collective,
        operator=operator,
        layout=layout_of(operator, payload_bytes),
        ranks=ranks,
        root=root,
        objective=objective,
        ports=ports,
        port_model=port_model,
        parts=parts,
        order=order,
        shards=shards,
        limits=Limits(max_trees, max_scratch_bytes),
        native=True,
    )


def make_plan(  # noqa: PLR0913 - as `plan`
    topology: Topology,
    collective: str,
    *,
    operator: Operator,
    layout: Layout,
    ranks: Sequence[str] | None = None,
    root: int = 0,
    objective: Objective = "auto",
    ports: int = 1,
    port_model: PortModel | None = None,
    parts: Sequence[int] | None = None,
    order: str = "any",
    shards: Sequence[int] | None = None,
    cores: int = 0,
    launch_us: float | None = None,
    limits: Limits = NO_LIMITS,
    native: bool = False,
) -> Plan:
    """The best plan for one collective on one machine.

    Args:
        topology: The machine.
        collective: allreduce, reduce, broadcast, allgather, reduce_scatter, scan or exscan.
        operator: What is reduced (ignored by broadcast and allgather, whose values move unchanged).
        layout: Shape and bytes of one rank's value; of allgather and reduce_scatter, of the whole.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        root: Root rank of reduce and broadcast.
        objective: What to minimise: alpha time ("latency"), rounds, time for long payloads ("throughput"), or the
            predicted time for this payload ("auto").
        ports: Messages that an endpoint can send, and receive, at once.
        port_model: "alpha" or "loggp"; None takes loggp for "auto" and alpha otherwise.
        parts: Rows that each rank gives (allgather) or gets (reduce_scatter), in rank order, zeros allowed; None
            splits the rows as evenly as possible.
        order: "any": operands in rank order unless the operator commutes. "canonical" (allreduce only): one tree
            over virtual shards, the same for every rank count and layout (`canonical.py`).
        shards: Of canonical order, the first virtual shard of each rank and the end of the last rank's: (0, 3, 3, 8)
            gives 3 ranks the shards 0..2, none, and 3..7. None gives every rank one shard.
        cores: Of ranks that execute the plan in one memory, the cores they have together: objective "auto" then
            compares candidates by what they do there (`memory_cost.py`). 0: by the links.
        launch_us: What starting a round costs; None: what the topology says of it, nothing where it does not.
        limits: What the plan may use.
        native: Whether the plan says what a library's own collective takes, where that is in question (`native.py`).

    Raises:
        PlanError: An argument is out of range, no way leads from a rank to one that needs it, or every plan takes
            more scratch.
    """
    if not isinstance(topology, Topology):
        raise PlanError(
            f"topology: expected a topocomm.Topology, got {type(topology).__name__}; topocomm.load(path) reads one, "
            "topocomm.catalog(name) has one"
        )
    ports, root = _number("ports", ports), _number("root", root)
    if objective not in OBJECTIVES:
        raise PlanError(f"objective {objective!r}: expected one of {', '.join(OBJECTIVES)}")
    if port_model is not None and port_model not in PORT_MODELS:
        raise PlanError(f"port model {port_model!r}: expected one of {', '.join(PORT_MODELS)}")
    if order not in ORDERS:
        raise PlanError(f"order {order!r}: expected one of {', '.join(ORDERS)}")
    if shards is not None and order != "canonical":
        raise PlanError(f"shards go with order 'canonical', the order is {order!r}")
    endpoints = place_ranks(topology, ranks)
    if not 1 <= ports <= max(1, len(endpoints) - 1):
        raise PlanError(f"ports {ports}: expected 1 to {max(1, len(endpoints) - 1)} with {len(endpoints)} ranks")
    if order == "canonical" and shards is None:
        shards = range(len(endpoints) + 1)
    request = Request(
        _collective(collective, len(endpoints), root, layout, parts, shards),
        operator,
        layout,
        endpoints,
        objective,
        ports,
        port_model or ("loggp" if objective == "auto" else "alpha"),
        cores,
        limits,
        (topology.launch_us or 0.0) if launch_us is None else launch_us,
    )
    with _planning:  # ranks on threads ask for the same plan at the same time; one of them makes it
        best = _search(_Machine(topology), request)[0]
        return with_native(best, topology, operator, layout) if native else best


def chosen_from(topology: Topology, request: Request) -> tuple[tuple[str, Cost], ...]:
    """Name and cost of every candidate of a request, best first: that of the plan, and its rivals."""
    with _planning:
        return _search(_Machine(topology), request)[1]


def every_plan(
    topology: Topology,
    collective: str,
    operator: Operator,
    layout: Layout,
    root: int = 0,
    *,
    parts: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
) -> list[Plan]:
    """The plans of all algorithms that fit, with one rank on every endpoint, least predicted time first.

    What `make_plan` chooses from: for comparing algorithms on one machine. With `shards`, those in canonical order.
    """
    ends = place_ranks(topology, None)
    made = _collective(collective, len(ends), root, layout, parts, shards)
    request = Request(made, operator, layout, ends, "auto", 1, "loggp", launch_us=topology.launch_us or 0.0)
    paths = PathFinder(topology)
    refuse_disconnected(paths, made, ends)
    found = in_order(_candidates(candidate_builds(request, paths), request, paths), request)
    bounds = _bounds(request, paths)
    return [plan_of(request, one, paths, bounds) for one in found]


def _collective(
    name: str, ranks: int, root: int, layout: Layout, parts: Sequence[int] | None, shards: Sequence[int] | None
) -> Collective:
    """The collective with its parts filled in and checked against the rows."""
    if parts is None:
        parts = [rows for _, rows in split_rows(layout.rows, ranks)] if name in IN_PARTS else ()
    owned = () if shards is None else _whole("shards", shards)
    if shards is not None and not owned:
        raise PlanError(f"no shards given; expected the first of each of {ranks} ranks and the end, or None")
    made = Collective(name, ranks, root, _whole("parts", parts), owned)
    if parts and sum(parts) != layout.rows:
        raise PlanError(f"{name}: parts of {sum(parts)} rows in all, the payload has {layout.rows}")
    return made


def _whole(what: str, numbers: Sequence[int]) -> tuple[int, ...]:
    """The numbers as Python integers."""
    try:
        return tuple(index(number) for number in numbers)
    except TypeError:
        raise PlanError(f"{what} {numbers!r}: expected whole numbers, one per rank") from None


def _number(what: str, number: int) -> int:
    """The number as a Python integer."""
    try:
        return index(number)
    except TypeError:
        raise PlanError(f"{what} {number!r}: expected a whole number") from None


@dataclass(frozen=True)
class _Machine:
    """A topology that is compared by its digest."""

    topology: Topology = field(compare=False)
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.topology.digest)


_planning = Lock()


@lru_cache(maxsize=256)
def _search(machine: _Machine, request: Request) -> tuple[Plan, tuple[tuple[str, Cost], ...]]:
    """The best plan; name and cost of every candidate, best first."""
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


def place_ranks(topology: Topology, ranks: Sequence[str] | None) -> tuple[str, ...]:
    """Endpoint ids of all ranks, checked.

    Raises:
        PlanError: The topology has no endpoint, or a rank is on something that is none.
    """
    if not topology.endpoints:
        raise PlanError(f"topology {topology.name!r} has no endpoint (no gpu and no cpu): nothing to plan on")
    if ranks is None:
        return topology.endpoints
    if isinstance(ranks, str):
        raise PlanError(f"ranks {ranks!r}: expected a list of endpoint ids, one for each rank")
    for name in ranks:
        if name not in topology.by_id or topology.by_id[name].kind not in ENDPOINT_KINDS:
            known = ", ".join(topology.endpoints[:8]) + (", ..." if len(topology.endpoints) > 8 else "")
            raise PlanError(f"rank on {name!r}: not an endpoint of topology {topology.name!r}; it has {known}")
    if not ranks:
        raise PlanError("no ranks given; expected at least one endpoint")
    return tuple(ranks)


def _candidates(builds: Builds, request: Request, paths: PathFinder) -> list[Candidate]:
    """All algorithms whose messages have routes here, proved and costed."""
    found = []
    for name, build in builds:
        with suppress(NoRouteError):
            found.append(candidate_of(name, build(), request, paths))
    return found


def _bounds(request: Request, paths: PathFinder) -> Bounds:
    return bounds_of(request.collective, request.endpoints, paths, ports=request.ports, port_model=request.port_model)
