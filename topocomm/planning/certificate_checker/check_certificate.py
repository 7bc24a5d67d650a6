"""Check of a plan's certificate: every bound is derived again from its witness, and compared with the plan.

It shares no code with `planning/bounds`: distances, sums of capacities and counting are its own. The witnesses and why
they hold: docs/concepts/cost-models.md, section Bounds. A check takes a few searches and one pass over the links.
"""

from __future__ import annotations

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.lengths_witness import LengthsWitness
from topocomm.planning.certificate_checker.rederive_bounds import SAME, WitnessChecker, same
from topocomm.planning.certificate_checker.time_witness import TimeWitnesses
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.native import native_of
from topocomm.planning.plan import Plan
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.model import Topology


def check_certificate(topology: Topology, plan: Plan) -> None:
    """Check the bounds of a plan by their witnesses, and its figures and gap by its schedule.

    Args:
        topology: The machine that the plan was made for.
        plan: A plan whose schedule is proved (`Plan.load` proves it).

    Raises:
        PlanError: It was made for another topology, a witness does not hold, a bound, a figure or the gap is not what
            follows from witness and schedule, or the plan is better than one of its bounds.
    """
    if plan.topology_digest != topology.digest:
        raise PlanError(
            f"certificate: the plan is for another topology (digest {plan.topology_digest[:12]}; {topology.name!r} "
            f"has {topology.digest[:12]})"
        )
    _check_figures(topology, plan)
    try:
        _check_bounds(topology, plan)
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlanError(f"certificate: malformed witness: {type(error).__name__}: {error}") from None
    _check_against_bounds(plan)
    if plan.native is None:
        return
    native = native_of(plan, topology, plan.native.dtype)  # the choice is the call's
    for part in ("library", "call", "algorithm", "predicted_us", "planned_us"):
        stated, derived = getattr(plan.native, part), getattr(native, part, None)
        if stated != derived and not (isinstance(stated, float) and same(stated, derived)):
            raise PlanError(f"native: {part} is {stated!r}, the model gives {derived!r}")


def _check_figures(topology: Topology, plan: Plan) -> None:
    cost = Cost(
        plan.schedule,
        plan.ranks,
        PathFinder(topology),
        row_bytes=plan.row_bytes,
        ports=plan.ports,
        port_model=plan.port_model,
        launch_us=plan.launch_us,
        collective=plan.collective,
    )
    for part in ("rounds", "wire_bytes", "alpha_us", "predicted_us", "throughput_gb_per_s"):
        stated, derived = getattr(plan.figures, part), getattr(cost, part)
        if not same(stated, derived):
            raise PlanError(f"certificate: {part} is {stated!r}, the schedule has {derived!r}")


def _check_bounds(topology: Topology, plan: Plan) -> None:
    certificate = plan.certificate
    bounds = {
        "rounds": certificate.rounds_lower_bound,
        "latency": certificate.alpha_lower_bound_us,
        "throughput": certificate.throughput_upper_bound_gb_per_s,
    }
    if plan.objective == "auto":
        if certificate.predicted_lower_bound_us is None:
            raise PlanError(
                "certificate: predicted_lower_bound_us is missing, as in plans of topocomm before it had that bound: "
                "plan again"
            )
        bounds["time"] = certificate.predicted_lower_bound_us
    witnesses = {witness["bounds"]: witness for witness in (certificate.witness, *certificate.other_witnesses)}
    if set(witnesses) != set(bounds) or len(certificate.other_witnesses) != len(bounds) - 1:
        raise PlanError(
            f"certificate: witnesses of {', '.join(map(str, witnesses))}; expected one of {', '.join(bounds)}"
        )
    own = "time" if plan.objective == "auto" else plan.objective
    if certificate.witness["bounds"] != own:
        raise PlanError(f"certificate: the witness is of {certificate.witness['bounds']}, the gap is to that of {own}")
    checker = WitnessChecker(topology, plan)
    kinds = checker.kinds | TimeWitnesses(checker, certificate.alpha_lower_bound_us).kinds
    lengths = LengthsWitness(checker.graph, checker.needs, plan)
    kinds["throughput", "lengths"] = lambda witness: lengths.gb_per_s(witness["links"])
    for name, value in bounds.items():
        witness = witnesses[name]
        derive = kinds.get((name, witness["kind"]))
        if derive is None:
            raise PlanError(f"certificate: {name} bound: unknown kind of witness {witness['kind']!r}")
        derived = derive(witness)
        if name == "time" and certificate.rounds_lower_bound:
            derived = (derived or 0.0) + plan.launch_us
        if not same(value, derived):
            raise PlanError(
                f"certificate: the {name} bound is {value!r}, its {witness['kind']} witness gives {derived!r}"
            )


def _check_against_bounds(plan: Plan) -> None:
    figures, certificate = plan.figures, plan.certificate
    least_us, most = certificate.alpha_lower_bound_us, certificate.throughput_upper_bound_gb_per_s
    longest_us = certificate.predicted_lower_bound_us or 0.0
    reached = figures.throughput_gb_per_s or 0.0
    # Of other objectives rounds only order the messages of a port, any number of them in one.
    rounds_beaten = plan.objective == "rounds" and figures.rounds < certificate.rounds_lower_bound
    for what, bound, is_better in (
        (f"{figures.rounds} rounds", certificate.rounds_lower_bound, rounds_beaten),
        (f"alpha_us {figures.alpha_us}", least_us, figures.alpha_us < least_us - SAME * (1 + least_us)),
        (
            f"predicted_us {figures.predicted_us}",
            longest_us,
            figures.predicted_us < longest_us - SAME * (1 + longest_us),
        ),
        (f"throughput {reached} GB/s", most, most is not None and reached > most * (1 + SAME)),
    ):
        if is_better:
            raise PlanError(f"certificate: {what} is better than its bound, {bound}: one of the two is wrong")
    over, under = {
        "rounds": (figures.rounds, certificate.rounds_lower_bound),
        "latency": (figures.alpha_us, least_us),
        "throughput": (most, reached) if most else (1.0, 1.0),
        "auto": (figures.predicted_us, longest_us),
    }[plan.objective]
    gap = over / under if under else 1.0
    if not same(certificate.gap, gap):
        raise PlanError(f"certificate: the gap is {certificate.gap!r}, figure and bound give {gap!r}")
