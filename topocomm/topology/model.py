"""The model of a machine: devices, directed links, pairs of devices as tools name them.

All classes are frozen and hold plain values. Processes exchange topologies as JSON (`readers.plain.topology_json`).
Units: `us` is microseconds, `gb_per_s` is 10^9 bytes per second in one direction. A figure that no source gave is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from math import inf, nan
from pathlib import Path
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
    """A part of the machine. Endpoints (`gpu`, or `cpu`, a set of cores) can hold ranks; other devices forward."""

    id: str
    kind: DeviceKind
    host: str = "host0"
    name: str | None = None
    """Name by the operating system or vendor (`mlx5_0`, `NVIDIA H100 80GB HBM3`)."""
    numa: int | str | None = None
    """Number of the NUMA node, or the source's list of several (`0-1`)."""
    cpu_affinity: str | None = None
    """CPU list as the source prints it (`0-55,112-167`); the cores of a `cpu`."""
    bus_id: str | None = None
    """PCI address with domain."""
    in_network: InNetworkKind | None = None
    """Technology of a switch that can reduce (`in_network.IN_NETWORK`); no part of the digest, as no plan uses it."""


class Link(NamedTuple):
    """One direction of a connection between two devices."""

    src: str
    dst: str
    kind: str
    lanes: int | None = None
    gb_per_s: float | None = None
    latency_us: float | None = None
    gap_us: float | None = None
    """Least time between two messages (LogGP's g)."""
    gb_per_s_source: FigureSource | None = None
    latency_us_source: FigureSource | None = None


class Pair(NamedTuple):
    """Two devices, with the source's own code (`NV18`, `SYS`, `XGMI`)."""

    a: str
    b: str
    code: str | None
    gb_per_s: float | None = None
    latency_us: float | None = None
    gb_per_s_source: FigureSource | None = None
    latency_us_source: FigureSource | None = None


class RankPlace(NamedTuple):
    """Place of one rank of a running job."""

    rank: int
    host: str
    device: str
    nic: str | None = None


@dataclass(frozen=True)
class Topology:
    """A machine or a cluster: devices, directed links, pairs, places of ranks, and warnings of its reader.

    Raises:
        TopologyError: A device id is used twice, a link names an unknown device, or `launch_us` is negative.
    """

    name: str
    source: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: tuple[Pair, ...] = ()
    ranks: tuple[RankPlace, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    launch_us: float | None = None
    """Time to start a round beside its messages, such as a kernel launch; None counts as 0. No part of the digest, as
    it depends on the software that runs."""

    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further facts of the source as plain JSON values: rings and trees of a log, graphs, capabilities, weights, hops.
    No part of the digest, as no plan uses them."""

    def __post_init__(self) -> None:
        if self.launch_us is not None:
            try:  # a float, so that equal figures give equal plans, byte for byte
                time_us = nan if isinstance(self.launch_us, (bool, str)) else float(self.launch_us)
            except (TypeError, ValueError):
                time_us = nan
            if not 0 <= time_us < inf:
                raise TopologyError(
                    f"topology {self.name!r}: launch_us {self.launch_us!r}: expected a time of at least 0 us"
                )
            object.__setattr__(self, "launch_us", time_us)
        ids: set[str] = set()
        for device in self.devices:
            if device.id in ids:
                raise TopologyError(f"topology {self.name!r}: device id {device.id!r} is used twice")
            ids.add(device.id)
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in ids:
                    raise TopologyError(
                        f"topology {self.name!r}: link {link.src!r} -> {link.dst!r} names the unknown device {end!r}"
                    )

    def __repr__(self) -> str:
        return f"<Topology {self.name} ({self.source}): {_module('draw.names').counts(self)}>"

    def _repr_html_(self) -> str:
        """The machine in a notebook: its picture."""
        picture: str = _module("draw.notebook").html(self)
        return picture

    def text(self) -> str:
        """Return the machine as a tree in at most 80 columns, as `topocomm inspect` prints it."""
        words: str = _module("draw.topology_text").render(
            self, next_command="topocomm.plan(topology, payload_bytes=65536)"
        )
        return words

    def svg(self) -> str:
        """Return the machine as a picture, an SVG file."""
        picture: str = _module("draw.svg.machine_svg").render(self)
        return picture

    def html(self) -> str:
        """Return a page of one file with the picture to move and zoom, and the facts of each part."""
        page: str = _module("draw.html_page").render(self)
        return page

    def save(self, path: str | Path) -> None:
        """Write the topology JSON (`topocomm.topology/1`), which `topocomm.load(path)` reads."""
        document: str = _module("readers.plain.topology_json").dumps(self)
        Path(path).write_text(document)

    @cached_property
    def by_id(self) -> dict[str, Device]:
        """Devices by id."""
        return {device.id: device for device in self.devices}

    @cached_property
    def endpoints(self) -> tuple[str, ...]:
        """Ids of the devices that ranks run on, in file order: GPUs, or CPUs where there is no GPU."""
        gpus = tuple(d.id for d in self.devices if d.kind == "gpu")
        return gpus or tuple(d.id for d in self.devices if d.kind == "cpu")

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts that have endpoints, in order of first appearance."""
        return tuple(dict.fromkeys(self.by_id[end].host for end in self.endpoints))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over devices (without `in_network`) and links: what plans depend on."""
        import hashlib
        import json

        counted = Device._fields.index("in_network")
        plain = json.dumps([[device[:counted] for device in self.devices], self.links], separators=(",", ":"))
        return hashlib.sha256(plain.encode()).hexdigest()

    @property
    def graph(self) -> nx.DiGraph:
        """The networkx graph, built at each call.

        Nodes have the fields of their Device, edges those of their Link; parallel links become one edge with the sum of
        their GB/s.
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


def _module(name: str) -> Any:
    """A module of this room, which imports this one; loaded when it is used."""
    return import_module(f"topocomm.topology.{name}")
