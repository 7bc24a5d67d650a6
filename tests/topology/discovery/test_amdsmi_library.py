import sys

import pytest

from tests.topology.amdsmi_machine import Amdsmi, AmdSmiException
from tests.topology.pci_trees import AMD, four_gpus
from topocomm.errors import TopologyError
from topocomm.topology.discovery.amdsmi_library import find_amdsmi, read_amdsmi
from topocomm.topology.discovery.gpu_host import gpu_host
from topocomm.topology.discovery.pci_sysfs import PciBus

MESH = {(a, b): 1 for a in range(4) for b in range(a + 1, 4)}


def read(module, root):
    bus = PciBus(root)
    return gpu_host(read_amdsmi(module, bus, "node"), bus, root, "node")


def lanes(topology):
    return {(x.src, x.dst): (x.lanes, x.gb_per_s) for x in topology.links if x.kind == "xgmi" and x.src < x.dst}


def codes(topology):
    return {(p.a, p.b): p.code for p in topology.pairs if "mlx" not in p.b}


@pytest.mark.parametrize("older", [False, True])
def test_a_full_mesh(tmp_path, older):
    four_gpus(tmp_path, vendor=AMD)
    module = Amdsmi(4, links=MESH, older=older)
    topology = read(module, tmp_path)
    assert topology.source == "amdsmi"
    assert [topology.by_id[e].bus_id for e in topology.endpoints][3] == "0000:b8:00.0"
    assert [topology.by_id[e].numa for e in topology.endpoints] == [0, 0, 1, 1]
    assert topology.by_id["GPU0"].name == "AMD Instinct"
    assert set(codes(topology).values()) == {"XGMI"}
    assert lanes(topology) == {(f"GPU{a}", f"GPU{b}"): (1, 64.0) for a, b in MESH}
    assert {x.gb_per_s_source for x in topology.links if x.kind == "xgmi"} == {"table"}
    assert topology.facts["numa_bw"]["GPU0-GPU1"] == "50000-50000"
    assert topology.facts["hops"]["GPU2-GPU3"] == 1
    assert topology.facts["weight"]["GPU0-GPU3"] == 15
    assert topology.facts["uuids"]["GPU1"] == "11ff-0000"
    assert topology.warnings == ()
    assert module.open == 0


def test_several_links_and_ways_through_others(tmp_path):
    four_gpus(tmp_path, vendor=AMD)
    links = {(0, 1): 4, (2, 3): 4, (0, 2): 1, (1, 3): 1, (0, 3): 0, (1, 2): 0}
    topology = read(Amdsmi(4, target="gfx90a", links=links), tmp_path)
    assert lanes(topology) == {
        ("GPU0", "GPU1"): (4, 200.0),
        ("GPU2", "GPU3"): (4, 200.0),
        ("GPU0", "GPU2"): (1, 50.0),
        ("GPU1", "GPU3"): (1, 50.0),
    }
    assert set(codes(topology).values()) == {"XGMI"}


def test_gpus_on_pcie(tmp_path):
    four_gpus(tmp_path, vendor=AMD)
    topology = read(Amdsmi(4, links={(0, 1): 1}), tmp_path)
    assert codes(topology)["GPU0", "GPU1"] == "XGMI"
    assert codes(topology)["GPU2", "GPU3"] == "PIX"
    assert codes(topology)["GPU1", "GPU2"] == "SYS"


def test_a_driver_without_figures_leaves_neighbours_unknown_and_says_so(tmp_path):
    four_gpus(tmp_path, vendor=AMD)
    topology = read(Amdsmi(4, links=MESH, silent=True), tmp_path)
    assert set(lanes(topology).values()) == {(None, None)}
    assert any("does not say which XGMI pairs have a direct link" in text for text in topology.warnings)
    assert "numa_bw" not in topology.facts


@pytest.mark.parametrize("target", ["gfx906", "N/A", 0x942, None])
def test_models_without_a_known_rate(tmp_path, target):
    four_gpus(tmp_path, vendor=AMD)
    topology = read(Amdsmi(2, links={(0, 1): 1}, target=target), tmp_path)
    assert lanes(topology) == {("GPU0", "GPU1"): (1, None)}


def test_no_gpu_is_nothing_and_failures_are_told(tmp_path):
    bus = PciBus(tmp_path)
    assert read_amdsmi(Amdsmi(0), bus, "node") is None
    with pytest.raises(TopologyError, match="AMD SMI does not start: driver not loaded"):
        read_amdsmi(Amdsmi(1, start=AmdSmiException("driver not loaded\nmore")), bus, "node")
    module = Amdsmi(1)
    module.amdsmi_get_processor_handles = lambda: list(range(300))
    with pytest.raises(TopologyError, match="AMD SMI: 300 GPUs"):
        read_amdsmi(module, bus, "node")
    assert module.open == 0


def test_no_module_is_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert find_amdsmi() is None
