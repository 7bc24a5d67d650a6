"""The hosts of the catalogue: NVIDIA's, AMD's, and hosts without GPUs.

Rates per link are those of `links.KINDS`; counts are from the sources named at each host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from topocomm.topology.inference.host_tree import PairKey, host_tree
from topocomm.topology.inference.nvlink import nvlink_pair
from topocomm.topology.links import NVSWITCH_HOP_US, PATH_LATENCY_US, both_ways
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, DeviceKind, InNetworkKind, Link, Pair

SOCKETS = 2
"""Sockets of a host unless it says otherwise; a socket is one NUMA node."""
Fabric = tuple[list[Link], list[Pair]]
"""The links between GPUs of a host, and the pairs that they join."""


class Host(NamedTuple):
    """One host, its links to the network, and the kind of its ports."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    pairs: tuple[Pair, ...]
    port: str
    """Row of `links.KINDS` for the ports of its NICs."""
    uplinks: tuple[Link, ...] = ()
    """GPU-NIC links; part of a cluster only, because in one host no other GPU can use their bandwidth."""
    trays: int = 1
    """Number of hosts that share the devices of the host name `network`: a rack with one NVLink domain."""
    taper: int = 1
    """Ports of a rail switch towards hosts per port towards the spine."""


def _on_sockets(kind: DeviceKind, count: int, sockets: int = SOCKETS) -> list[Device]:
    """GPUs or NICs, equally many on each socket; a single one on the first."""
    return [Device(f"{kind.upper()}{i}", kind, numa=i * sockets // count) for i in range(count)]


def _coded(codes: Mapping[PairKey, str], fabric: Iterable[Pair]) -> tuple[Pair, ...]:
    """The pairs of GPUs with PCIe codes, replaced by those of the fabric."""
    by_ids = {
        pair: Pair(*pair, code, None, PATH_LATENCY_US[code], None, "assumed")
        for pair, code in codes.items()
        if pair[0].startswith("GPU")
    }
    return tuple((by_ids | {(pair.a, pair.b): pair for pair in fabric}).values())


def _codes_by_socket(devices: Sequence[Device], near: str, own: str) -> dict[PairKey, str]:
    """Codes of GPU-GPU and GPU-NIC pairs: `own` for a GPU and its NIC, `near` on one socket, else SYS."""
    codes = {}
    for a, b in combinations(devices, 2):
        if a.kind == "gpu":
            is_own = b.kind == "nic" and a.id[3:] == b.id[3:]
            codes[a.id, b.id] = own if is_own else near if a.numa == b.numa else "SYS"
    return codes


def _codes_by_switch(devices: Sequence[Device], near: str, *, nested: bool = False) -> dict[PairKey, str]:
    """Codes where two GPUs share a PCIe switch with a NIC, and `nested` where two such switches hang off a third."""
    codes = {}
    for a, b in combinations(devices, 2):
        leaf_a, leaf_b = (int(d.id[3:]) // (2 if d.kind == "gpu" else 1) for d in (a, b))
        same = "PIX" if leaf_a == leaf_b else "PXB" if nested and leaf_a // 2 == leaf_b // 2 else near
        codes[a.id, b.id] = same if a.numa == b.numa else "SYS"
    return codes


def _codes_of_ports(devices: Sequence[Device], *, shared: bool) -> dict[PairKey, str]:
    """Codes where each GPU has a port behind its PCIe switch, or two GPUs share switch and port."""
    return _codes_by_switch(devices, "NODE") if shared else _codes_by_socket(devices, "NODE", "PIX")


def _into_switch(gpus: Sequence[Device], kind: str, lanes: int) -> Fabric:
    """Links of GPUs into NVSwitches, which are one device as in NCCL, and the pairs through it."""
    links: list[Link] = []
    for gpu in gpus:
        links += both_ways(gpu.id, "nvswitch0", kind, lanes=lanes, latency_us=NVSWITCH_HOP_US)
    return links, [nvlink_pair(a.id, b.id, kind, lanes, 2 * NVSWITCH_HOP_US) for a, b in combinations(gpus, 2)]


def _direct(kind: str, code: str, counts: Mapping[tuple[int, int], int]) -> Fabric:
    """Directly linked GPUs, from the number of links by pair of GPU numbers; it replaces `#` in the code."""
    links: list[Link] = []
    pairs = []
    for (i, j), lanes in counts.items():
        forth, back = both_ways(f"GPU{i}", f"GPU{j}", kind, lanes=lanes)
        links += forth, back
        own_code = code.replace("#", str(lanes))
        pairs.append(Pair(forth.src, forth.dst, own_code, forth.gb_per_s, forth.latency_us, "table", "assumed"))
    return links, pairs


def _uplinks(gpus: Sequence[Device], nics: Sequence[Device], pcie: str, code: str = "PIX") -> tuple[Link, ...]:
    """The links of GPUs to their NICs; neighbours share one where there are fewer NICs."""
    links: list[Link] = []
    for i, gpu in enumerate(gpus):
        nic = nics[i * len(nics) // len(gpus)]
        links += both_ways(gpu.id, nic.id, pcie, latency_us=PATH_LATENCY_US[code])
    return tuple(links)


def _in_tree(
    devices: Sequence[Device],
    codes: Mapping[PairKey, str],
    fabric: Fabric,
    *,
    port: str,
    pcie: str,
    smp: str = "smp",
    x8: bool = False,
) -> Host:
    """GPUs and NICs below PCIe switches and NUMA nodes, by their codes; `x8` where GPUs have 8 lanes."""
    tree = host_tree(devices, codes, pcie=pcie, smp=smp)
    links = [x._replace(gb_per_s=X8_GB_PER_S) if x8 and "GPU" in x.src + x.dst else x for x in tree.links]
    return Host(tree.devices, (*fabric[0], *links), _coded(codes, fabric[1]), port)


def full_mesh(
    count: int, kind: str, code: str, port: str, pcie: str, *, lanes: int = 1, nics: int | None = None
) -> Host:
    """Return GPUs on two sockets, joined each to each, each with a NIC behind its PCIe switch, or sharing `nics`.

    HGX A100 with 4 GPUs: 4 links between two, 12 in all, and an HDR port each (JUWELS Booster's nodes). Eight MI300X:
    7 links per GPU (AMD MI300X platform datasheet), an NDR port each. Four V100 with 2 links between two and 2 EDR
    ports: ABCI's compute nodes V (docs.abci.ai, system overview).
    """
    gpus, ports = _on_sockets("gpu", count), _on_sockets("nic", nics or count)
    links, fabric = _direct(kind, code, dict.fromkeys(combinations(range(count), 2), lanes))
    pairs = _coded(_codes_of_ports([*gpus, *ports], shared=nics is not None), fabric)
    return Host((*gpus, *ports), tuple(links), pairs, port, _uplinks(gpus, ports, pcie))


_QUADS = dict.fromkeys([*combinations(range(4), 2), *combinations(range(4, 8), 2)], 1)
_P100_MESH = {**_QUADS, **{(i, i + 4): 1 for i in range(4)}}
"""NVLinks of DGX-1 P100 by GPU pair: two full quads and a link between the same corners, 4 per GPU (NVIDIA DGX-1
system architecture whitepaper, hybrid cube mesh)."""

_V100_MESH = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)], 1),
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
}
"""NVLinks of DGX-1 V100 by GPU pair, as its `nvidia-smi topo -m` prints them: 6 per GPU."""

