"""One decode step of a model whose context is shared over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from topocomm.errors import PlanError
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import Work
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.planner import plan
from topocomm.planning.request import place_ranks
from topocomm.simulation.decode.datasheets import DeviceFigures, device_figures, recognise_device
from topocomm.simulation.decode.decode_methods import METHODS, Layer, helix_groups
from topocomm.simulation.decode.layer_costs import LayerCosts
from topocomm.simulation.decode.model_shapes import ModelShape, model_shape
from topocomm.simulation.decode.rank_program import RankProgram
from topocomm.simulation.libraries import algorithm, work_of
from topocomm.simulation.path_back import CriticalPath, critical_path
from topocomm.simulation.runs import PLANNED, SWITCH_SUM, of_plan
from topocomm.simulation.switch_sums import switch_sum
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology

SHARDED, REPLICATED = "sharded", "replicated"
SIMULATED_LAYERS = 2
"""Layers that are simulated: all are alike, so each after the second takes as long as the second did."""
GROUP_PORTS = 7
"""Messages that an endpoint starts with one launch, as calls between GPUs are planned (docs/guide/planning.md)."""
CHOICE_BYTES = 8
"""Bytes of a rank's best token of a sequence: its logit and its number."""


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """A simulated decode step; times in microseconds.

    Attributes:
        context: Tokens of each sequence before the new one.
        timeline: Of the layers that were simulated, and the head.
        ends_us: Time at which the slowest rank ended each of these layers.
        kv_bytes: Bytes of keys and values that a rank holds, of all layers.
    """

    model: ModelShape
    method: str
    context: int
    batch: int
    ranks: tuple[str, ...]
    timeline: Timeline
    ends_us: tuple[float, ...]
    kv_bytes: int

    @property
    def layer_us(self) -> float:
        """Time of a layer among others."""
        return self.ends_us[-1] - self.ends_us[-2] if len(self.ends_us) > 1 else self.ends_us[0]

    @property
    def head_us(self) -> float:
        """Time of the head, and of agreeing on the token."""
        return self.timeline.total_us - self.ends_us[-1]

    @property
    def total_us(self) -> float:
        """Time of the step."""
        return self.ends_us[-1] + (self.model.layers - len(self.ends_us)) * self.layer_us + self.head_us

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, of all sequences."""
        return self.batch / self.total_us * 1e6

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path of the layers that were simulated, and the head."""
        return critical_path(self.timeline)

    @property
    def communication_share(self) -> float:
        """Part of the critical path that is not computing, 0 to 1."""
        computing_us = sum(us for cause, us in self.path.by_cause.items() if cause.startswith("computing"))
        return 1.0 - computing_us / self.timeline.total_us if self.timeline.total_us else 0.0


def simulate_step(  # noqa: PLR0913 - one request, all but two keyword-only
    topology: Topology,
    model: ModelShape | str,
    *,
    context: int,
    method: str = "tree",
    batch: int = 1,
    ranks: Sequence[str] | None = None,
    device: DeviceFigures | str | None = None,
    weights: str = SHARDED,
    collectives: str = PLANNED,
    launch_us: float = GROUP_LAUNCH_US,
    efficiency: float = 1.0,
    kernel_us: float = 0.0,
) -> DecodeStep:
    """Return a simulated decode step: every rank holds an equal part of the context of every sequence.

    Computing takes its bytes over the memory bandwidth of the device or its operations over the peak, whichever is
    longer; collectives are simulated message by message among it, on the planned schedule of their size.

    Args:
        topology: The machine.
        model: Its sizes, or a name of `MODELS`.
        context: Tokens of each sequence before the new one.
        method: A name of `METHODS`.
        batch: Sequences.
        ranks: Endpoint id of every rank; None puts one rank on every endpoint.
        device: What holds a rank, or a name of `DEVICES`; None: as the topology's endpoints are named.
        weights: "sharded": all ranks share them (tensor parallelism), with two allreduces a layer; "replicated": each
            has all of them.
        collectives: "planned"; or, for those that they have over all ranks, an algorithm of a library, whose model
            has its launch, or "switch-sum", with one launch.
        launch_us: What a round of a planned collective costs to start, and a message of the ring.
        efficiency: Share of the data sheet's figures that kernels reach.
        kernel_us: What a phase of computing takes beside.

    Raises:
        PlanError: A name is unknown, an argument is out of range, or the method needs sharded weights.
    """
    shape = model_shape(model) if isinstance(model, str) else model
    figures = recognise_device(topology) if device is None else device
    figures = device_figures(figures) if isinstance(figures, str) else figures
    if method not in METHODS:
        raise PlanError(f"method {method!r}: expected one of {', '.join(METHODS)}")
    if weights not in (SHARDED, REPLICATED):
        raise PlanError(f"weights {weights!r}: expected {SHARDED} or {REPLICATED}")
    if METHODS[method].by_heads and weights == REPLICATED and shape.hidden:
        raise PlanError(f"method {method}: leaves each rank the output of its heads, so weights must be {SHARDED}")
    if context < 1 or batch < 1 or not 0 < efficiency <= 1 or min(launch_us, kernel_us) < 0:
        raise PlanError(
            f"context {context}, batch {batch}, efficiency {efficiency}: expected at least one token and sequence, an "
            "efficiency in (0, 1], and times of at least 0 us"
        )
    ends = place_ranks(topology, ranks)
    costs = LayerCosts(shape, figures, context, batch, efficiency, kernel_us)
    folding = [device.id for device in topology.devices if device.in_network is not None]
    program = RankProgram(ends, folding)
    found = _Collectives(topology, ends, collectives, launch_us)
    layer = Layer(costs, program, found.work, len(ends), weights == SHARDED, launch_us)
    marks = []
    for _ in range(min(SIMULATED_LAYERS, shape.layers)):
        _layer(layer, method)
        marks.append(program.last)
    _head(layer)
    timeline = simulate(program.builder.build(), topology)
    ends_us = tuple(float(timeline.arrival_us[last].max()) for last in marks)
    kv_bytes = round(batch * context / len(ends) * shape.kv_token_bytes * shape.layers)
    return DecodeStep(shape, method, context, batch, ends, timeline, ends_us, kv_bytes)


