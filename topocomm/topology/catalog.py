"""Reference machines by name, and clusters of them: for plans without the hardware at hand.

Several hosts join by rails: NIC k of every host is on switch `rail<k>`, and a spine joins the rails without
loss. GPU to GPU over one rail takes 5.0 us (NCCL's network hop), over two rails and the spine 6.0 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.host_tree import PairKey, host_tree
from topocomm.topology.links import FABRIC_HOP_US, KINDS, NVSWITCH_HOP_US, PATH_LATENCY_US, both_ways
from topocomm.topology.merge import NETWORK, prefixed
from topocomm.topology.model import Device, InNetworkKind, Link, Pair, Topology

_CUBE_MESH = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)], 1),
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
}
"""NVLinks of DGX-1 V100 by GPU pair, as its `nvidia-smi topo -m` prints them: 6 per GPU."""

_MI250X_LINKS = {
    **dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
    **dict.fromkeys([(0, 6), (2, 4)], 2),
    **dict.fromkeys([(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)], 1),
}
"""xGMI links between the 8 dies of 4 MI250X: 4 inside a package, 1 or 2 between packages. Neighbours as in RCCL's
`tools/topo_expl/models/topo_8p_90a.xml`, single, dual and quad links as in Pearson, arXiv:2302.14827."""


class _Host(NamedTuple):
    """One host, what joins it to the network, and the speed of its ports."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: tuple[Pair, ...]
    port: str
    uplinks: tuple[Link, ...] = ()
    """GPU-NIC links that lead nowhere but to the network: part of a cluster only, because in one host they would
    count as bandwidth that no other GPU can use."""


def catalog(name: str, *, hosts: int = 1) -> Topology:
    """A reference system.

    With one host, ids are plain (`GPU0`); with more they are `h0/GPU0`, and rails and a spine join the NICs.
    Figures are nominal rates (`links.KINDS`); what is assumed says so.

    Args:
        name: One of `SYSTEMS`.
        hosts: How many of them, at least 1.

    Raises:
        TopologyError: No such system (the message lists them), or hosts < 1.
    """
    if name not in SYSTEMS:
        raise TopologyError(f"system {name!r} is not in the catalogue; it has {', '.join(SYSTEMS)}")
    if hosts < 1:
        raise TopologyError(f"system {name}: hosts must be at least 1, got {hosts}")
    host = SYSTEMS[name]()
    if hosts == 1:
        return Topology(name, "catalogue", host.devices, host.links, host.pairs)
    one = Topology(name, "catalogue", host.devices, (*host.links, *host.uplinks), host.pairs)
    many = [prefixed(one, f"h{i}") for i in range(hosts)]
    nics = [d.id for d in host.devices if d.kind == "nic"]
    rails = [Device(f"rail{i}", "switch", NETWORK.host, "rail switch") for i in range(len(nics))]
    spine = [Device("spine", "switch", NETWORK.host, "spine switch")] if len(rails) > 1 else []
    links = [link for each in many for link in each.links]
    port = both_ways("", "", host.port)[0][2:]
    for rail, nic in zip(rails, nics, strict=True):
        for each in many:
            end = f"{each.name}/{nic}"
            links += Link(end, rail.id, *port), Link(rail.id, end, *port)
        for top in spine:  # as many ports up as down
            links += both_ways(rail.id, top.id, host.port, lanes=hosts, latency_us=FABRIC_HOP_US)
    return Topology(
        name=f"{name} x {hosts}",
        source="catalogue",
        devices=(*(d for each in many for d in each.devices), *rails, *spine),
        links=tuple(links),
        pairs=tuple(pair for each in many for pair in each.pairs),
    )


def _numa(index: int) -> int:
    """Eight devices on two sockets."""
    return index // 4


def _gpus() -> list[Device]:
    return [Device(f"GPU{i}", "gpu", numa=_numa(i)) for i in range(8)]


