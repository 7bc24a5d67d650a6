"""What a machine is: devices, directed links, and the pairs its tools speak of.

All classes are frozen tuples of plain values, so a topology hashes, compares and pickles nowhere: it travels
as JSON (`topocomm.topology.readers.plain.topology_json`). Units: `us` is microseconds, `gb_per_s` is 10^9 bytes per
second in one direction. A figure that no source gave is `None`, never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from topocomm.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx as nx

DeviceKind = Literal["gpu", "cpu", "nic", "switch", "numa", "host"]
FigureSource = Literal["read", "table", "measured", "assumed"]
InNetworkKind = Literal["nvls", "sharp"]

DEVICE_KINDS: tuple[str, ...] = get_args(DeviceKind)
IN_NETWORK_KINDS: tuple[str, ...] = get_args(InNetworkKind)
FIGURE_SOURCES: tuple[str, ...] = get_args(FigureSource)
ENDPOINT_KINDS = ("gpu", "cpu")


class Device(NamedTuple):
    """One part of the machine. Endpoints (`gpu`, `cpu` = a set of cores) can hold ranks; the others forward."""

    id: str
    kind: DeviceKind
    host: str = "host0"
    name: str | None = None
    """The operating system's or vendor's name (`mlx5_0`, `NVIDIA H100 80GB HBM3`)."""
    numa: int | str | None = None
    """NUMA node number, or the list that the source prints where it names several (`0-1`)."""
    cpu_affinity: str | None = None
    """CPU list as the source prints it (`0-55,112-167`); for a `cpu`, the cores it stands for."""
    bus_id: str | None = None
    """PCI address with domain, where the source gives one."""
    in_network: InNetworkKind | None = None
    """Of a switch that can reduce by itself: how (`in_network.IN_NETWORK`). No plan uses it, so no digest has it."""


class Link(NamedTuple):
    """One direction of a connection between two devices."""

    src: str
    dst: str
    kind: str
    lanes: int | None = None
    gb_per_s: float | None = None
    latency_us: float | None = None
    gap_us: float | None = None
    """Least time between two messages (LogGP's g); None is 'no limit known'."""
    gb_per_s_source: FigureSource | None = None
    latency_us_source: FigureSource | None = None


class Pair(NamedTuple):
    """What a source says of two devices, in the source's own code (`NV18`, `SYS`, `XGMI`)."""

    a: str
    b: str
    code: str | None
    gb_per_s: float | None = None
    latency_us: float | None = None
    gb_per_s_source: FigureSource | None = None
    latency_us_source: FigureSource | None = None


class RankPlace(NamedTuple):
    """Where one rank of a running job sits."""

    rank: int
    host: str
    device: str
    nic: str | None = None


@dataclass(frozen=True)
class Topology:
    """A machine or a cluster: devices, directed links, pairs, the places of ranks, and warnings of its reader.

    Raises:
        TopologyError: A device id is used twice, a link names a device that does not exist, or a launch takes less
            than no time.
    """

    name: str
    source: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: tuple[Pair, ...] = ()
    ranks: tuple[RankPlace, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    launch_us: float | None = None
    """What starting a round costs beside its messages, as the kernel launch of a host-driven plan on GPUs; None is 'not
    known' and counts as nothing. It is of the software that runs, so no digest has it."""

    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What a source says beyond devices, links and pairs, as plain JSON values under the source's own words: rings and
    trees of a log, graphs of a file, capabilities of pairs, weights and hops. For people and tools; no plan uses it, so
    no digest has it."""

    def __post_init__(self) -> None:
        if self.launch_us is not None:
            object.__setattr__(self, "launch_us", self._time_us(self.launch_us))
        seen: set[str] = set()
        for device in self.devices:
            if device.id in seen:
                raise TopologyError(f"topology {self.name!r}: device id {device.id!r} is used twice")
            seen.add(device.id)
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in seen:
                    raise TopologyError(
                        f"topology {self.name!r}: link {link.src!r} -> {link.dst!r} names the unknown device {end!r}"
                    )

    def _time_us(self, given: object) -> float:
        """A figure of the caller's as a float: equal ones must give equal plans, byte for byte."""
        try:
            time_us = nan if isinstance(given, (bool, str)) else float(given)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            time_us = nan
        if not 0 <= time_us < inf:
            raise TopologyError(f"topology {self.name!r}: launch_us {given!r}: expected a time of at least 0 us")
        return time_us

    @cached_property
    def by_id(self) -> dict[str, Device]:
        """Devices by id."""
        return {device.id: device for device in self.devices}

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """Ids of the devices that ranks run on, in file order: the GPUs, or the CPUs where there is no GPU."""
        gpus = tuple(d.id for d in self.devices if d.kind == "gpu")
        return gpus or tuple(d.id for d in self.devices if d.kind == "cpu")

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts that have endpoints, in order of first appearance (network switches sit on none)."""
        return tuple(dict.fromkeys(self.by_id[end].host for end in self.endpoints))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over devices and links alone: what a plan depends on.

        The topology's name, its warnings and pairs, what switches could reduce and what a launch costs do not count.
        """
        import hashlib
        import json

        counted = Device._fields.index("in_network")
        plain = json.dumps([[device[:counted] for device in self.devices], self.links], separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()

    @property
    def graph(self) -> nx.DiGraph:
        """The networkx view, built on demand (importing networkx takes about 0.3 s).

        Nodes carry the fields of their Device, edges those of their Link; parallel links of one direction become
        one edge with the sum of their bandwidths.
        """
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        for device in self.devices:
            graph.add_node(device.id, **device._asdict())
        for link in self.links:
            known = graph.get_edge_data(link.src, link.dst)
            if known is None:
                graph.add_edge(link.src, link.dst, **link._asdict())
            elif known["gb_per_s"] is not None and link.gb_per_s is not None:
                known["gb_per_s"] += link.gb_per_s
        return graph