X8_GB_PER_S = 16.0
"""PCIe 4 on 8 lanes: half of the table's row."""


def switched(
    kind: str, lanes: int, port: str, pcie: str, in_network: InNetworkKind | None = None, *, nics: int = 8
) -> Host:
    """Return eight GPUs on NVSwitches, each with a NIC behind its PCIe switch, or sharing `nics`.

    DGX A100: 12 links, 8 HDR ports for the compute fabric. DGX H100 and H200: 18 links, 8 NDR ports. DGX B200: 18
    links of NVLink 5, 8 NDR ports. (NVIDIA's datasheets and user guides of these systems.) AWS p4d: DGX A100's GPUs
    with four 100 Gb/s EFA (AWS, EC2 P4 instances).
    """
    gpus, ports = _on_sockets("gpu", 8), _on_sockets("nic", nics)
    links, fabric = _into_switch(gpus, kind, lanes)
    pairs = _coded(_codes_of_ports([*gpus, *ports], shared=nics < 8), fabric)
    switch = Device("nvswitch0", "switch", name="NVSwitch", in_network=in_network)
    return Host((*gpus, *ports, switch), tuple(links), pairs, port, _uplinks(gpus, ports, pcie))


def dgx_1(kind: str, nics: int = 4) -> Host:
    """Return a DGX-1: a hybrid cube mesh of NVLinks; two GPUs share a PCIe switch with a NIC.

    Two Broadwell sockets, 4 EDR ports (NVIDIA DGX-1 whitepaper). The kind is `nvlink1` for P100, `nvlink2` for V100.
    AWS p3dn has the mesh of V100 with one 100 Gb/s port (AWS, EC2 P3 instances).
    """
    ends = [*_on_sockets("gpu", 8), *_on_sockets("nic", nics)]
    fabric = _direct(kind, "NV#", _P100_MESH if kind == "nvlink1" else _V100_MESH)
    codes = _codes_by_switch(ends, "PHB")
    return _in_tree(ends, codes, fabric, port="network-100", pcie="pcie3", smp="smp-broadwell")


