"""A planning request, and the names and builders of algorithms that the planner chooses from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from topocomm.errors import PlanError
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator, as_operator
from topocomm.planning.collectives import Collective
from topocomm.planning.cost.port_time import PortModel
from topocomm.planning.plan import OBJECTIVES, PORT_MODELS, Objective
from topocomm.planning.schedule.schedule import Schedule
from topocomm.topology.model import ENDPOINT_KINDS, Topology

Build = Callable[[], Schedule]
Builds = Iterator[tuple[str, Build]]
"""Name and builder of each algorithm."""


@dataclass(frozen=True)
class BoundedBuild:
    """A builder of a schedule that takes `least_us` at least: not asked where another is known to take less."""

    build: Build
    least_us: float

    def __call__(self) -> Schedule:
        """Return the schedule."""
        return self.build()


@dataclass(frozen=True)
class LikelyBuild:
    """A builder of a schedule that may well take least: its time is found first, and leaves out others."""

    build: Build

    def __call__(self) -> Schedule:
        """Return the schedule."""
        return self.build()


FEW_RANKS = 16
"""Rank count up to which algorithms that only save bytes are planned for every objective."""


GROUP_PEERS = 7
"""Peers that one group serves where hosts have fewer GPUs: as on a host of eight. More messages at once share NICs."""


@dataclass(frozen=True)
class Limits:
    """Limits of a plan, on trees per root, and on bytes beside the caller's own value on the rank that needs most."""

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
    """One collective to plan for given endpoints. All ranks make equal requests; plans are cached by request.

    Attributes:
        operator: Operator of the reduction; others move values unchanged.
        layout: Shape and bytes of one rank's value; of collectives in parts, of the whole.
        endpoints: Endpoint id of every rank.
        objective: Figure to minimise: alpha time ("latency"), rounds, time for long payloads ("throughput"), or the
            predicted time for this payload ("auto").
        ports: Messages that an endpoint can send, and receive, at once.
        cores: Cores shared by ranks of one memory: objective "auto" then compares candidates by `memory_us`. 0: by
            the links.
        launch_us: Cost of starting a round beside its messages.
        native: Whether the plan predicts the time of a library's own collective (`native.py`). The schedule does not
            depend on it.

    Raises:
        PlanError: A field is out of range, or fields do not fit each other.
    """

    collective: Collective
    operator: Operator
    layout: Layout
    endpoints: tuple[str, ...]
    objective: Objective
    ports: int
    port_model: PortModel
    cores: int = 0
    limits: Limits = NO_LIMITS
    launch_us: float = 0.0
    native: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        ranks = len(self.endpoints)
        if self.collective.ranks != ranks:
            raise PlanError(f"{self.collective}: expected an endpoint for each rank, got {ranks} endpoints")
        if self.objective not in OBJECTIVES:
            raise PlanError(f"objective {self.objective!r}: expected one of {', '.join(OBJECTIVES)}")
        if self.port_model not in PORT_MODELS:
            raise PlanError(f"port model {self.port_model!r}: expected one of {', '.join(PORT_MODELS)}")
        most = max(1, ranks - 1)
        if not 1 <= self.ports <= most:
            raise PlanError(f"ports {self.ports}: expected 1 to {most} with {ranks} ranks")

    @property
    def bytes_count(self) -> bool:
        """Whether algorithms that only save bytes are planned."""
        return self.objective in ("auto", "throughput") or len(self.endpoints) <= FEW_RANKS

    @property
    def payload_bytes(self) -> int:
        """Bytes of one rank's value; of the others in parts than alltoall, of the whole."""
        return self.collective.counted(self.layout.rows) * self.layout.row_bytes


def port_model_of(objective: Objective) -> PortModel:
    """Return the default port model of an objective."""
    return "loggp" if objective == "auto" else "alpha"


