from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from tests.topology.dumps import each_of
from tests.topology.matrices import facts_of, render_tabs
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.inference import nccl_paths
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Link, Pair, Topology
from topocomm.topology.readers.nvidia import nvidia_smi

GPU0, GPU1 = Device("GPU0", "gpu"), Device("GPU1", "gpu")


def switch(ident, name="PCIe switch"):
    return Device(ident, "switch", name=name)


def joined(*devices, kind="pcie", **figures):
    """A chain of devices from GPU0 to GPU1."""
    chain = (GPU0, *devices, GPU1)
    links = [link for a, b in pairwise(chain) for link in both_ways(a.id, b.id, kind, **figures)]
    return Topology("t", "test", chain, tuple(links))


def both_codes(topology):
    return tuple(nccl_paths.code(topology, "GPU0", "GPU1", wording=w) for w in ("nccl", "nvidia-smi"))


def matrix_of(topology):
    """Codes of a topology as printed, and as its links alone give them."""
    printed = {(pair.a, pair.b): "SYS" if pair.code == "SOC" else pair.code for pair in topology.pairs}
    bare = replace(topology, pairs=())
    return printed, {(pair.a, pair.b): pair.code for pair in nccl_paths.pairs(bare, wording="nvidia-smi")}


def eight_gpus(a, b):
    """Two NUMA nodes of two host bridges, each with two GPUs; NICs 8 and 9 are beside GPU0 and GPU4."""
    place = [(i // 4, i // 2, i) for i in range(8)] + [(0, 0, 0), (1, 2, 4)]
    same = sum(x == y for x, y in zip(place[a], place[b], strict=True))
    return ("SYS", "NODE", "PHB", "PIX")[same]


MATRICES = {
    "every level": facts_of(8, eight_gpus, nics=["mlx5_0", "mlx5_1"], numa={f"GPU{i}": str(i // 4) for i in range(8)}),
    "several switches": facts_of(
        4, lambda a, b: "PXB" if a // 2 == b // 2 else "SYS", numa={f"GPU{i}": str(i // 2) for i in range(4)}
    ),
    "switches below switches": facts_of(6, lambda a, b: "PIX" if a // 2 == b // 2 else "PXB" if a < b < 4 else "NODE"),
    "host bridges alone": facts_of(3, lambda a, b: "NODE", numa={f"GPU{i}": "0" for i in range(3)}),
    "one host bridge": facts_of(3, lambda a, b: "PHB", numa={f"GPU{i}": "0" for i in range(3)}),
    "host bridges without number": facts_of(2, lambda a, b: "NODE"),
    "nodes without number": facts_of(2, lambda a, b: "SYS"),
    "one switch": facts_of(2, lambda a, b: "PIX", nics=["mlx5_0"]),
    "switched NVLink": facts_of(
        8,
        lambda a, b: "NV18" if b < 8 else "PIX" if a == b - 8 else "NODE" if a // 4 == b - 8 else "SYS",
        nics=["n0"],
        numa={f"GPU{i}": str(i // 4) for i in range(8)},
    ),
    "bridged NVLink": facts_of(4, lambda a, b: "NV4" if a // 2 == b // 2 else "SYS"),
    "NVLink without switch": facts_of(4, lambda a, b: f"NV{1 + (a + b) % 2}"),
}


@pytest.mark.parametrize("facts", MATRICES.values(), ids=MATRICES)
def test_matrix_from_links_alone(facts):
    topology = nvidia_smi.read(render_tabs(facts), "matrix.txt")
    assert not any("no tree" in warning for warning in topology.warnings)
    printed, found = matrix_of(topology)
    assert found == printed
    assert set(printed.values()) == set(facts.codes.values())


@each_of("nvidia-smi-topo-m")
def test_matrix_of_a_real_machine_from_links_alone(path):
    try:
        topology = nvidia_smi.read(path.read_text(encoding="utf-8"), path.name)
    except TopologyError:
        pytest.skip("too damaged to be read")
    if any("no tree" in warning for warning in topology.warnings):
        pytest.skip("its codes are no tree")
    printed, found = matrix_of(topology)
    assert found == printed


def test_levels():
    host, numa0, numa1 = Device("host0", "host"), Device("numa0", "numa", numa=0), Device("numa1", "numa", numa=1)
    root0, root1 = switch("bridge0", "PCIe host bridge"), switch("bridge1", "PCIe host bridge")
    assert both_codes(joined()) == ("PIX", "PIX")
    assert both_codes(joined(switch("pcie0"))) == ("PIX", "PIX")
    assert both_codes(joined(switch("a0", "network adapter"), switch("pcie0"))) == ("PIX", "PIX")
    assert both_codes(joined(switch("pcie0"), switch("pcie1"))) == ("PXB", "PXB")
    assert both_codes(joined(switch("pcie0", "PCIe switches"))) == ("PXB", "PXB")
    assert both_codes(joined(root0)) == ("PHB", "PHB")
    assert both_codes(joined(switch("pcie0"), numa0)) == ("PHB", "PHB")
    assert both_codes(joined(root0, numa0, root1)) == ("PHB", "NODE")
    assert both_codes(joined(root0, numa0)) == ("PHB", "NODE")
    assert both_codes(joined(numa0, latency_us=0.7)) == ("PHB", "PHB")
    assert both_codes(joined(numa0, latency_us=0.8)) == ("PHB", "NODE")
    assert both_codes(joined(numa0, numa1)) == ("SYS", "SYS")
    assert both_codes(joined(numa0, host, numa1)) == ("SYS", "SYS")
    assert both_codes(joined(host)) == ("SYS", "SYS")


def test_no_way_through_endpoints():
    assert both_codes(joined(Device("NIC0", "nic"))) == (None, None)
    assert both_codes(joined(Device("NIC0", "nic"), switch("pcie0"))) == (None, None)
    assert both_codes(joined(Device("GPU2", "gpu"), kind="nvlink")) == (None, None)
    assert both_codes(Topology("t", "test", (GPU0, GPU1), ())) == (None, None)


def test_better_type_then_more_bandwidth_then_fewer_links():
    """GPU0 and GPU1 meet in a slow switch and over a fast processor; in two switches they meet over the faster one."""
    devices = (GPU0, GPU1, switch("pcie0"), switch("pcie1"), Device("numa0", "numa"))
    slow = both_ways("GPU0", "pcie0", "pcie", gb_per_s=4.0) + both_ways("GPU1", "pcie0", "pcie", gb_per_s=4.0)
    fast = both_ways("GPU0", "pcie1", "pcie", gb_per_s=64.0) + both_ways("GPU1", "pcie1", "pcie", gb_per_s=32.0)
    node = both_ways("GPU0", "numa0", "pcie", gb_per_s=64.0) + both_ways("GPU1", "numa0", "pcie", gb_per_s=64.0)
    assert nccl_paths.pairs(Topology("t", "test", devices, (*slow, *node)))[0] == Pair(
        "GPU0", "GPU1", "PIX", 4.0, 1.0, "read", "assumed"
    )
    assert nccl_paths.pairs(Topology("t", "test", devices, (*slow, *fast, *node)))[0].gb_per_s == 32.0


def test_figures_are_as_certain_as_the_least_certain():
    links = [
        *both_ways("GPU0", "pcie0", "pcie4"),
        *both_ways("GPU1", "pcie0", "pcie", gb_per_s=16.0),
    ]
    devices = (GPU0, GPU1, switch("pcie0"))
    assert nccl_paths.pairs(Topology("t", "test", devices, tuple(links)))[0][3:] == (16.0, 1.0, "table", "assumed")
    unknown = tuple(link._replace(gb_per_s=None, gb_per_s_source=None) for link in links[:2])
    pair = nccl_paths.pairs(Topology("t", "test", devices, (*unknown, *links[2:])))[0]
    assert (pair.gb_per_s, pair.gb_per_s_source) == (None, None)
    said = tuple(link._replace(gb_per_s_source=None) for link in links)
    assert nccl_paths.pairs(Topology("t", "test", devices, said))[0].gb_per_s_source is None


def nvlinks(*ends):
    devices = dict.fromkeys(name for a, b, _ in ends for name in (a, b))
    links = [Link(a, b, "nvlink", lanes, lanes * 25.0, 0.3, None, "table", "assumed") for a, b, lanes in ends]
    return Topology(
        "t",
        "test",
        tuple(Device(name, "switch" if name.startswith("s") else "gpu") for name in devices),
        tuple(link for one in links for link in (one, one._replace(src=one.dst, dst=one.src))),
    )


def test_fabric():
    assert nccl_paths.pairs(nvlinks(("GPU0", "GPU1", 4)))[0][2:4] == ("NV4", 100.0)
    assert nccl_paths.pairs(nvlinks(("GPU0", "GPU1", 4), ("GPU0", "GPU1", 2)))[0][2:4] == ("NV6", 150.0)
    through = nvlinks(("GPU0", "s0", 9), ("GPU0", "s1", 9), ("GPU1", "s0", 9), ("GPU1", "s1", 6))
    assert nccl_paths.pairs(through)[0][2:5] == ("NV15", 375.0, 0.6)
    unknown = tuple(link._replace(lanes=None, gb_per_s=None) for link in nvlinks(("GPU0", "GPU1", 4)).links)
    pair = nccl_paths.pairs(Topology("t", "test", (GPU0, GPU1), unknown))[0]
    assert (pair.code, pair.gb_per_s) == ("NVL", None)
    xgmi = tuple(link._replace(kind="xgmi") for link in nvlinks(("GPU0", "GPU1", 2)).links)
    assert nccl_paths.pairs(Topology("t", "test", (GPU0, GPU1), xgmi))[0].code == "XGMI2"


def test_catalogue_agrees_with_its_pairs():
    topology = catalog("rtx4090-pcie-8")
    assert {(p.a, p.b): p.code for p in nccl_paths.pairs(topology)} == {(p.a, p.b): p.code for p in topology.pairs}
    gpus = [d.id for d in topology.devices if d.kind == "gpu"]
    assert [(p.a, p.b) for p in nccl_paths.pairs(topology)][: 8 * 7 // 2] == list(combinations(gpus, 2))


def test_ways_to_processors():
    topology = catalog("cpu-2-socket")
    assert nccl_paths.code(topology, "cpu0", "cpu1") == "NUMA"
    assert nccl_paths.code(topology, "cpu0", "cpu8") == "SYS"
