"""The bounds of one collective on one machine, and the certificate that sets them beside a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.endpoint_groups import families
from topocomm.planning.bounds.latency_bound import latency_bound
from topocomm.planning.bounds.lengths_bound import lengths_bounds
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.rounds_bound import Bound, rounds_bound, witness_of
from topocomm.planning.bounds.throughput_bound import throughput_bound
from topocomm.planning.bounds.time.time_bound import TimeArgument, time_arguments
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import TIME_DIGITS
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.plan import Certificate, Objective, PlanFigures
from topocomm.planning.routing.paths import PathFinder


@dataclass(frozen=True)
class Bounds:
    """Bounds of rounds, of us without bytes, of GB/s of long payloads, and arguments for us with bytes."""

    rounds_bound: Bound
    latency_bound: Bound
    throughput_bound: Bound
    time_arguments: tuple[TimeArgument, ...]

    @property
    def rounds(self) -> int:
        """Least rounds."""
        return int(self.rounds_bound.value or 0)

    @property
    def alpha_us(self) -> float:
        """Least time under the port model asked for, rounded as the times of plans are."""
        return round(self.latency_bound.value or 0.0, TIME_DIGITS)

    @property
    def throughput_gb_per_s(self) -> float | None:
        """Greatest throughput of a long payload; None: nothing crosses a link."""
        return self.throughput_bound.value

    def time_bound(self, payload_bytes: int) -> Bound:
        """Return the least time with bytes in us, without launches."""
        best = Bound(self.alpha_us, self.latency_bound.argument, witness_of("time", "latency"))
        for each in self.time_arguments if payload_bytes else ():
            us = round(each.us(payload_bytes), TIME_DIGITS)
            if us > (best.value or 0.0):
                best = Bound(us, each.words, each.witness)
        return best


def bounds_of(
    collective: Collective, endpoints: Sequence[str], paths: PathFinder, *, ports: int, port_model: PortModel
) -> Bounds:
    """Return the bounds of `collective` with rank r on `endpoints[r]`.

    Raises:
        PlanError: No route leads to a rank from one whose value it needs.
    """
    demand, machine = demand_of(collective), Machine(endpoints, paths)
    nested = families(machine)
    rounds = rounds_bound(demand, machine, ports)
    throughput = throughput_bound(demand, machine, nested)
    arguments = time_arguments(demand, machine, nested, throughput=throughput, ports=ports)
    by_lengths = lengths_bounds(demand, machine, paths, ports, throughput)
    return Bounds(
        rounds,
        latency_bound(demand, machine, rounds=rounds, ports=ports, port_model=port_model),
        by_lengths.throughput or throughput,
        (*arguments, by_lengths.time) if by_lengths.time else arguments,
    )


def certify(
    objective: Objective, figures: PlanFigures, bounds: Bounds, payload_bytes: int, launch_us: float
) -> Certificate:
    """Return the certificate of a plan: its bounds, and the ratio of its figure and the bound of its objective.

    The bound of "auto" is the longest time of all arguments for this payload, and one launch.
    """
    most, reached = bounds.throughput_gb_per_s, figures.throughput_gb_per_s
    every = [bounds.rounds_bound, bounds.latency_bound, bounds.throughput_bound]
    longest, longest_us = bounds.latency_bound, None
    if objective == "auto":
        time = bounds.time_bound(payload_bytes)
        every.append(time)
        longest, longest_us = time, (time.value or 0.0) + (launch_us if bounds.rounds else 0.0)
    own, over, under = {
        "rounds": (bounds.rounds_bound, figures.rounds, bounds.rounds),
        "latency": (bounds.latency_bound, figures.alpha_us, bounds.alpha_us),
        "throughput": (bounds.throughput_bound, most or 0.0, reached if most else None),
        "auto": (longest, figures.predicted_us, longest_us),
    }[objective]
    return Certificate(
        rounds_lower_bound=bounds.rounds,
        alpha_lower_bound_us=bounds.alpha_us,
        throughput_upper_bound_gb_per_s=bounds.throughput_gb_per_s,
        predicted_lower_bound_us=longest_us,
        gap=over / under if under else 1.0,
        argument=own.argument,
        witness=own.witness,
        other_witnesses=tuple(bound.witness for bound in every if bound is not own),
    )