def dgx_2() -> Host:
    """Return sixteen V100 with 6 links each into NVSwitches, 8 EDR ports (NVIDIA DGX-2 datasheet).

    Two GPUs share a PCIe switch with a NIC, two such switches hang off a third.
    """
    gpus, nics = _on_sockets("gpu", 16), _on_sockets("nic", 8)
    links, fabric = _into_switch(gpus, "nvlink2", 6)
    pairs = _coded(_codes_by_switch([*gpus, *nics], "NODE", nested=True), fabric)
    devices = (*gpus, *nics, Device("nvswitch0", "switch", name="NVSwitch"))
    return Host(devices, tuple(links), pairs, "network-100", _uplinks(gpus, nics, "pcie3"))


def gb200_tray() -> Host:
    """Return one of the 18 trays of a GB200 NVL72 rack: four B200 on two Grace, and an NDR port per GPU.

    All 72 GPUs have their 18 links in the rack's NVSwitches (NVIDIA GB200 NVL72 datasheet, 130 TB/s in both
    directions together; DGX GB200 user guide: 72 ConnectX-7). NICs hang off Grace's PCIe 5.
    """
    gpus, nics = _on_sockets("gpu", 4), _on_sockets("nic", 4)
    switch = Device("nvswitch0", "switch", NETWORK.host, "NVSwitch", in_network="nvls")
    links, fabric = _into_switch(gpus, "nvlink5", 18)
    pairs = _coded(_codes_by_socket([*gpus, *nics], "NODE", "NODE"), fabric)
    up = _uplinks(gpus, nics, "pcie5", "NODE")
    return Host((*gpus, *nics, switch), tuple(links), pairs, "network-400", up, trays=18)


