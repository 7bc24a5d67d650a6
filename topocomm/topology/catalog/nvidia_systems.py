"""The catalogue's NVIDIA machines. Rates per link are those of `links.KINDS`, counts are the sources' named here."""

from __future__ import annotations

from itertools import combinations

from topocomm.topology.catalog.system_parts import (
    SOCKETS,
    Host,
    all_pairs,
    coded,
    codes_by_socket,
    direct,
    full_mesh,
    gpus_on_sockets,
    into_switch,
    nics_on_sockets,
    nvswitch,
    uplinks,
)
from topocomm.topology.inference.host_tree import PairKey, host_tree
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, InNetworkKind

_P100_MESH = {**all_pairs(4), **{(a + 4, b + 4): 1 for a, b in all_pairs(4)}, **{(i, i + 4): 1 for i in range(4)}}
"""NVLinks of DGX-1 P100 by GPU pair: two full quads and a link between the same corners, 4 per GPU (NVIDIA DGX-1
system architecture whitepaper, hybrid cube mesh)."""

_V100_MESH = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)], 1),
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
}
"""NVLinks of DGX-1 V100 by GPU pair, as its `nvidia-smi topo -m` prints them: 6 per GPU."""

X8_GB_PER_S = 16.0
"""PCIe 4 on 8 lanes: half of the table's row."""


def switched(kind: str, lanes: int, port: str, pcie: str, in_network: InNetworkKind | None = None) -> Host:
    """Eight GPUs on NVSwitches, each with a NIC behind its PCIe switch.

    DGX A100: 12 links, 8 HDR ports for the compute fabric. DGX H100 and H200: 18 links, 8 NDR ports. DGX B200: 18
    links of NVLink 5, 8 NDR ports. (NVIDIA's datasheets and user guides of these systems.)
    """
    gpus, nics, switch = gpus_on_sockets(8), nics_on_sockets(8), nvswitch(in_network)
    links, fabric = into_switch(gpus, switch, kind, lanes)
    pairs = coded(codes_by_socket([*gpus, *nics], "NODE", "PIX"), fabric)
    return Host((*gpus, *nics, switch), tuple(links), pairs, port, uplinks(gpus, nics, pcie))


def dgx_1(kind: str) -> Host:
    """Hybrid cube mesh; pairs of GPUs share a PCIe switch with a NIC; GPUs without NVLink meet over the sockets.

    Two Broadwell sockets, 4 EDR ports (NVIDIA DGX-1 whitepaper).

    Args:
        kind: `nvlink1` for P100, `nvlink2` for V100.
    """
    gpus, nics = gpus_on_sockets(8), nics_on_sockets(4)
    links, fabric = direct(kind, "NV#", _P100_MESH if kind == "nvlink1" else _V100_MESH)
    codes = {}
    for a, b in combinations([*gpus, *nics], 2):
        switch_a, switch_b = (int(d.id[3:]) // (2 if d.kind == "gpu" else 1) for d in (a, b))
        codes[a.id, b.id] = "PIX" if switch_a == switch_b else "PHB" if a.numa == b.numa else "SYS"
    tree = host_tree([*gpus, *nics], codes, pcie="pcie3", smp="smp-broadwell")
    spoken = {pair: code for pair, code in codes.items() if pair[0].startswith("GPU")}
    return Host(tree.devices, (*links, *tree.links), coded(spoken, fabric), "network-100")


def dgx_2() -> Host:
    """Sixteen V100 with 6 links each into NVSwitches, 8 EDR ports (NVIDIA DGX-2 datasheet).

    Two GPUs share a PCIe switch with a NIC, two such switches hang off a third.
    """
    gpus, nics, switch = gpus_on_sockets(16), nics_on_sockets(8), nvswitch()
    links, fabric = into_switch(gpus, switch, "nvlink2", 6)
    codes: dict[PairKey, str] = {}
    for a, b in combinations([*gpus, *nics], 2):
        leaf_a, leaf_b = (int(d.id[3:]) // (2 if d.kind == "gpu" else 1) for d in (a, b))
        if a.kind == "gpu":
            near = "PIX" if leaf_a == leaf_b else "PXB" if leaf_a // 2 == leaf_b // 2 else "NODE"
            codes[a.id, b.id] = near if a.numa == b.numa else "SYS"
    devices = (*gpus, *nics, switch)
    return Host(devices, tuple(links), coded(codes, fabric), "network-100", uplinks(gpus, nics, "pcie3"))


def hgx_a100_4() -> Host:
    """Four A100 with 4 links to each other, 12 in all, and an HDR port each (JUWELS Booster's nodes)."""
    return full_mesh(4, "nvlink3", "NV#", "network-200", "pcie4", lanes=4)


def gb200_tray() -> Host:
    """One of the 18 trays of a GB200 NVL72 rack: four B200 on two Grace, and an NDR port per GPU.

    All 72 GPUs have their 18 links in the rack's NVSwitches (NVIDIA GB200 NVL72 datasheet, 130 TB/s in both
    directions together; DGX GB200 user guide: 72 ConnectX-7). NICs hang off Grace's PCIe 5.
    """
    gpus, nics = gpus_on_sockets(4), nics_on_sockets(4)
    switch = Device("nvswitch0", "switch", NETWORK.host, "NVSwitch", in_network="nvls")
    links, fabric = into_switch(gpus, switch, "nvlink5", 18)
    pairs = coded(codes_by_socket([*gpus, *nics], "NODE", "NODE"), fabric)
    ways = uplinks(gpus, nics, "pcie5", "NODE")
    return Host((*gpus, *nics, switch), tuple(links), pairs, "network-400", ways, trays=18)


def rtx4090_pcie(count: int, sockets: int = SOCKETS) -> Host:
    """GPUs on the PCIe 4 lanes of EPYC sockets, 16 each; the driver copies through host memory.

    A socket has 128 lanes: eight GPUs on one have 8 each, so that some are left for the NIC and disks.
    """
    gpus, nics = gpus_on_sockets(count, sockets), nics_on_sockets(1, sockets)
    codes = codes_by_socket([*gpus, *nics], "PHB", "PHB")
    tree = host_tree([*gpus, *nics], codes, pcie="pcie4", smp="smp-amd")
    links = list(tree.links)
    if count // sockets > 7:
        ends = {gpu.id for gpu in gpus}
        links = [link._replace(gb_per_s=X8_GB_PER_S) if ends & {link.src, link.dst} else link for link in links]
    return Host(tree.devices, tuple(links), coded(codes), "network-100")


def rtx3090_pair() -> Host:
    """Two RTX 3090 with an NVLink bridge of 4 links (NVIDIA: 56.25 GB/s) in a desktop, whose CPU gives each 8 lanes."""
    gpus, nics = gpus_on_sockets(2, 1), nics_on_sockets(1, 1)
    links, fabric = direct("nvlink3-rtx", "NV#", {(0, 1): 4})
    codes = codes_by_socket([*gpus, *nics], "PHB", "PHB")
    tree = host_tree([*gpus, *nics], codes, pcie="pcie4")
    ways = [
        link._replace(gb_per_s=X8_GB_PER_S) if {"GPU0", "GPU1"} & {link.src, link.dst} else link for link in tree.links
    ]
    return Host(tree.devices, (*links, *ways), coded(codes, fabric), "network-10")
