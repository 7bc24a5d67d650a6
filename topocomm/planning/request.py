"""What is asked of the planner, and what it chooses from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topocomm.errors import PlanError
from topocomm.operators.operator import Layout, Operator
from topocomm.planning.collectives import Collective
from topocomm.planning.cost import PortModel
from topocomm.planning.plan import Objective
from topocomm.planning.schedule import Schedule

Build = Callable[[], Schedule]
Builds = Iterator[tuple[str, Build]]
"""Names of algorithms, and what makes their schedules."""
FEW_RANKS = 16


@dataclass(frozen=True)
class Limits:
    """What a plan may use: None is no limit.

    Attributes:
        max_trees: Trees per root of packed trees.
        max_scratch_bytes: Bytes beside the caller's own value, on the rank that needs most.
    """

    max_trees: int | None = None
    max_scratch_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.max_trees is not None and self.max_trees < 1:
            raise PlanError(f"max_trees {self.max_trees}: expected at least 1 tree per root")
        if self.max_scratch_bytes is not None and self.max_scratch_bytes < 0:
            raise PlanError(f"max_scratch_bytes {self.max_scratch_bytes}: expected 0 or more")


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Request:
    """What is to be planned, beside the topology."""

    collective: Collective
    operator: Operator
    layout: Layout
    endpoints: tuple[str, ...]
    objective: Objective
    ports: int
    port_model: PortModel
    cores: int = 0
    """Of ranks that share one memory; 0 where links are what counts."""
    limits: Limits = NO_LIMITS
    launch_us: float = 0.0
    """Of every round, beside its messages."""

    @property
    def bytes_count(self) -> bool:
        """Whether algorithms that only save bytes are worth planning: on few ranks always."""
        return self.objective in ("auto", "throughput") or len(self.endpoints) <= FEW_RANKS

    @property
    def payload_bytes(self) -> int:
        """Bytes of one rank's value; of allgather and reduce_scatter, of the whole."""
        return self.layout.rows * self.layout.row_bytes