def group_ports(topology: Topology, endpoints: Sequence[str]) -> int:
    """Return the messages that one group of a rank between GPUs starts: to all peers on a host, GROUP_PEERS or more.

    Over several hosts as many again, and one of its own rail each: while slices of a value go between hosts, those
    before and after them go inside. With fewer the ports' order would hold up what a group posts together.
    """
    on_host = Counter(topology.by_id[end].host for end in endpoints)
    peers = max(max(on_host.values()) - 1, GROUP_PEERS)
    return max(1, min(len(endpoints) - 1, peers if len(on_host) == 1 else 2 * (peers + 1)))


def on_every_endpoint(topology: Topology, collective: Collective, operator: Operator, layout: Layout) -> Request:
    """Return the request with one rank on every endpoint, objective "auto", one port, and the topology's launches."""
    endpoints, launch_us = place_ranks(topology, None), topology.launch_us or 0.0
    return Request(collective, operator, layout, endpoints, "auto", 1, port_model_of("auto"), launch_us=launch_us)


def layout_of(operator: Operator, payload_bytes: int) -> Layout:
    """Return the layout of `payload_bytes` of an operator's rows at its default sizes; 0 bytes have no rows.

    Raises:
        PlanError: They are no whole number of rows, or not the one value of an operator without rows.
        OperatorError: It is no operator, or an axis of it has no default size.
    """
    row_bytes = as_operator(operator).default_layout(1).row_bytes
    if not operator.splittable and payload_bytes not in (0, row_bytes):
        raise PlanError(
            f"{payload_bytes} bytes: expected the {row_bytes} bytes of one value of operator {operator.name!r}, which "
            "has no rows, or 0"
        )
    if payload_bytes < 0 or payload_bytes % row_bytes:
        raise PlanError(
            f"{payload_bytes} bytes: expected a whole number of rows of operator {operator.name!r}, "
            f"{row_bytes} bytes each, such as {nearest_sizes(payload_bytes, row_bytes)}"
        )
    rows = payload_bytes // row_bytes
    layout = operator.default_layout(rows)
    return layout if layout.rows == rows else replace(layout, leading=(rows,))


def nearest_sizes(payload_bytes: int, row_bytes: int) -> str:
    """Return the sizes in whole rows around one that is none, in words: `65532 or 66048`."""
    below = max(payload_bytes, 0) // row_bytes * row_bytes
    return f"{below} or {below + row_bytes}" if below else str(row_bytes)


def whole_layout(layout: Layout, collective: Collective) -> Layout:
    """Return the layout of a payload that is counted as `Collective.counted`, all of it."""
    whole = sum(collective.parts) if collective.parts else layout.rows
    return layout if whole == layout.rows else replace(layout, leading=(whole,))


def place_ranks(topology: Topology, ranks: Sequence[str] | None) -> tuple[str, ...]:
    """Return the checked endpoint ids of all ranks; None puts one rank on every endpoint.

    Raises:
        PlanError: It is no topology, it has no endpoint, or a rank is on something that is none.
    """
    if not isinstance(topology, Topology):
        raise PlanError(
            f"topology: expected a topocomm.Topology, got {type(topology).__name__}; topocomm.load(path) reads one, "
            "topocomm.catalog(name) has one"
        )
    if not topology.endpoints:
        raise PlanError(f"topology {topology.name!r} has no endpoint (no gpu and no cpu): nothing to plan on")
    if ranks is None:
        return topology.endpoints
    if isinstance(ranks, str):
        raise PlanError(f"ranks {ranks!r}: expected a list of endpoint ids, one for each rank")
    for name in ranks:
        if name not in topology.by_id or topology.by_id[name].kind not in ENDPOINT_KINDS:
            known = ", ".join(topology.endpoints[:8]) + (", ..." if len(topology.endpoints) > 8 else "")
            raise PlanError(f"rank on {name!r}: not an endpoint of topology {topology.name!r}; it has {known}")
    if not ranks:
        raise PlanError("no ranks given; expected at least one endpoint")
    return tuple(ranks)
