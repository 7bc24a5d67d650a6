"""The catalogue's AMD machines. Rates per link are those of `links.KINDS`, counts are the sources' named here."""

from __future__ import annotations

from itertools import combinations

from topocomm.topology.catalog.system_parts import (
    Host,
    all_pairs,
    coded,
    codes_by_socket,
    direct,
    full_mesh,
    gpus_on_sockets,
    uplinks,
)
from topocomm.topology.inference.host_tree import host_tree
from topocomm.topology.model import Device

_MI250X_LINKS = {
    **dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
    **dict.fromkeys([(0, 6), (2, 4)], 2),
    **dict.fromkeys([(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)], 1),
}
"""xGMI links between the 8 dies of 4 MI250X: 4 inside a package, 1 or 2 between packages. Neighbours as in RCCL's
`tools/topo_expl/models/topo_8p_90a.xml`, single, dual and quad links as in Pearson, arXiv:2302.14827."""


def mi100_8() -> Host:
    """Two quads of MI100, each on its socket, joined inside by one link per pair: 3 per GPU.

    RCCL's `tools/topo_expl/models/topo_4p3l_2h.xml`, which has one HDR port on the second socket. The quads meet over
    the CPUs.
    """
    gpus, nic = gpus_on_sockets(8), Device("NIC0", "nic", numa=1)
    quads = {**all_pairs(4), **{(a + 4, b + 4): 1 for a, b in all_pairs(4)}}
    links, fabric = direct("xgmi-mi100", "XGMI", quads)
    codes = codes_by_socket([*gpus, nic], "PHB", "PHB")
    codes["GPU0", "NIC0"] = "SYS"
    tree = host_tree([*gpus, nic], codes, pcie="pcie4", smp="smp-amd")
    return Host(tree.devices, (*links, *tree.links), coded(codes, fabric), "network-200")


def mi250x() -> Host:
    """One EPYC, four packages of two dies; each package has a NIC. A die is a GPU to all software.

    Dies that share no link reach each other through the CPU.
    """
    gpus = gpus_on_sockets(8, 1)
    nics = [Device(f"NIC{i}", "nic", numa=0) for i in range(4)]
    links, fabric = direct("xgmi-mi250", "XGMI", _MI250X_LINKS)
    over_cpu = dict.fromkeys(combinations([gpu.id for gpu in gpus], 2), "PHB")
    tree = host_tree(gpus, over_cpu, pcie="xgmi-mi250-cpu")
    codes = dict(over_cpu)
    for i, gpu in enumerate(gpus):
        codes.update({(gpu.id, nic.id): "PIX" if j == i // 2 else "PHB" for j, nic in enumerate(nics)})
    pairs = coded(codes, fabric)
    return Host((*tree.devices, *nics), (*links, *tree.links), pairs, "network-200", uplinks(gpus, nics, "pcie4"))


def mi300x_8() -> Host:
    """Eight MI300X, one xGMI link between any two (AMD MI300X platform datasheet: 7 per GPU), an NDR port each."""
    return full_mesh(8, "xgmi-mi300", "XGMI", "network-400", "pcie5")