def rtx4090_pcie(count: int, sockets: int = SOCKETS) -> Host:
    """Return GPUs on the PCIe 4 lanes of EPYC sockets, 16 lanes each; 8 each where eight GPUs share a socket's 128."""
    ends = [*_on_sockets("gpu", count, sockets), *_on_sockets("nic", 1, sockets)]
    codes = _codes_by_socket(ends, "PHB", "PHB")
    return _in_tree(ends, codes, ([], []), port="network-100", pcie="pcie4", smp="smp-amd", x8=count // sockets > 7)


def a100_pcie(count: int) -> Host:
    """Return A100 with PCIe 4 x16 and no bridge, spread over two EPYC sockets, and one HDR port (NVIDIA datasheet)."""
    ends = [*_on_sockets("gpu", count), *_on_sockets("nic", 1)]
    return _in_tree(
        ends, _codes_by_socket(ends, "PHB", "PHB"), ([], []), port="network-200", pcie="pcie4", smp="smp-amd"
    )


def rtx3090_pair() -> Host:
    """Return two RTX 3090 with an NVLink bridge of 4 links (NVIDIA: 56.25 GB/s), on 8 lanes each of a desktop CPU."""
    ends = [*_on_sockets("gpu", 2, 1), *_on_sockets("nic", 1, 1)]
    fabric = _direct("nvlink3-rtx", "NV#", {(0, 1): 4})
    return _in_tree(ends, _codes_by_socket(ends, "PHB", "PHB"), fabric, port="network-10", pcie="pcie4", x8=True)


_MI250X_LINKS = {
    **dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
    **dict.fromkeys([(0, 6), (2, 4)], 2),
    **dict.fromkeys([(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)], 1),
}
"""xGMI links between the 8 dies of 4 MI250X: 4 inside a package, 1 or 2 between packages. Neighbours as in RCCL's
`tools/topo_expl/models/topo_8p_90a.xml`, single, dual and quad links as in Pearson, arXiv:2302.14827."""


def mi100_8() -> Host:
    """Return two quads of MI100, each on its socket, joined inside by one link per pair: 3 per GPU.

    RCCL's `tools/topo_expl/models/topo_4p3l_2h.xml`, which has one HDR port on the second socket. The quads meet over
    the CPUs.
    """
    ends = [*_on_sockets("gpu", 8), Device("NIC0", "nic", numa=1)]
    codes = _codes_by_socket(ends, "PHB", "PHB") | {("GPU0", "NIC0"): "SYS"}
    fabric = _direct("xgmi-mi100", "XGMI", _QUADS)
    return _in_tree(ends, codes, fabric, port="network-200", pcie="pcie4", smp="smp-amd")


def mi250x() -> Host:
    """Return one EPYC with four packages of two dies and a NIC each. A die is a GPU to all software.

    Dies that share no link reach each other through the CPU.
    """
    gpus, nics = _on_sockets("gpu", 8, 1), _on_sockets("nic", 4, 1)
    links, fabric = _direct("xgmi-mi250", "XGMI", _MI250X_LINKS)
    codes = dict.fromkeys(combinations([gpu.id for gpu in gpus], 2), "PHB")
    tree = host_tree(gpus, codes, pcie="xgmi-mi250-cpu")
    for i, gpu in enumerate(gpus):
        codes |= {(gpu.id, nic.id): "PIX" if j == i // 2 else "PHB" for j, nic in enumerate(nics)}
    up = _uplinks(gpus, nics, "pcie4")
    return Host((*tree.devices, *nics), (*links, *tree.links), _coded(codes, fabric), "network-200", up)


def cpu_host_of(sockets: int, cores: int, nics: int, pcie: str, port: str) -> Host:
    """Return sockets of one NUMA node each, and NICs on the first ones, one each: a reference shape, not a product."""
    ends = [Device(f"cpu{i}", "cpu", numa=i // cores, cpu_affinity=str(i)) for i in range(sockets * cores)]
    numas = [Device(f"numa{i}", "numa", numa=i) for i in range(sockets)]
    ports = _on_sockets("nic", nics, min(nics, sockets))
    links: list[Link] = []
    for end in ends:
        links += both_ways(end.id, f"numa{end.numa}", "shared-memory-core")
    for a, b in combinations(numas, 2):
        links += both_ways(a.id, b.id, "smp-amd")
    for nic in ports:
        links += both_ways(f"numa{nic.numa}", nic.id, pcie, latency_us=PATH_LATENCY_US["PIX"])
    return Host((*ends, *numas, *ports), tuple(links), (), port)
