"""The three bounds of one collective on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topocomm.planning.bounds.bound import Bound
from topocomm.planning.bounds.demand import demand_of
from topocomm.planning.bounds.latency_bound import latency_bound
from topocomm.planning.bounds.machine_columns import Machine
from topocomm.planning.bounds.rounds_bound import rounds_bound
from topocomm.planning.bounds.throughput_bound import throughput_bound
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import TIME_DIGITS, PortModel
from topocomm.planning.routing.paths import PathFinder


@dataclass(frozen=True)
class Bounds:
    """Least rounds, least us without bytes, most GB/s of long payloads: each with its argument and witness."""

    rounds_bound: Bound
    latency_bound: Bound
    throughput_bound: Bound

    @property
    def rounds(self) -> int:
        """No schedule has fewer."""
        return int(self.rounds_bound.value or 0)

    @property
    def alpha_us(self) -> float:
        """No schedule takes less, under the port model that was asked for; rounded as the times of plans are."""
        return round(self.latency_bound.value or 0.0, TIME_DIGITS)

    @property
    def throughput_gb_per_s(self) -> float | None:
        """No schedule carries more of a long payload; None: nothing crosses a link."""
        return self.throughput_bound.value


def bounds_of(
    collective: Collective, endpoints: Sequence[str], paths: PathFinder, *, ports: int, port_model: PortModel
) -> Bounds:
    """The bounds of `collective` with rank r on `endpoints[r]`.

    Raises:
        PlanError: A rank needs something of another that no way leads from.
    """
    demand, machine = demand_of(collective), Machine(endpoints, paths)
    rounds = rounds_bound(demand, machine, ports)
    return Bounds(
        rounds,
        latency_bound(demand, machine, rounds=rounds, ports=ports, port_model=port_model),
        throughput_bound(demand, machine),
    )
