"""The certificate of a plan: its bounds, and how far its own figure is from that of its objective."""

from __future__ import annotations

from topocomm.planning.bounds.bound import Bound
from topocomm.planning.bounds.bounds import Bounds
from topocomm.planning.cost.cost_models import TIME_DIGITS
from topocomm.planning.plan import Certificate, Objective, PlanFigures


def certify(
    objective: Objective, figures: PlanFigures, bounds: Bounds, payload_bytes: int, launch_us: float
) -> Certificate:
    """The plan's figure of its own objective over (or under) its bound; of "auto" that and one launch."""
    own, gap = _own(objective, figures, bounds, payload_bytes, launch_us if bounds.rounds else 0.0)
    every = (bounds.rounds_bound, bounds.latency_bound, bounds.throughput_bound)
    return Certificate(
        rounds_lower_bound=bounds.rounds,
        alpha_lower_bound_us=bounds.alpha_us,
        throughput_upper_bound_gb_per_s=bounds.throughput_gb_per_s,
        gap=gap,
        argument=own.argument,
        witness=own.witness,
        other_witnesses=tuple(bound.witness for bound in every if bound is not own),
    )


def _own(
    objective: Objective, figures: PlanFigures, bounds: Bounds, payload_bytes: int, launch_us: float
) -> tuple[Bound, float]:
    """(the bound of the objective, gap to it). That of "auto": latency or bytes, whichever takes longer."""
    if objective == "rounds":
        return bounds.rounds_bound, _ratio(figures.rounds, bounds.rounds)
    if objective == "latency":
        return bounds.latency_bound, _ratio(figures.alpha_us, bounds.alpha_us)
    most = bounds.throughput_gb_per_s
    if objective == "throughput":
        reached = figures.throughput_gb_per_s
        return bounds.throughput_bound, most / reached if most and reached else 1.0
    bytes_us = round(payload_bytes / most / 1e3, TIME_DIGITS) if most else 0.0
    if bytes_us > bounds.alpha_us:
        return bounds.throughput_bound, _ratio(figures.predicted_us, bytes_us + launch_us)
    return bounds.latency_bound, _ratio(figures.predicted_us, bounds.alpha_us + launch_us)


def _ratio(reached: float, bound: float) -> float:
    return reached / bound if bound else 1.0
