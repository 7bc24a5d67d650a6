"""Candidates: schedules that were proved, what they cost, which is best, and the plan of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topocomm.operators.layout import ALIGNMENT_BYTES
from topocomm.planning.bounds import Bounds, certify
from topocomm.planning.cost.cost_models import TIME_DIGITS, Cost, cost_of
from topocomm.planning.cost.memory_cost import memory_us
from topocomm.planning.plan import Objective, Plan, PlanFigures
from topocomm.planning.program.scratch import scratch_bytes
from topocomm.planning.proof.verify import Proof, verify
from topocomm.planning.request import Request
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.transforms import joined_rounds, split_rounds


@dataclass(frozen=True)
class Candidate:
    """A proved schedule and what it costs."""

    algorithm: str
    schedule: Schedule
    proof: Proof
    cost: Cost


def candidate_of(name: str, schedule: Schedule, request: Request, paths: PathFinder) -> Candidate:
    """A schedule proved and costed; of objective rounds, its rounds split so that ports keep up.

    Where rounds cost something and there are several ports, rounds that need not wait for each other are joined.
    """
    serialised = request.objective != "rounds"
    if not serialised:
        schedule = split_rounds(schedule, request.endpoints, request.ports)
    elif request.objective == "auto" and request.launch_us and request.ports > 1:
        schedule = joined_rounds(schedule, request.endpoints, request.ports)
    proof = verify(
        schedule,
        request.collective,
        paths=paths,
        endpoints=request.endpoints,
        ports=request.ports,
        serialised=serialised,
        keep_order=not request.operator.commutative,
    )
    cost = cost_of(
        schedule,
        request.endpoints,
        paths,
        row_bytes=request.layout.row_bytes,
        ports=request.ports,
        port_model=request.port_model,
        launch_us=request.launch_us,
    )
    return Candidate(name, schedule, proof, cost)


def in_order(found: Sequence[Candidate], request: Request) -> list[Candidate]:
    """The candidates, the best first; ties are broken the same way everywhere, and only among the best."""
    in_memory = request.cores and request.objective == "auto"

    def first(one: Candidate) -> float:
        if in_memory:
            return memory_us(one.schedule, row_bytes=request.layout.row_bytes, cores=request.cores)
        return merit_of(one, request.objective)

    merits = {id(one): first(one) for one in found}
    least = min(merits.values(), default=0.0)
    best = [one for one in found if merits[id(one)] == least]
    best.sort(key=lambda one: _ties(one, request.objective))
    others = [one for one in found if merits[id(one)] != least]
    return best + sorted(others, key=lambda one: merits[id(one)])


def merit_of(found: Candidate, objective: Objective) -> float:
    """What is to be least: us, rounds, or of objective throughput the time of a GB."""
    cost = found.cost
    if objective == "throughput":
        return round(1.0 / cost.throughput_gb_per_s, 9) if cost.throughput_gb_per_s else 0.0
    if objective == "rounds":
        return float(cost.rounds)
    return round(cost.alpha_us if objective == "latency" else cost.predicted_us, 9)


def _ties(found: Candidate, objective: Objective) -> tuple[float, ...]:
    cost = found.cost
    return merit_of(found, objective), round(cost.predicted_us, TIME_DIGITS), cost.rounds, cost.messages


def plan_of(request: Request, best: Candidate, paths: PathFinder, bounds: Bounds) -> Plan:
    """The plan of a candidate."""
    cost, payload_bytes = best.cost, request.payload_bytes
    figures = PlanFigures(
        rounds=cost.rounds,
        transfers=cost.messages,
        wire_bytes=cost.wire_bytes,
        scratch_bytes=scratch_bytes(best.schedule, request.layout.packed_bytes, ALIGNMENT_BYTES),
        alpha_us=round(cost.alpha_us, TIME_DIGITS),
        predicted_us=round(cost.predicted_us, TIME_DIGITS),
        algbw_gb_per_s=payload_bytes / cost.predicted_us / 1e3 if cost.predicted_us and payload_bytes else None,
        throughput_gb_per_s=cost.throughput_gb_per_s,
    )
    return Plan(
        collective=request.collective,
        operator=request.operator.name,
        order=request.collective.order,
        objective=request.objective,
        topology_digest=paths.topology.digest,
        ranks=request.endpoints,
        payload_bytes=payload_bytes,
        algorithm=best.algorithm,
        ports=request.ports,
        port_model=request.port_model,
        figures=figures,
        proof=best.proof,
        certificate=certify(request.objective, figures, bounds, payload_bytes, request.launch_us),
        schedule=best.schedule,
        assumed=tuple(paths.assumed.values()),
        launch_us=request.launch_us,
    )