def _layer(layer: Layer, method: str) -> None:
    """Projections, attention, and the MLP; with shared weights a sum over the ranks after each half."""
    costs, model, ranks = layer.costs, layer.costs.model, layer.ranks
    share = ranks if layer.sharded else 1
    if model.hidden:
        own = helix_groups(model.kv_heads, ranks) if method == "helix" else share
        layer.program.compute(costs.weights_us(model.qkv_weights / own), "projections")
    METHODS[method].attention(layer)
    for numbers, label in ((model.output_weights, "output projection"), (model.mlp_weights, "MLP")):
        if numbers:
            layer.program.compute(costs.weights_us(numbers / share), label)
            if layer.sharded:
                layer.collective("allreduce", costs.value_bytes(model.hidden), f"sum after {label}")


def _head(layer: Layer) -> None:
    """The head, shared as the weights are, and the best token of every sequence."""
    costs, model = layer.costs, layer.costs.model
    if model.head_weights:
        layer.program.compute(costs.weights_us(model.head_weights / (layer.ranks if layer.sharded else 1)), "head")
        if layer.sharded:
            layer.collective("allgather", layer.ranks * costs.batch * CHOICE_BYTES, "best tokens")


class _Collectives:
    """The work of every collective of a step, each planned once."""

    def __init__(self, topology: Topology, ends: tuple[str, ...], name: str, launch_us: float) -> None:
        self._topology, self._ends, self._launch_us = replace(topology, launch_us=launch_us), ends, launch_us
        self._library = None if name in (PLANNED, SWITCH_SUM) else algorithm(name)
        self._in_switches = name == SWITCH_SUM
        self._known: dict[tuple[str, int, tuple[int, ...] | None], Work] = {}

    def work(self, collective: str, payload_bytes: int, ranks: tuple[int, ...] | None) -> Work:
        """Return the work of a collective over all ranks, or over these."""
        key = collective, payload_bytes, ranks
        if key not in self._known:
            self._known[key] = self._found(collective, payload_bytes, ranks)
        return self._known[key]

    def _found(self, collective: str, payload_bytes: int, ranks: tuple[int, ...] | None) -> Work:
        ends = self._ends if ranks is None else tuple(self._ends[rank] for rank in ranks)
        if self._library is not None and ranks is None and collective in self._library.collectives:
            return work_of(self._library.name, self._topology, collective, payload_bytes, ranks=ends)
        if self._in_switches and ranks is None and collective == "allreduce":
            return switch_sum(self._topology, payload_bytes, ranks=ends, launch_us=self._launch_us)
        whole = -(-payload_bytes // 4) * 4  # the planner's rows have 4 bytes
        if collective == "alltoall":
            whole = -(-whole // (4 * len(ends))) * 4 * len(ends)
        plans = [
            plan(self._topology, collective, payload_bytes=whole, ports=ports, ranks=ends)
            for ports in sorted({1, min(GROUP_PORTS, len(ends) - 1) if self._launch_us else 1})
        ]
        best = min(plans, key=lambda each: each.figures.predicted_us)
        return of_plan(best, launch_us=self._launch_us)
