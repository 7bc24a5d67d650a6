"""What a schedule costs on a machine, by the cost models alpha, loggp, rounds and throughput."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from topocomm.planning.figures import Edge
from topocomm.planning.fluid import FluidModel, fluid_time_us
from topocomm.planning.messages import Message, Place, Step, steps_of
from topocomm.planning.paths import PathFinder
from topocomm.planning.schedule import Schedule, input_pieces

PortModel = Literal["alpha", "loggp"]
FLUID_LIMIT_MESSAGES = 4096
"""Above this, bytes are reckoned round by round: each round's busiest link, added to the latency."""


@dataclass(frozen=True)
class Cost:
    """Figures of one schedule on one machine.

    Attributes:
        rounds: Rounds that have a transfer.
        messages: Messages on the wire.
        wire_bytes: Bytes of all messages.
        alpha_us: Time of the last output with no bytes, under the port model.
        predicted_us: The same with bytes.
        throughput_gb_per_s: Payload over the busiest link's time, for long pipelined payloads; None when nothing
            is sent.
    """

    rounds: int
    messages: int
    wire_bytes: int
    alpha_us: float
    predicted_us: float
    throughput_gb_per_s: float | None


def cost_of(
    schedule: Schedule,
    endpoints: Sequence[str],
    paths: PathFinder,
    *,
    row_bytes: int,
    ports: int = 1,
    port_model: PortModel = "alpha",
) -> Cost:
    """The cost of a schedule whose ranks sit on `endpoints`.

    Raises:
        PlanError: A message has no route.
    """
    steps = steps_of(schedule, endpoints, paths, row_bytes)
    nics = frozenset(d.id for d in paths.topology.devices if d.kind == "nic")
    model = FluidModel(paths, ports, port_model == "loggp", nics)
    inputs = [(rank, *piece) for rank in range(schedule.ranks) for piece in input_pieces(schedule, rank)]
    outputs = [(rank, slot, chunk) for rank, slot, chunk in schedule.outputs.tolist()]
    alpha_us = _latency_us(steps, inputs, outputs, model)
    messages = [m for step in steps for m in step.messages]
    wire_bytes = sum(m.payload_bytes for m in messages)
    if not wire_bytes:
        predicted_us = alpha_us
    elif len(messages) <= FLUID_LIMIT_MESSAGES:
        predicted_us = fluid_time_us(steps, inputs, outputs, model)
    else:
        predicted_us = alpha_us + sum(_busiest_us(step.messages, paths) for step in steps)
    return Cost(
        rounds=sum(bool(step.messages) for step in steps),
        messages=len(messages),
        wire_bytes=wire_bytes,
        alpha_us=alpha_us,
        predicted_us=predicted_us,
        throughput_gb_per_s=_throughput_gb_per_s(schedule, endpoints, paths, messages, schedule.rows * row_bytes),
    )


def _latency_us(steps: list[Step], inputs: list[Place], outputs: list[Place], model: FluidModel) -> float:
    """Time of the last output with no bytes: one pass in port order."""
    ready = dict.fromkeys(inputs, 0.0)
    free: dict[str, list[float]] = {}
    for step in steps:
        arrivals = [(m, _send(m, ready, free, model)) for m in step.messages]
        for message, arrival_us in arrivals:
            for place in message.writes:
                ready[place] = arrival_us
        for fold in step.combines:
            ready[fold.rank, fold.out_slot, fold.chunk] = max(
                ready[fold.rank, slot, fold.chunk] for slot in fold.operands
            )
    return max((ready[place] for place in outputs), default=0.0)


def _send(message: Message, ready: dict[Place, float], free: dict[str, list[float]], model: FluidModel) -> float:
    """Start a message as early as its slots and ports allow; returns its arrival."""
    route = message.route
    held = [(f"send {message.src_port}", model.ports), (f"receive {message.dst_port}", model.ports)]
    if model.loggp:
        held += [(f"nic {device}", 1) for device in route.devices if device in model.nics]
    queues = [free.setdefault(name, [0.0] * limit) for name, limit in held]
    start_us = max([ready[place] for place in message.reads] + [queue[0] for queue in queues])
    for queue in queues:
        heapq.heapreplace(queue, start_us + (route.gap_us if model.loggp else route.latency_us))
    return start_us + route.latency_us


def _busiest_us(messages: Sequence[Message], paths: PathFinder) -> float:
    load = _load(messages)
    return max((size / (paths.links[edge].gb_per_s * 1e3) for edge, size in load.items()), default=0.0)


def _throughput_gb_per_s(
    schedule: Schedule, endpoints: Sequence[str], paths: PathFinder, messages: Sequence[Message], payload_bytes: int
) -> float | None:
    """Payload over the busiest link's time. Without a payload, that of one with equal chunks."""
    if not payload_bytes:
        unit = replace(schedule, chunks=tuple((index, 1) for index in range(len(schedule.chunks))))
        messages = [m for step in steps_of(unit, endpoints, paths, 1) for m in step.messages]
        payload_bytes = unit.rows
    busiest_us = _busiest_us([m for m in messages if m.route.gb_per_s < inf], paths)
    return payload_bytes / busiest_us / 1e3 if busiest_us else None


def _load(messages: Sequence[Message]) -> dict[Edge, float]:
    load: dict[Edge, float] = {}
    for message in messages:
        for edge in message.route.edges:
            load[edge] = load.get(edge, 0.0) + message.payload_bytes
    return load
