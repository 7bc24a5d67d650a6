"""What a schedule costs on a machine, by the cost models alpha, loggp, rounds and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from topocomm.planning.cost.fluid import FluidModel, fluid_time_us
from topocomm.planning.cost.messages import Messages, Place, chunk_bytes, messages_of, routes_of, steps_of
from topocomm.planning.cost.port_time import PortRules, port_time_us
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Ints, Routes
from topocomm.planning.schedule.schedule import Schedule, input_table
from topocomm.planning.schedule.transforms import unrolled

PortModel = Literal["alpha", "loggp"]
TIME_DIGITS = 9
"""To which times in us are rounded, of plans and bounds alike: else a plan could seem better than its bound."""
FLUID_LIMIT_MESSAGES, FLUID_LIMIT_TRANSFERS = 4096, 1 << 14
"""Above these, bytes are reckoned round by round: each round's busiest link, added to the latency."""


class Cost:
    """Figures of one schedule on one machine; those that take time are worked out when they are asked for first.

    Attributes:
        rounds: Rounds that have a transfer.
        messages: Messages on the wire.
        wire_bytes: Bytes of all messages.
    """

    def __init__(
        self,
        schedule: Schedule,
        endpoints: Sequence[str],
        paths: PathFinder,
        row_bytes: int,
        rules: PortRules,
        launch_us: float = 0.0,
    ) -> None:
        self._schedule = unrolled(schedule)
        self._endpoints, self._paths, self._row_bytes, self._rules = endpoints, paths, row_bytes, rules
        self._messages = messages_of(self._schedule, chunk_bytes(self._schedule, row_bytes))
        self._routes = routes_of(self._messages, self._schedule, endpoints, paths)
        self._launch_us = launch_us
        self.rounds = len(np.unique(self._messages.round))
        self.messages = len(self._messages)
        self.wire_bytes = int(self._messages.payload_bytes.sum())

    @cached_property
    def alpha_us(self) -> float:
        """Time of the last output with no bytes, under the port model."""
        return port_time_us(self._schedule, self._messages, self._routes, self._endpoints, self._paths, self._rules)

    @cached_property
    def predicted_us(self) -> float:
        """The same with bytes, and with a launch for every round."""
        return self._moved_us + self._launch_us * self.rounds

    @property
    def _moved_us(self) -> float:
        if not self.wire_bytes:
            return self.alpha_us
        if self.messages <= FLUID_LIMIT_MESSAGES and len(self._schedule.transfers) <= FLUID_LIMIT_TRANSFERS:
            return _fluid_us(self._schedule, self._endpoints, self._paths, self._row_bytes, self._rules)
        return self.alpha_us + _bytes_us(self._messages, self._routes, self._paths)

    @cached_property
    def throughput_gb_per_s(self) -> float | None:
        """Payload over the busiest link's time, for long pipelined payloads; None when nothing is sent."""
        payload_bytes = self._schedule.rows * self._row_bytes
        return _throughput_gb_per_s(self._schedule, self._messages, self._routes, self._paths, payload_bytes)


def cost_of(
    schedule: Schedule,
    endpoints: Sequence[str],
    paths: PathFinder,
    *,
    row_bytes: int,
    ports: int = 1,
    port_model: PortModel = "alpha",
    launch_us: float = 0.0,
) -> Cost:
    """The cost of a verified schedule whose ranks sit on `endpoints`; of a pipelined one, that of all its slices.

    Raises:
        NoRouteError: No route joins the ends of a message.
        PlanError: A path of the schedule does not lead from one to the other.
    """
    return Cost(schedule, endpoints, paths, row_bytes, PortRules(ports, port_model == "loggp"), launch_us)


def _fluid_us(
    schedule: Schedule, endpoints: Sequence[str], paths: PathFinder, row_bytes: int, rules: PortRules
) -> float:
    steps = steps_of(schedule, endpoints, paths, row_bytes)
    nics = frozenset(d.id for d in paths.topology.devices if d.kind == "nic")
    inputs: list[Place] = [tuple(row[:3]) for row in input_table(schedule).tolist()]
    outputs: list[Place] = [tuple(row) for row in schedule.outputs.tolist()]
    return fluid_time_us(steps, inputs, outputs, FluidModel(paths, rules.ports, rules.loggp, nics))


def _bytes_us(messages: Messages, routes: Routes, paths: PathFinder) -> float:
    """The time of the busiest link of every round, added up."""
    first = np.unique(messages.round, return_index=True)[1]
    edges = routes.starts[[*first.tolist(), len(messages)]].tolist()
    sizes = np.repeat(messages.payload_bytes, routes.hops)
    total_us = 0.0
    for low, high in pairwise(edges):
        total_us += _busiest_us(routes.links[low:high], sizes[low:high], paths)
    return total_us


def _throughput_gb_per_s(
    schedule: Schedule, messages: Messages, routes: Routes, paths: PathFinder, payload_bytes: int
) -> float | None:
    """Payload over the busiest link's time. Without a payload, that of one with equal chunks."""
    sizes = messages.payload_bytes
    if not payload_bytes:
        payload_bytes = len(schedule.chunks)
        sizes = np.bincount(messages.of_transfer, minlength=len(messages))
    busiest_us = _busiest_us(routes.links, np.repeat(sizes, routes.hops), paths)
    return payload_bytes / busiest_us / 1e3 if busiest_us else None


def _busiest_us(links: Ints, sizes: Ints, paths: PathFinder) -> float:
    """Time of the link with most to carry, of these bytes on these directed links."""
    load_bytes = np.bincount(links, sizes)  # whole numbers: exact in any order
    used = np.flatnonzero(load_bytes)
    return float((load_bytes[used] / (paths.link_gb_per_s[used] * 1e3)).max(initial=0.0))
