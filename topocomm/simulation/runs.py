"""One collective on one machine by any algorithm: the planned schedule, a library's, or sums in switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from topocomm.errors import PlanError
from topocomm.operators.builtin import SUM
from topocomm.operators.operator import Operator
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.planning.cost.simulated_work import Work
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import topology_figures
from topocomm.planning.libraries.nccl_times import payload_share
from topocomm.planning.plan import Objective, Plan
from topocomm.planning.planner import plan
from topocomm.planning.request import group_ports, place_ranks
from topocomm.planning.routing.paths import PathFinder
from topocomm.simulation.libraries import names, work_of
from topocomm.simulation.protocols import Protocol, Transport, with_protocols
from topocomm.simulation.switch_sums import switch_sum
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology

PLANNED, SWITCH_SUM = "planned", "switch-sum"
"""Algorithms beside those of libraries: the schedule that `topocomm.plan` chooses, and sums in switches that fold."""


@dataclass(frozen=True)
class Rules:
    """What a message costs beside bytes and latency, and how many an endpoint has at once.

    Attributes:
        ports: Messages that an endpoint sends, and receives, at once, in their order: the rule of the cost model of
            plans. None, as plans are executed: all messages of a round are posted together and share the links.
        port_model: As of `topocomm.plan`.
        launch_us: What a round of a planned schedule costs to start; None: what the topology says, else nothing.
        fold_gb_per_s: Rate of the bytes that an endpoint reads and writes to fold; None: folds cost nothing.
        transport: Protocols by size; None: bytes and latency alone. Libraries' algorithms have their own.
        as_called: Whether planned schedules of GPUs are counted as calls run them and as NCCL's own are: with the
            table's launches where no others are known, with one port or those of a group as is sooner where `ports` is
            None, and with the share of the links' rates that payloads get where `transport` is None.
    """

    ports: int | None = None
    port_model: PortModel = "loggp"
    launch_us: float | None = None
    fold_gb_per_s: float | None = None
    transport: Transport | None = None
    as_called: bool = False


@dataclass(frozen=True, eq=False)
class Run:
    """A simulated collective.

    Attributes:
        algorithm: Its name, as asked for.
        detail: What was simulated, in words: the algorithm of the plan.
        payload_bytes: Bytes of one rank's value; of collectives in parts as `topocomm.plan` counts them.
        predicted_us: What the plan says of its schedule; None for other algorithms.
        counted: What `Rules.as_called` added, in words.
    """

    algorithm: str
    detail: str
    collective: str
    payload_bytes: int
    ranks: tuple[str, ...]
    timeline: Timeline
    predicted_us: float | None = None
    counted: str = ""

    def __repr__(self) -> str:
        what = f"{self.collective} {self.payload_bytes} B, ranks {len(self.ranks)}, by {self.detail}"
        return f"<Run {what}: {self.total_us:.2f} us, {self.gb_per_s:.2f} GB/s>"

    @property
    def total_us(self) -> float:
        """Time of the last arrival."""
        return self.timeline.total_us

    @property
    def gb_per_s(self) -> float:
        """Payload over time: algbw of nccl-tests."""
        return self.payload_bytes / self.total_us / 1e3 if self.total_us else 0.0


def algorithms() -> tuple[str, ...]:
    """Return the names that `simulate_collective` knows."""
    return (PLANNED, SWITCH_SUM, *names())


def of_plan(plan: Plan, *, launch_us: float = 0.0, fold_gb_per_s: float | None = None) -> Work:
    """Return the work of a plan's schedule, for the payload that it was planned for; the others as of `of_schedule`."""
    return of_schedule(
        plan.schedule,
        plan.ranks,
        plan.schedule.rows * plan.row_bytes,
        launch_us=launch_us,
        fold_gb_per_s=fold_gb_per_s,
        label=f"{plan.title} {plan.algorithm}",
    )


