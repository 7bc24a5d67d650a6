"""Several hosts as one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topocomm.errors import TopologyError
from topocomm.topology.links import PATH_LATENCY_US, both_ways
from topocomm.topology.model import Device, Link, Pair, Topology
from topocomm.topology.network.port_rates import join_network

NETWORK = Device("network", "switch", "network", "network, its switches not known")
"""The network between hosts, its switches unknown. Network switches sit on the host name `network`."""


def prefixed(topology: Topology, host: str, switch: str | None = None) -> Topology:
    """Return the host under another name, its device ids `host/...`; a network switch keeps its id, or has the new."""
    ids = {d.id: (switch or d.id) if d.host == NETWORK.host else f"{host}/{d.id}" for d in topology.devices}
    hosts = {d.host: d.host if d.host == NETWORK.host else host for d in topology.devices}
    return replace(
        topology,
        name=host,
        devices=tuple(d._replace(id=ids[d.id], host=hosts[d.host]) for d in topology.devices),
        links=tuple(Link(ids[link.src], ids[link.dst], *link[2:]) for link in topology.links),
        pairs=tuple(Pair(ids[pair.a], ids[pair.b], *pair[2:]) for pair in topology.pairs),
        ranks=(),
    )


def host_name(topology: Topology, remedy: str = "only captures of one host combine") -> str:
    """Return the host of a capture; of several hosts, or none, raise a TopologyError that ends in the remedy."""
    hosts = {d.host for d in topology.devices} - {NETWORK.host}
    if len(hosts) != 1:
        raise TopologyError(f"topology {topology.name!r} has {len(hosts)} hosts; {remedy}")
    return hosts.pop()


def merge_hosts(topologies: Sequence[Topology]) -> Topology:
    """Return one cluster of several hosts: ids `host/...`, and one network switch that joins their NICs.

    A host without NICs joins the network by its NUMA nodes, or by a device for the host where it has none. Links to the
    network have the rates of the NICs' ports, or what `join_network` assumes of them. Hosts of the same name
    are called `host0`, `host1`, ... instead. Hosts and devices keep their order; places of ranks are dropped. A single
    topology is returned as it is.

    Raises:
        TopologyError: No topology is given, or one of them is a cluster already.
    """
    if not topologies:
        raise TopologyError("merge_hosts: no topology given; expected at least one")
    if len(topologies) == 1:
        return topologies[0]
    remedy = "several inputs must be one host each (a cluster is one input alone)"
    names = [host_name(topology, remedy) for topology in topologies]
    if len(set(names)) < len(names):
        names = [f"host{i}" for i in range(len(names))]
    hosts = [_joined(prefixed(topology, name)) for topology, name in zip(topologies, names, strict=True)]
    shared = {d.id: d for host in hosts for d in host.devices if d.host == NETWORK.host}
    return Topology(
        name=f"{len(hosts)} hosts",
        source=", ".join(dict.fromkeys(host.source for host in hosts)),
        devices=(*(d for host in hosts for d in host.devices if d.id not in shared), *shared.values()),
        links=tuple(link for host in hosts for link in host.links),
        pairs=tuple(pair for host in hosts for pair in host.pairs),
        warnings=tuple(dict.fromkeys(f"{host.name}: {text}" for host in hosts for text in host.warnings)),
        launch_us=max((host.launch_us for host in hosts if host.launch_us is not None), default=None),
        facts={host.name: dict(host.facts) for host in hosts if host.facts},
    )


def _joined(host: Topology) -> Topology:
    """The host with links to the network, if it has none yet."""
    shared = {d.id for d in host.devices if d.host == NETWORK.host}
    if any(link.dst in shared for link in host.links):
        return host
    linked = {link.src for link in host.links}
    devices, links = list(host.devices), list(host.links)
    doors = [d.id for d in devices if d.kind == "nic" and d.id in linked]
    doors = doors or [d.id for d in devices if d.kind in ("numa", "host") and d.id in linked]
    if not doors:
        door = Device(f"{host.name}/host", "host", host.name, "way to the network, not known")
        devices.append(door)
        doors = [door.id]
        for end in host.endpoints:
            links += both_ways(end, door.id, "pcie", latency_us=PATH_LATENCY_US["SYS"] / 2)
    network, notes = join_network(host, doors, NETWORK.id)
    return replace(
        host,
        devices=(*devices, NETWORK),
        links=tuple[Link, ...]([*links, *network]),
        ranks=(),
        warnings=(*host.warnings, *notes),
    )
