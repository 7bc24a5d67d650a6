"""What libraries see of ranks on a machine: hosts that are alike, the links inside, the ports between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from topocomm.errors import PlanError
from topocomm.planning.routing.paths import PathFinder
from topocomm.topology.links import assume
from topocomm.topology.model import Topology

Inner = Literal["nvlink", "xgmi", "pcie", "memory"]
Generation = Literal["volta", "ampere", "ada", "hopper", "blackwell", "amd", "unknown"]

_LINKS: dict[int, Generation] = {6: "volta", 12: "ampere", 18: "hopper"}
"""NVLinks of a GPU, by generation."""
GPU_NAMES: tuple[tuple[str, Generation], ...] = (
    ("V100", "volta"),
    ("A100", "ampere"),
    ("A6000", "ampere"),
    ("3090", "ampere"),
    ("4090", "ada"),
    ("L40", "ada"),
    ("H100", "hopper"),
    ("H200", "hopper"),
    ("GH200", "hopper"),
    ("B200", "blackwell"),
    ("B300", "blackwell"),
    ("MI", "amd"),
)
"""Parts of names of devices and of topologies, by generation."""


@dataclass(frozen=True)
class JobShape:
    """Ranks of a job.

    Attributes:
        ranks: In order of rank, their endpoints.
        hosts: Groups of ranks that a fabric or a host's memory joins: hosts, or racks with one NVLink domain.
        per_host: Ranks of one group.
        inner: Links inside a group.
        inner_gb_per_s: Nominal GB/s out of one rank to all others of its group together.
        pair_gb_per_s: Nominal GB/s from one rank to another of its group.
        network_gb_per_s: Nominal GB/s out of one group over all its ports; 0 with one group.
        nics: Ports of a group; 0 with one group.
        peers: Ranks of its group that a rank has links of its own to; 0 behind a switch.
        reduces: Whether switches inside a group reduce (NVLink SHARP).
        generation: Of the devices.
    """

    ranks: tuple[str, ...]
    hosts: int
    per_host: int
    inner: Inner
    inner_gb_per_s: float
    pair_gb_per_s: float
    network_gb_per_s: float
    nics: int
    peers: int
    reduces: bool
    generation: Generation


def job_shape(topology: Topology, ranks: Sequence[str] | None = None, *, alike: bool = True) -> JobShape:
    """Return the shape of ranks on a topology, by default one on each endpoint.

    Args:
        topology: The machine.
        ranks: Endpoint id of every rank.
        alike: Whether groups must have as many ranks, one group after the other, as messages of the simulator need.
            Else ranks are taken group by group; each group counts as the fullest, with the ports of the emptiest.

    Raises:
        PlanError: There is one rank, or groups are not alike.
    """
    ends = tuple(topology.endpoints if ranks is None else ranks)
    if len(ends) < 2:
        raise PlanError(f"topology {topology.name!r}: a collective of libraries needs 2 ranks or more, got {len(ends)}")
    inner = _inner(topology, ends)
    group = _groups(topology, inner)
    if not alike:
        count = Counter(group[end] for end in ends)
        ends = tuple(sorted(ends, key=lambda end: (-count[group[end]], group[end])))
    sizes = [len(list(own)) for _, own in groupby(ends, key=lambda end: group[end])]
    if alike and (len(set(sizes)) > 1 or len(sizes) != len({group[end] for end in ends})):
        raise PlanError(
            f"topology {topology.name!r}: ranks on groups {sizes}: expected as many on each host, host by host"
        )
    hosts, per_host = len(sizes), sizes[0]
    first = set(ends[:per_host])
    finder = PathFinder(topology)
    ring = [(ends[i], ends[(i + 1) % per_host]) for i in range(per_host if inner == "pcie" else 1)]
    pair = min(finder.cheapest(*edge).gb_per_s for edge in ring) if per_host > 1 else 0.0
    fabric = [link for link in topology.links if link.kind == inner and link.src == ends[0]]
    reached = [link for link in fabric if link.dst in first or topology.by_id[link.dst].kind == "switch"]
    out = sum(_rate(link) for link in reached) if inner in ("nvlink", "xgmi") else pair
    out = out or pair  # links that join others, not this rank
    switched = any(topology.by_id[link.dst].kind == "switch" for link in fabric)
    nics, network = _network(topology, set(ends[-sizes[-1] :])) if hosts > 1 else (0, 0.0)
    if hosts > 1 and not network:
        network, nics = finder.cheapest(ends[0], ends[per_host]).gb_per_s, 1
    return JobShape(
        ranks=ends,
        hosts=hosts,
        per_host=per_host,
        inner=inner,
        inner_gb_per_s=out,
        pair_gb_per_s=pair,
        network_gb_per_s=network,
        nics=nics,
        peers=0 if switched or inner not in ("nvlink", "xgmi") else len(reached),
        reduces=sizes[-1] > 1 and any(topology.by_id[link.dst].in_network == "nvls" for link in fabric),
        generation=_generation(topology, ends[0]),
    )


def _rate(link: object) -> float:
    rate = getattr(link, "gb_per_s", None)
    return float(rate) if rate is not None else assume(getattr(link, "kind", "unknown")).gb_per_s


def _inner(topology: Topology, ends: tuple[str, ...]) -> Inner:
    """The fabric that joins the first rank to others, by kind."""
    if topology.by_id[ends[0]].kind == "cpu":
        return "memory"
    kinds = {link.kind for link in topology.links if link.src == ends[0]}
    return "nvlink" if "nvlink" in kinds else "xgmi" if "xgmi" in kinds else "pcie"


def _groups(topology: Topology, inner: Inner) -> dict[str, str]:
    """The group of every endpoint: its switch where a fabric spans hosts, else its host."""
    group = {end: topology.by_id[end].host for end in topology.endpoints}
    for link in topology.links:
        above = topology.by_id[link.dst]
        is_fabric = link.kind == inner and link.src in group and above.kind == "switch"
        if is_fabric and above.host != topology.by_id[link.src].host:
            group[link.src] = link.dst
    return group


def _network(topology: Topology, ranks: set[str]) -> tuple[int, float]:
    """(ports that lead out of the hosts of these ranks, GB/s of all together).

    Where each endpoint has ports of its own, those of endpoints without a rank are not used.
    """
    hosts = {topology.by_id[end].host for end in ranks}
    out = [
        link
        for link in topology.links
        if topology.by_id[link.src].kind == "nic"
        and topology.by_id[link.src].host in hosts
        and topology.by_id[link.dst].host not in hosts
    ]
    nics, rate = len({link.src for link in out}), sum(_rate(link) for link in out)
    ends = sum(topology.by_id[end].host in hosts for end in topology.endpoints)
    if nics >= ends > len(ranks):
        return nics * len(ranks) // ends, rate * len(ranks) / ends
    return nics, rate


def _generation(topology: Topology, end: str) -> Generation:
    words = f"{topology.by_id[end].name or ''} {topology.name}".upper()
    for part, generation in GPU_NAMES:
        if part in words:
            return generation
    links = [link for link in topology.links if link.src == end]
    if any(link.kind == "xgmi" for link in links):
        return "amd"
    own = [link for link in links if link.kind == "nvlink"]
    lanes = sum(link.lanes or 1 for link in own)
    rate = _rate(own[0]) / (own[0].lanes or 1) if own else 0.0
    return "blackwell" if rate >= 50 else _LINKS.get(lanes, "unknown")
