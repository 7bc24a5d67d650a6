"""The fields of a Plan: a proved schedule on a topology, its figures, and its certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from topocomm.planning.collectives import Collective
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.proof.verify import Proof
from topocomm.planning.schedule.schedule import Schedule
from topocomm.topology.model import Topology

Objective = Literal["latency", "rounds", "throughput", "auto"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
PORT_MODELS: tuple[str, ...] = get_args(PortModel)


@dataclass(frozen=True)
class Certificate:
    """Bounds that no schedule can beat, and the plan's distance from the bound of its objective.

    Attributes:
        argument: Argument of the bound of the objective, in words.
        witness: Witness of that bound, plain JSON data from which `check_certificate` derives it again.
        predicted_lower_bound_us: Least time with these bytes, of one launch too; None but for objective "auto".
        proved_by_search: For a plan above its bound: why an exhaustive search proves that no schedule is better;
            `check_certificate` does not derive it again. Empty where only the bound is proved.
    """

    rounds_lower_bound: int
    alpha_lower_bound_us: float
    throughput_upper_bound_gb_per_s: float | None
    gap: float
    argument: str
    witness: dict[str, Any]
    other_witnesses: tuple[dict[str, Any], ...]
    predicted_lower_bound_us: float | None = None
    proved_by_search: str = ""


@dataclass(frozen=True)
class PlanFigures:
    """Costs of a plan; the fields are those of the plan JSON."""

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
        algorithm: What the library's tuner takes.
        predicted_us: Time of that algorithm, by the model that `topocomm simulate` has of it.
        planned_us: Time of the schedule, counted alike: with one launch where the plan counts none, and with the share
            of the links' nominal rates that payloads get.
        chosen: Whether a call with this plan uses the library. Its order and bits are then the library's.
        why: Reason in words, with assumptions.
    """

    library: str
    call: str
    dtype: str
    algorithm: str
    predicted_us: float
    planned_us: float
    chosen: bool
    why: str


@dataclass(frozen=True)
class AsSum:
    """The same reduction as one SUM, beside the plan: a comparison, which no call acts upon.

    Attributes:
        payload_bytes: What is added; 0 where nothing is, as in canonical order.
        takes_reference: Whether all ranks must know a reference beforehand.
        ways: The plan itself first: `sum_comparison.Way` as plain data, each with a predicted time or null.
        least: The way with the least predicted time.
        why: Reason in words.
    """

    payload_bytes: int
    takes_reference: bool
    ways: tuple[dict[str, Any], ...]
    least: str
    why: str


class Candidate(NamedTuple):
    """An algorithm that a plan was chosen from, with its costs.

    Attributes:
        transfers: Messages.
        times: What it takes, in units of the plan's own figure of its objective: 1.95 is 1.95 times as long.
        why: Why it was chosen, or not, in words.
    """

    algorithm: str
    predicted_us: float
    alpha_us: float
    rounds: int
    transfers: int
    wire_bytes: int
    throughput_gb_per_s: float | None
    times: float
    why: str


@dataclass(frozen=True, eq=False)
class PlanFields:
    """The fields of a `Plan`.

    Attributes:
        operator: Its name.
        order: "any": operands in rank order unless the operator commutes. "canonical": one tree over virtual shards,
            whatever the ranks (`collective.shards`).
        objective: Figure that was minimised.
        ranks: Endpoint id of every rank.
        payload_bytes: Bytes of one rank's value; of those in parts but alltoall, of the whole.
        ports: K of the K-port model.
        assumed: Assumptions on figures that the topology did not have, in words.
        launch_us: Cost of a round beside its messages, counted in `predicted_us`.
        native: The library's own collective, where it was compared. A call that is given this plan executes its
            schedule all the same.
        as_sum: The comparison with one SUM, where `topocomm plan` made it.
        topology: The machine; None of a plan from a file. This and `request` are no part of the file or the digest.
        request: What was planned, a `planning.request.Request`.
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
    as_sum: AsSum | None = None
    topology: Topology | None = None
    request: Any = None

    @property
    def native_call(self) -> str:
        """The library's function if it was chosen over the schedule, else ""."""
        return self.native.call if self.native is not None and self.native.chosen else ""

    @property
    def predicted_us(self) -> float:
        """The predicted time of the schedule, as in the plan JSON, whatever a call takes."""
        return self.figures.predicted_us

    @property
    def call_us(self) -> float:
        """The predicted time of a call: of the library's if it was chosen, else of the schedule."""
        return self.native.predicted_us if self.native is not None and self.native.chosen else self.predicted_us

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; 0 where there are no rows."""
        return self.payload_bytes // max(self.collective.counted(self.schedule.rows), 1)

    @property
    def rounds(self) -> int:
        """Rounds that have a transfer."""
        return self.figures.rounds