def _nics(count: int) -> list[Device]:
    return [Device(f"NIC{i}", "nic", numa=_numa(i * 8 // count)) for i in range(count)]


def _coded(pairs: Mapping[PairKey, str], fabric: Iterable[Pair] = ()) -> tuple[Pair, ...]:
    """Pairs of the PCIe codes, those of the fabric in their place."""
    found = {pair: Pair(*pair, code, None, PATH_LATENCY_US[code], None, "assumed") for pair, code in pairs.items()}
    found.update({(pair.a, pair.b): pair for pair in fabric})
    return tuple(found.values())


def _by_socket(devices: list[Device], near: str, own: str) -> dict[PairKey, str]:
    """Codes of GPU-GPU and GPU-NIC pairs: `own` between a GPU and its NIC, `near` on one socket, else SYS."""
    codes = {}
    for a, b in combinations(devices, 2):
        if a.kind == "gpu":
            mine = b.kind == "nic" and a.id[3:] == b.id[3:]
            codes[a.id, b.id] = own if mine else near if a.numa == b.numa else "SYS"
    return codes


def _switched(kind: str, lanes: int, port: str, pcie: str, in_network: InNetworkKind | None = None) -> _Host:
    """Eight GPUs on NVSwitches, folded into one device as NCCL does, each with a NIC behind its PCIe switch."""
    gpus, nics = _gpus(), _nics(8)
    rate = KINDS[kind].gb_per_s * lanes
    links: list[Link] = []
    uplinks: list[Link] = []
    for gpu, nic in zip(gpus, nics, strict=True):
        links += both_ways(gpu.id, "nvswitch0", kind, lanes=lanes, latency_us=NVSWITCH_HOP_US)
        uplinks += both_ways(gpu.id, nic.id, pcie, latency_us=PATH_LATENCY_US["PIX"])
    fabric = [
        Pair(a.id, b.id, f"NV{lanes}", rate, 2 * NVSWITCH_HOP_US, "table", "assumed") for a, b in combinations(gpus, 2)
    ]
    devices = (*gpus, *nics, Device("nvswitch0", "switch", name="NVSwitch", in_network=in_network))
    pairs = _coded(_by_socket([*gpus, *nics], "NODE", "PIX"), fabric)
    return _Host(devices, tuple(links), pairs, port, tuple(uplinks))


def _direct(kind: str, code: str, counts: Mapping[tuple[int, int], int]) -> tuple[list[Link], list[Pair]]:
    """Links and pairs of GPUs that are joined one by one; the code's `#` becomes the number of links."""
    links: list[Link] = []
    pairs = []
    for (i, j), lanes in counts.items():
        both = both_ways(f"GPU{i}", f"GPU{j}", kind, lanes=lanes)
        links += both
        a, b, figure = both[0].src, both[0].dst, both[0]
        pairs.append(Pair(a, b, code.replace("#", str(lanes)), figure.gb_per_s, figure.latency_us, "table", "assumed"))
    return links, pairs


def _mesh(kind: str, port: str, pcie: str) -> _Host:
    """Eight GPUs, each linked to each, each with a NIC behind its PCIe switch."""
    gpus, nics = _gpus(), _nics(8)
    links, fabric = _direct(kind, "XGMI", dict.fromkeys(combinations(range(8), 2), 1))
    uplinks: list[Link] = []
    for gpu, nic in zip(gpus, nics, strict=True):
        uplinks += both_ways(gpu.id, nic.id, pcie, latency_us=PATH_LATENCY_US["PIX"])
    pairs = _coded(_by_socket([*gpus, *nics], "NODE", "PIX"), fabric)
    return _Host((*gpus, *nics), tuple(links), pairs, port, tuple(uplinks))


def _dgx_1_v100() -> _Host:
    """Hybrid cube mesh; pairs of GPUs share a PCIe switch with a NIC; GPUs without NVLink meet over the sockets."""
    gpus, nics = _gpus(), _nics(4)
    links, fabric = _direct("nvlink2", "NV#", _CUBE_MESH)
    codes = {}
    for a, b in combinations([*gpus, *nics], 2):
        switch_a, switch_b = (int(d.id[3:]) // (2 if d.kind == "gpu" else 1) for d in (a, b))
        codes[a.id, b.id] = "PIX" if switch_a == switch_b else "PHB" if a.numa == b.numa else "SYS"
    tree = host_tree([*gpus, *nics], codes, pcie="pcie3", smp="smp-broadwell")
    spoken = {pair: code for pair, code in codes.items() if pair[0].startswith("GPU")}
    return _Host(tree.devices, (*links, *tree.links), _coded(spoken, fabric), "network-100")


def _mi250x() -> _Host:
    """One EPYC, four packages of two dies; each package has a NIC. A die is a GPU to all software.

    Dies that share no link reach each other through the CPU.
    """
    gpus = [Device(f"GPU{i}", "gpu", numa=0) for i in range(8)]
    nics = [Device(f"NIC{i}", "nic", numa=0) for i in range(4)]
    links, fabric = _direct("xgmi-mi250", "XGMI", _MI250X_LINKS)
    over_cpu = dict.fromkeys(combinations([gpu.id for gpu in gpus], 2), "PHB")
    tree = host_tree(gpus, over_cpu, pcie="xgmi-mi250-cpu")
    uplinks: list[Link] = []
    codes = dict(over_cpu)
    for i, gpu in enumerate(gpus):
        uplinks += both_ways(gpu.id, f"NIC{i // 2}", "pcie4", latency_us=PATH_LATENCY_US["PIX"])
        codes.update({(gpu.id, nic.id): "PIX" if j == i // 2 else "PHB" for j, nic in enumerate(nics)})
    return _Host((*tree.devices, *nics), (*links, *tree.links), _coded(codes, fabric), "network-200", tuple(uplinks))


def _rtx4090_pcie_8() -> _Host:
    """Four GPUs on the PCIe 4 lanes of each of two EPYC sockets; the driver copies through host memory."""
    gpus, nics = _gpus(), _nics(1)
    codes = _by_socket([*gpus, *nics], "PHB", "PHB")
    tree = host_tree([*gpus, *nics], codes, pcie="pcie4", smp="smp-amd")
    return _Host(tree.devices, tree.links, _coded(codes), "network-100")


def _cpu_2_socket() -> _Host:
    """Two sockets of eight cores, and a NIC on the first."""
    cores = [Device(f"cpu{i}", "cpu", numa=i // 8, cpu_affinity=str(i)) for i in range(16)]
    numas = [Device(f"numa{i}", "numa", numa=i) for i in range(2)]
    nic = Device("NIC0", "nic", numa=0)
    links: list[Link] = []
    for core in cores:
        links += both_ways(core.id, f"numa{core.numa}", "shared-memory-core")
    links += both_ways("numa0", "numa1", "smp-amd")
    links += both_ways("numa0", "NIC0", "pcie4", latency_us=PATH_LATENCY_US["PIX"])
    return _Host((*cores, *numas, nic), tuple(links), (), "network-100")


SYSTEMS: dict[str, Callable[[], _Host]] = {
    "dgx-1-v100": _dgx_1_v100,
    "dgx-a100": lambda: _switched("nvlink3", 12, "network-200", "pcie4"),
    "dgx-h100": lambda: _switched("nvlink4", 18, "network-400", "pcie5", "nvls"),
    "mi250x": _mi250x,
    "mi300x-8": lambda: _mesh("xgmi-mi300", "network-400", "pcie5"),
    "rtx4090-pcie-8": _rtx4090_pcie_8,
    "cpu-2-socket": _cpu_2_socket,
}
"""Builders by catalogue name."""
