"""Comparison of plans: a plan with the algorithms it was chosen from, and the cost of a defect of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from topocomm.operators.operator import Operator
from topocomm.planning.cost.cost_models import TIME_DIGITS, Cost
from topocomm.planning.plan import Candidate, Plan, PlanFigures
from topocomm.planning.planner import chosen_from
from topocomm.planning.request import NO_LIMITS, Limits, Request, layout_of, port_model_of, whole_layout
from topocomm.topology.model import Topology

SAME = 5e-4
"""Relative difference below which figures count as equal."""
AS_GOOD = (0.995, 1.005)
"""Range of time ratios in which a rival counts as good as the plan."""


@dataclass(frozen=True)
class Rival:
    """An algorithm that was a candidate, with its figure of the plan's objective and its predicted time."""

    algorithm: str
    figure: float
    predicted_us: float


def request_of(plan: Plan, operator: Operator, limits: Limits = NO_LIMITS) -> Request:
    """Return the request that a plan of `planner.plan` was made for."""
    return Request(
        plan.collective,
        operator,
        whole_layout(layout_of(operator, plan.payload_bytes), plan.collective),
        plan.ranks,
        plan.objective,
        plan.ports,
        plan.port_model,
        limits=limits,
        launch_us=plan.launch_us,
    )


def ranked(plan: Plan, topology: Topology, operator: Operator, limits: Limits = NO_LIMITS) -> tuple[Rival, ...]:
    """Return the algorithms that a plan of `planner.plan` was chosen from, its own among them, best first."""
    request = request_of(plan, operator, limits)
    return tuple(Rival(name, figure_of(plan, cost), cost.predicted_us) for name, cost in chosen_from(topology, request))


def candidates(plan: Plan, topology: Topology, request: Request) -> tuple[Candidate, ...]:
    """Return the algorithms that a plan was chosen from, best first, with what each costs more than the plan."""
    found = []
    for name, cost in chosen_from(topology, request):
        rival = Rival(name, figure_of(plan, cost), cost.predicted_us)
        times_us = round(cost.predicted_us, TIME_DIGITS), round(cost.alpha_us, TIME_DIGITS)
        figures = (*times_us, cost.rounds, cost.messages, cost.wire_bytes)
        ratio = times(plan, rival)
        why = "chosen" if name == plan.algorithm else _why_not(plan, cost, ratio)
        found.append(Candidate(name, *figures, cost.throughput_gb_per_s, round(ratio, 4), why))
    return tuple(found)


def _why_not(plan: Plan, cost: Cost, ratio: float) -> str:
    own = plan.figures
    more = [f"{cost.rounds} rounds, not {own.rounds}"] * (cost.rounds > own.rounds)
    more += [f"{cost.alpha_us:.2f} us without bytes, not {own.alpha_us:.2f}"] * (
        cost.alpha_us > own.alpha_us * AS_GOOD[1]
    )
    more += [f"{cost.wire_bytes:,} B on the wire, not {own.wire_bytes:,}"] * (cost.wire_bytes > own.wire_bytes)
    if ratio < AS_GOOD[0]:  # of ranks that share cores, chosen by copies and waits
        return "sooner by the links, later in memory that ranks share"
    head = "as good" if ratio <= AS_GOOD[1] else "worse" if ratio == inf else f"{ratio:.2f} x"
    return f"{head}: {'; '.join(more)}" if more else head if ratio <= AS_GOOD[1] else f"{head}: busier links"


def sooner_by_auto(plan: Plan, topology: Topology, request: Request) -> str | None:
    """Return which plan of objective auto takes this payload less time, for a plan of objective throughput."""
    if plan.objective != "throughput" or not plan.payload_bytes:
        return None
    name, cost = chosen_from(topology, replace(request, objective="auto", port_model=port_model_of("auto")))[0]
    own_us = plan.figures.predicted_us
    if cost.predicted_us >= own_us:
        return None
    return (
        f"objective auto takes {cost.predicted_us:.2f} us for {plan.payload_bytes} B, with {name}, this plan "
        f"{own_us:.2f} us: it is for payloads that follow each other without end"
    )


def figure_of(plan: Plan, cost: Cost | PlanFigures) -> float:
    """Return the figure of the plan's objective: us, rounds, or GB/s (0 where nothing is sent)."""
    if plan.objective == "throughput":
        return cost.throughput_gb_per_s or 0.0
    if plan.objective == "rounds":
        return float(cost.rounds)
    return cost.alpha_us if plan.objective == "latency" else cost.predicted_us


def times(plan: Plan, rival: Rival) -> float:
    """Return the slowdown of a rival against the plan, in the figure of the objective."""
    own, other = figure_of(plan, plan.figures), rival.figure
    slow, fast = (own, other) if plan.objective == "throughput" else (other, own)
    return slow / fast if fast else (inf if slow else 1.0)


def behind(plan: Plan, rival: Rival) -> str:
    """Return the slowdown of a rival in words: "1.95x"; "as good" within half a percent."""
    ratio = times(plan, rival)
    if AS_GOOD[0] <= ratio <= AS_GOOD[1]:
        return "as good"
    return "worse" if ratio == inf else f"{ratio:.2f}x"


def defect(whole: Plan, degraded: Plan, names: Sequence[str], rates: Sequence[str] = ()) -> str:
    """Return one line on what the loss of links, or other `rates` of some (LINK=GBPS), cost, in the objective's figure.

    `without h2/NIC3: throughput -11% (258.06 -> 229.70 GB/s), new plan leaders-4`; "plan still" where the schedule
    has the same transfers and combines as before.
    """
    what, unit = {
        "throughput": ("throughput", "GB/s"),
        "rounds": ("rounds", "rounds"),
        "latency": ("latency", "us"),
    }.get(whole.objective, (f"{whole.payload_bytes} B", "us"))
    before, after = figure_of(whole, whole.figures), figure_of(degraded, degraded.figures)
    if abs(after - before) <= SAME * before:
        change = f"{what} still {before:.2f} {unit}"
    else:
        change = f"{what} {f'{after / before - 1:+.0%} ' if before else ''}({before:.2f} -> {after:.2f} {unit})"
    a, b = whole.schedule, degraded.schedule
    plain = (a.chunks, a.paths, a.repeat) == (b.chunks, b.paths, b.repeat)
    columns = ("transfers", "combines", "operands")
    same = plain and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)
    chosen = "plan still" if same else "new plan"
    changes = [f"without {', '.join(names)}"] * bool(names) + [f"with {', '.join(rates)} GB/s"] * bool(rates)
    return f"{', '.join(changes)}: {change}, {chosen} {degraded.algorithm}"
