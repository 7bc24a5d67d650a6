"""The planner: candidate schedules, each proved and costed on the topology, and the best of them as a Plan.

Planning is pure: equal inputs give equal plans, byte for byte, on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.operators.operator import Operator
from topocomm.planning.bounds import Bounds, bounds_of, certify
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import Collective, collective_of, shards_of, whole_number
from topocomm.planning.cost.cost_models import TIME_DIGITS, Cost, soonest
from topocomm.planning.cost.memory_time import memory_us
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.native import with_native
from topocomm.planning.phased_builds import PhasedBuild, is_phased, slices_of, worth_slices
from topocomm.planning.plan import Objective, Plan, PlanFigures
from topocomm.planning.program.scratch import scratch_bytes
from topocomm.planning.proof.verify import verify
from topocomm.planning.relayed import relayed_builds
from topocomm.planning.request import (
    BoundedBuild,
    Build,
    Builds,
    LikelyBuild,
    Limits,
    Request,
    layout_of,
    place_ranks,
    port_model_of,
    whole_layout,
)
from topocomm.planning.routing.connectivity import refuse_disconnected
from topocomm.planning.routing.paths import NoRouteError, PathFinder, last_paths
from topocomm.planning.schedule.place_numbers import number_places
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import joined_rounds, split_rounds
from topocomm.planning.search.gossip import SAME_US
from topocomm.planning.searched import is_searched, searched
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
    """Return the best plan for `payload_bytes` of an operator's rows on a machine.

    Args:
        topology: The machine.
        collective: allreduce, reduce, broadcast, allgather, reduce_scatter, gather, scatter, alltoall, scan or
            exscan.
        payload_bytes: Bytes of one rank's value (of those in parts but alltoall of the whole): a whole number of
            rows of the operator at its default sizes (`sum`: 4 bytes, `attention.logsumexp`: 516); 0 plans for
            latency alone.
        operator: What is reduced.
        objective: "latency", "rounds", "throughput" or "auto" (the predicted time of this payload).
        ports: Messages that an endpoint can send, and receive, at once.
        port_model: "alpha" or "loggp"; None takes loggp for "auto" and alpha otherwise.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        root: Root rank of reduce, broadcast, gather and scatter.
        parts: Rows that each rank gives (allgather, gather) or gets (reduce_scatter, scatter), or from
            each rank to each (alltoall: by giving rank, then by getting rank); None: as even as can be.
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
    asked = collective_of(collective, len(endpoints), layout.rows, root=root, parts=parts, shards=owned)
    request = Request(
        asked,
        operator,
        whole_layout(layout, asked),
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
    """Return the best plan for a request on a machine.

    Raises:
        PlanError: A rank is on no endpoint of the machine, no way leads from a rank to one that needs it, or every
            plan takes more scratch.
    """
    place_ranks(topology, request.endpoints)
    best = _plans.get((topology.digest, request), lambda: _chosen(topology, request)[0])
    if best.topology is not topology:  # an equal one, which may have another name
        best = replace(best, topology=topology)
    return with_native(best, topology, request.operator, request.layout) if request.native else best


def chosen_from(topology: Topology, request: Request) -> tuple[tuple[str, Cost], ...]:
    """Return name and cost of every candidate of a request, best first: the first is that of the plan."""
    candidates = _in_order(_chosen(topology, request)[1], request)
    return tuple((candidate.algorithm, candidate.cost) for candidate in candidates)


def every_plan(topology: Topology, request: Request) -> list[Plan]:
    """Return the plans of all algorithms that fit, best first: the choice of `make_plan`, without searched plans."""
    paths = PathFinder(topology)
    refuse_disconnected(paths, request.collective, request.endpoints)
    candidates = _in_order(_candidates(candidate_builds(request, paths), request, paths, every=True), request)
    bounds = _bounds(request, paths)
    return [_plan_of(request, candidate, paths, bounds) for candidate in candidates]


@dataclass(frozen=True)
class _Candidate:
    """A schedule and its cost; it is proved when it becomes a plan."""

    algorithm: str
    schedule: Schedule
    cost: Cost


NO_GAIN, MOST_WORSE = 1.05, 2
"""How much longer than in fewer slices a pipeline takes, so often in a row, of which no more are tried."""
MOST_SIMULATED = 1 << 14
"""Messages of the longest simulation that is made before all pipelines are known."""
_Builds = list[tuple[int, str, Build]]
"""Place among all, name and builder of algorithms."""
_Chosen = tuple[Plan, tuple[_Candidate, ...]]
"""The best plan, and every candidate."""
_plans: SharedResults[tuple[str, Request], Plan] = SharedResults(most=256)
"""By topology and request: ranks on threads that ask for one plan at the same time share one search."""
_searches: SharedResults[tuple[str, Request], _Chosen] = SharedResults(most=2)
"""As `_plans`, with the candidates, which take hundreds of MB of many ranks: for reports of the plan just made."""
_known_bounds: SharedResults[tuple[str, Collective, tuple[str, ...], int, PortModel], Bounds] = SharedResults(most=64)
"""By all that they depend on, since a program plans many payloads of one kind."""


def _chosen(topology: Topology, request: Request) -> _Chosen:
    return _searches.get((topology.digest, request), lambda: _search(topology, request))


def _search(topology: Topology, request: Request) -> _Chosen:
    paths = last_paths.of(topology)
    refuse_disconnected(paths, request.collective, request.endpoints)
    candidates = _candidates(candidate_builds(request, paths), request, paths)
    bounds = _bounds(request, paths)
    bound = bounds.rounds if request.objective == "rounds" else bounds.alpha_us
    result = None
    if not candidates or is_searched(request):
        reached = min((_merit_of(candidate, request.objective) for candidate in candidates), default=inf)
        result = searched(request, paths, reached, bound)
    if result is not None and result.schedule is not None:
        candidates.append(_candidate_of("searched", result.schedule, request, paths))
    candidates = candidates or _candidates(relayed_builds(request, paths), request, paths)
    if not candidates:
        raise PlanError(
            f"topology {topology.name!r}: no algorithm that fits {request.collective} has routes for all its "
            "messages; plan for fewer ranks, or add links or switches between their endpoints"
        )
    most = request.limits.max_scratch_bytes
    if most is not None:
        sizes = [scratch_bytes(each.schedule, request.layout.packed_bytes, ALIGNMENT_BYTES) for each in candidates]
        if min(sizes) > most:
            raise PlanError(f"scratch of at most {most} B: every plan for this takes more, the least {min(sizes)} B")
        candidates = [candidate for candidate, size in zip(candidates, sizes, strict=True) if size <= most]
    by_time = request.objective == "auto" and not request.cores
    best = _in_order(_soonest(candidates) if by_time else candidates, request)[0]
    plan = _plan_of(request, best, paths, bounds)
    if result is not None and _merit_of(best, request.objective) <= result.least + SAME_US:
        plan = replace(plan, certificate=replace(plan.certificate, proved_by_search=result.proof))
    return plan, tuple(candidates)


def _soonest(candidates: Sequence[_Candidate], most_simulated: int | None = None) -> list[_Candidate]:
    costs = [candidate.cost for candidate in candidates]
    return [candidates[number] for number in soonest(costs, SAME_US, most_simulated)]


def _least_us(candidates: Sequence[_Candidate]) -> float:
    """The least predicted time of these, but those of long simulations: a pipeline may yet be less than their bound."""
    return min((candidate.cost.predicted_us for candidate in _soonest(candidates, MOST_SIMULATED)), default=inf)


def _candidates(builds: Builds, request: Request, paths: PathFinder, *, every: bool = False) -> list[_Candidate]:
    """All algorithms whose messages have routes here, costed; of pipelines the slice counts that may be worth it.

    Those with a bound that others beat are left out. With `every`, none are, and the slice counts do not depend on what
    other algorithms take.
    """
    by_time = request.objective == "auto" and not request.cores
    made: list[tuple[int, _Candidate]] = []
    bounded: list[tuple[int, str, BoundedBuild]] = []
    pipelines: dict[str, tuple[_Candidate, _Builds]] = {}
    for place, (name, build) in enumerate(builds):
        pipeline = name.rpartition("-")[0]
        if isinstance(build, BoundedBuild) and by_time:
            bounded.append((place, name, build))
            continue
        if pipeline in pipelines:
            pipelines[pipeline][1].append((place, name, build))
            continue
        with suppress(NoRouteError):
            candidate = _candidate_of(name, build(), request, paths)
            made.append((place, candidate))
            if isinstance(build, LikelyBuild) and by_time:
                candidate.cost.predicted_within(inf)
            if by_time and (candidate.schedule.repeat is not None or isinstance(build, PhasedBuild)):
                pipelines[pipeline] = candidate, []
    least_us = inf if every or not (pipelines or bounded) else _least_us([candidate for _, candidate in made])
    for place, name, build in bounded:
        if build.least_us <= least_us + SAME_US:
            with suppress(NoRouteError):
                made.append((place, _candidate_of(name, build(), request, paths)))
                least_us = min(least_us, made[-1][1].cost.predicted_within(least_us + SAME_US))
    several = [pipeline for pipeline in pipelines.values() if pipeline[1]]
    if len(several) > 1:  # else nobody asks how soon it is
        several.sort(key=lambda pipe: (is_phased(pipe[1]), pipe[0].cost.soon_us))
    for first, others in several:
        if is_phased(others):
            more = worth_slices(first, others, least_us, partial(_candidate_of, request=request, paths=paths))
        else:
            more = _in_more_slices(first, others, least_us, request, paths)
        made += more
        if not every:
            least_us = min(least_us, _least_us([candidate for _, candidate in more]))
    return [candidate for _, candidate in sorted(made, key=lambda each: each[0])]


def _in_more_slices(
    first: _Candidate, others: _Builds, most_us: float, request: Request, paths: PathFinder
) -> list[tuple[int, _Candidate]]:
    """A pipeline in ever more slices, until more gain nothing or must all take longer than `most_us`.

    Every slice adds to the time without bytes what the first ones add, or more.
    """
    made: list[tuple[int, _Candidate]] = []
    if not others or first.cost.exceeds(NO_GAIN * most_us):
        return made
    least_us, worse, slice_us = first.cost.predicted_within(most_us + SAME_US), 0, 0.0
    for place, name, build in others:
        with suppress(NoRouteError):
            schedule = build()
            more = slices_of(schedule) - slices_of(first.schedule)
            if first.cost.alpha_us + more * slice_us > NO_GAIN * most_us:
                break
            candidate = _candidate_of(name, schedule, request, paths)
            limit_us = min(NO_GAIN * least_us, most_us + SAME_US)
            us = candidate.cost.predicted_within(limit_us)
            made.append((place, candidate))
            if us <= limit_us or limit_us == NO_GAIN * least_us:
                worse = worse + 1 if us > limit_us else 0
            least_us, most_us = min(us, least_us), min(us, most_us)
            if worse == MOST_WORSE or candidate.cost.busiest_us > NO_GAIN * most_us:
                break
            if not slice_us and more > 0 and most_us < inf:
                slice_us = (candidate.cost.alpha_us - first.cost.alpha_us) / more
    return made


def _candidate_of(name: str, schedule: Schedule, request: Request, paths: PathFinder) -> _Candidate:
    """A schedule costed, for objective "rounds" with rounds split to the ports.

    Where rounds have a launch cost and endpoints several ports, independent rounds are joined.
    """
    if request.objective == "rounds":
        schedule = split_rounds(schedule, request.endpoints, request.ports)
    elif request.objective == "auto" and request.launch_us and request.ports > 1:
        schedule = joined_rounds(schedule, request.endpoints, request.ports)
    cost = Cost(
        schedule,
        request.endpoints,
        paths,
        row_bytes=request.layout.row_bytes,
        ports=request.ports,
        port_model=request.port_model,
        launch_us=request.launch_us,
        collective=request.collective,
    )
    return _Candidate(name, schedule, cost)


def _bounds(request: Request, paths: PathFinder) -> Bounds:
    collective, endpoints, ports, port_model = request.collective, request.endpoints, request.ports, request.port_model
    return _known_bounds.get(
        (paths.topology.digest, collective, endpoints, ports, port_model),
        lambda: bounds_of(collective, endpoints, paths, ports=ports, port_model=port_model),
    )


def _in_order(candidates: Sequence[_Candidate], request: Request) -> list[_Candidate]:
    """The candidates, best first; ties for the first place are broken by further figures."""
    in_memory = request.cores and request.objective == "auto"
    merits = {
        id(candidate): memory_us(candidate.schedule, row_bytes=request.layout.row_bytes, cores=request.cores)
        if in_memory
        else _merit_of(candidate, request.objective)
        for candidate in candidates
    }
    least = min(merits.values(), default=0.0)

    def rank(candidate: _Candidate) -> tuple[float, ...]:
        merit, cost = merits[id(candidate)], candidate.cost
        if merit != least:
            return (merit,)
        by_links = _merit_of(candidate, request.objective)
        return merit, by_links, round(cost.predicted_us, TIME_DIGITS), cost.rounds, cost.messages

    return sorted(candidates, key=rank)


def _merit_of(candidate: _Candidate, objective: Objective) -> float:
    """The figure to minimise: us, rounds, or for objective throughput the time of a GB."""
    cost = candidate.cost
    if objective == "throughput":
        return round(1.0 / cost.throughput_gb_per_s, 9) if cost.throughput_gb_per_s else 0.0
    if objective == "rounds":
        return float(cost.rounds)
    return round(cost.alpha_us if objective == "latency" else cost.predicted_us, 9)


def _plan_of(request: Request, candidate: _Candidate, paths: PathFinder, bounds: Bounds) -> Plan:
    schedule, cost, payload_bytes = candidate.schedule, candidate.cost, request.payload_bytes
    places = cost.places if schedule.repeat is None else number_places(schedule)
    figures = PlanFigures(
        rounds=cost.rounds,
        transfers=cost.messages,
        wire_bytes=cost.wire_bytes,
        scratch_bytes=scratch_bytes(schedule, request.layout.packed_bytes, ALIGNMENT_BYTES, places),
        alpha_us=round(cost.alpha_us, TIME_DIGITS),
        predicted_us=round(cost.predicted_us, TIME_DIGITS),
        algbw_gb_per_s=payload_bytes / cost.predicted_us / 1e3 if cost.predicted_us and payload_bytes else None,
        throughput_gb_per_s=cost.throughput_gb_per_s,
    )
    proof = verify(
        schedule,
        request.collective,
        paths=paths,
        endpoints=request.endpoints,
        ports=request.ports,
        serialised=request.objective != "rounds",
        keep_order=not request.operator.commutative,
        places=places,
    )
    return Plan(
        collective=request.collective,
        operator=request.operator.name,
        order=request.collective.order,
        objective=request.objective,
        topology_digest=paths.topology.digest,
        ranks=request.endpoints,
        payload_bytes=payload_bytes,
        algorithm=candidate.algorithm,
        ports=request.ports,
        port_model=request.port_model,
        figures=figures,
        proof=proof,
        certificate=certify(request.objective, figures, bounds, payload_bytes, request.launch_us),
        schedule=schedule,
        assumed=tuple(paths.assumed.values()),
        launch_us=request.launch_us,
        topology=paths.topology,
        request=request,
    )