def simulate_plan(chosen: Plan, machine: Topology | PathFinder, rules: Rules | None = None) -> Run:
    """Return the simulated schedule of a plan."""
    rules = rules or Rules()
    paths = PathFinder(machine) if isinstance(machine, Topology) else machine
    launch_us = paths.topology.launch_us or 0.0 if rules.launch_us is None else rules.launch_us
    work = of_plan(chosen, launch_us=launch_us, fold_gb_per_s=rules.fold_gb_per_s)
    if rules.transport is not None:
        work = with_protocols(work, paths, rules.transport)
    timeline = simulate(work, paths, ports=rules.ports, port_model=rules.port_model)
    name = chosen.collective.name
    predicted_us = chosen.figures.predicted_us
    return Run(PLANNED, chosen.algorithm, name, chosen.payload_bytes, chosen.ranks, timeline, predicted_us)


def _as_called(topology: Topology, ends: Sequence[str], rules: Rules) -> tuple[Rules, tuple[int, ...], str]:
    """What calls between GPUs have: rules with launches and shares, numbers of ports to plan with; that in words."""
    launch_us = topology.launch_us or GROUP_LAUNCH_US if rules.launch_us is None else rules.launch_us
    words, transport = [f"{launch_us:g} us a round to launch"], rules.transport
    if transport is None and len(ends) > 1:
        shape = job_shape(topology, ends, alike=False)
        share = payload_share(shape, topology_figures(topology))
        transport = Transport("payloads", (Protocol("payloads", inf, share, source="figures of NCCL's calls"),))
        words.append(f"{share:.0%} of the links' rates")
    every = sorted({1, group_ports(topology, ends)}) if rules.ports is None else [rules.ports]
    counted = f"{' and '.join(words)}, as NCCL's calls are counted"
    return replace(rules, launch_us=launch_us, transport=transport), tuple(every), counted


def simulate_collective(
    topology: Topology,
    algorithm: str,
    collective: str = "allreduce",
    *,
    payload_bytes: int,
    operator: Operator = SUM,
    objective: Objective = "auto",
    ranks: Sequence[str] | None = None,
    root: int = 0,
    rules: Rules | None = None,
) -> Run:
    """Return a simulated collective by an algorithm.

    Args:
        topology: The machine.
        algorithm: "planned", "switch-sum", or one of `topocomm.simulation.libraries.names()`.
        collective: As of `topocomm.plan`.
        payload_bytes: Bytes of one rank's value; of an allgather or reduce_scatter the whole.
        operator: What is reduced, for planned schedules.
        objective: What the planner minimises.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        root: Root rank of planned reduces, broadcasts, gathers and scatters.
        rules: What messages cost; None: `Rules()`.

    Raises:
        PlanError: The algorithm is unknown or lacks the collective, or an argument is out of range.
    """
    rules = rules or Rules()
    if algorithm not in algorithms():
        raise PlanError(f"algorithm {algorithm!r}: expected one of {', '.join(algorithms())}")
    ends = place_ranks(topology, ranks)
    if algorithm == PLANNED:
        counted = ""
        every: tuple[int, ...] = (rules.ports or 1,)
        if rules.as_called and {topology.by_id[end].kind for end in ends} == {"gpu"}:
            rules, every, counted = _as_called(topology, ends, rules)
        launched = topology if rules.launch_us is None else replace(topology, launch_us=rules.launch_us)
        plans = [
            plan(
                launched,
                collective,
                payload_bytes=payload_bytes,
                operator=operator,
                objective=objective,
                ports=ports,
                port_model=rules.port_model,
                ranks=ranks,
                root=root,
            )
            for ports in every
        ]
        chosen = min(plans, key=lambda made: (made.predicted_us, made.rounds))
        return replace(simulate_plan(chosen, launched, rules), counted=counted)
    if algorithm == SWITCH_SUM:
        if collective != "allreduce":
            raise PlanError(f"algorithm {SWITCH_SUM}: expected allreduce, got {collective}")
        work = switch_sum(topology, payload_bytes, ranks=ends)
    else:
        work = work_of(algorithm, topology, collective, payload_bytes, ranks=ends)
    return Run(algorithm, algorithm, collective, payload_bytes, ends, simulate(work, topology))
