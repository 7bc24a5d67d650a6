"""The fields of a Plan: a proved schedule on a topology, its figures, and the certificate beside the bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from topocomm.planning.collectives import Collective
from topocomm.planning.cost.cost_models import PortModel
from topocomm.planning.proof.verify import Proof
from topocomm.planning.schedule.schedule import Schedule

Objective = Literal["latency", "rounds", "throughput", "auto"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
PORT_MODELS: tuple[str, ...] = get_args(PortModel)


@dataclass(frozen=True)
class Certificate:
    """Bounds that no schedule can beat, and the plan's distance from the one of its own objective.

    Attributes:
        gap: The plan's figure of its objective over that bound (of throughput, the bound over the figure).
        argument: Of that bound, in words.
        witness: Of that bound, as plain JSON data that it can be derived from again (`check_certificate`). Of
            objective "auto" the bound is that of latency or of throughput, whichever takes this payload longer;
            `witness["bounds"]` says which.
        other_witnesses: Of the other bounds.
        proved_by_search: Of a plan above its bound: why no schedule is better, where an exhaustive search ended without
            one. It is not derived again by `check_certificate`. Empty where nothing is proved but the bound.
    """

    rounds_lower_bound: int
    alpha_lower_bound_us: float
    throughput_upper_bound_gb_per_s: float | None
    gap: float
    argument: str
    witness: dict[str, Any]
    other_witnesses: tuple[dict[str, Any], ...]
    proved_by_search: str = ""


@dataclass(frozen=True)
class PlanFigures:
    """What a plan costs; the fields are those of the plan JSON."""

    rounds: int
    transfers: int
    wire_bytes: int
    scratch_bytes: int
    alpha_us: float
    predicted_us: float
    algbw_gb_per_s: float | None
    throughput_gb_per_s: float | None


@dataclass(frozen=True)
class Native:
    """A library's own collective beside the schedule of a plan; the fields are those of the plan JSON.

    Attributes:
        library: "nccl".
        call: The function that is called.
        dtype: Of the array.
        algorithm: The library's algorithm that its model has the time of.
        predicted_us: That time.
        planned_us: What the schedule takes, started by one launch where the plan counts none.
        chosen: Whether a call that has this plan goes by the library. Its order and bits are then the library's.
        why: In words, with what was assumed.
    """

    library: str
    call: str
    dtype: str
    algorithm: str
    predicted_us: float
    planned_us: float
    chosen: bool
    why: str


@dataclass(frozen=True, eq=False)
class PlanFields:
    """What a plan is made of; see `Plan`.

    Attributes:
        collective: What it computes.
        operator: Name of the operator it was planned for.
        order: "any": operands in rank order unless the operator commutes. "canonical": one tree over virtual shards,
            whatever the ranks (`collective.shards`).
        objective: What was minimised.
        topology_digest: Digest of the topology it was planned on.
        ranks: Endpoint id of every rank.
        payload_bytes: Bytes of one rank's value; of allgather and reduce_scatter, of the whole.
        algorithm: Name of the algorithm chosen.
        ports: K of the K-port model.
        port_model: alpha or loggp.
        figures: What it costs.
        proof: What was proved of the schedule.
        certificate: How far it can be from the optimum.
        schedule: Who sends what when.
        assumed: Figures that the topology did not know, in words.
        launch_us: What every round costs beside its messages, counted in `predicted_us`.
        native: The library's own collective, where that is in question. A plan that is given to a call is executed by
            its schedule all the same.
    """

    collective: Collective
    operator: str
    order: str
    objective: Objective
    topology_digest: str
    ranks: tuple[str, ...]
    payload_bytes: int
    algorithm: str
    ports: int
    port_model: PortModel
    figures: PlanFigures
    proof: Proof
    certificate: Certificate
    schedule: Schedule
    assumed: tuple[str, ...] = ()
    launch_us: float = 0.0
    native: Native | None = None

    @property
    def native_call(self) -> str:
        """The library's function that was chosen over the schedule; "" where none was."""
        return self.native.call if self.native is not None and self.native.chosen else ""

    @property
    def predicted_us(self) -> float:
        """The predicted time of what was chosen."""
        return self.native.predicted_us if self.native is not None and self.native.chosen else self.figures.predicted_us

    @property
    def rounds(self) -> int:
        """Rounds that have a transfer."""
        return self.figures.rounds
