from pathlib import Path

import pytest

from tests.topology.draw.machines import two_gpus
from topocomm.errors import TopologyError
from topocomm.topology.catalog.systems import SYSTEMS, catalog
from topocomm.topology.draw.code_matrix_text import render
from topocomm.topology.links import both_ways
from topocomm.topology.merge.cluster import merge_hosts
from topocomm.topology.model import Device, Pair, Topology
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.recognise import load

DATA = Path(__file__).parents[2] / "data/topologies"
CAPTURES = sorted(DATA.glob("*.txt"))
NVIDIA = [name for name in SYSTEMS if name.startswith(("dgx", "hgx", "rtx")) and "nvl" not in name]


def again(topology):
    return nvidia_smi.read(render(topology), "again.txt")


def devices(topology):
    return [d[:5] + d[5:6] for d in topology.devices if d.kind in ("gpu", "nic")]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_a_capture_is_read_back_the_same(path):
    first = load(path)
    second = again(first)
    assert second.pairs == first.pairs
    assert devices(second) == devices(first)
    assert second.links == first.links


@pytest.mark.parametrize("name", NVIDIA)
def test_a_catalogue_system_is_read_back_with_equal_codes_and_numa_nodes(name):
    first = catalog(name)
    second = again(first)
    assert [pair[:3] for pair in second.pairs] == [pair[:3] for pair in sorted_pairs(first)]
    assert [(d.id, d.numa) for d in second.devices if d.kind == "gpu"] == [
        (d.id, d.numa) for d in first.devices if d.kind == "gpu"
    ]
    assert not [text for text in second.warnings if "legend" in text or "row" in text]


def sorted_pairs(topology):
    """As the reader orders them: by row, then by column."""
    order = [d.id for d in topology.devices if d.kind == "gpu"] + [d.id for d in topology.devices if d.kind == "nic"]
    return sorted(topology.pairs, key=lambda pair: (order.index(pair.a), order.index(pair.b)))


def test_the_layout_is_that_of_nvidia_smi_to_the_byte():
    text = render(two_gpus())
    assert text.startswith(
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tSYS\tPIX\t0-3\t0\n"
        "GPU1\tSYS\t X \tSYS\t4-7\t1\n"
        "NIC0\tPIX\tSYS\t X \t\t\n"
        "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA "
    )
    assert text.endswith("  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n")


def test_unknown_affinity_is_blank_and_not_available():
    rows = render(two_gpus(numa=(None, 1), cpus=(None, None))).splitlines()
    assert rows[1] == "GPU0\t X \tSYS\tPIX\t\t\tN/A"
    assert rows[2] == "GPU1\tSYS\t X \tSYS\t\t1"


def test_pairs_that_the_source_does_not_speak_of_are_derived_from_links():
    links = both_ways("GPU0", "pcie0", "pcie4") + both_ways("GPU1", "pcie0", "pcie4")
    links += both_ways("NIC0", "pcie0", "pcie4") + both_ways("NIC1", "pcie0", "pcie4")
    ends = [Device("GPU0", "gpu"), Device("GPU1", "gpu"), Device("NIC0", "nic"), Device("NIC1", "nic")]
    bare = Topology("x", "by hand", (*ends, Device("pcie0", "switch", name="PCIe switch")), links)
    assert {cell for row in render(bare).splitlines()[1:5] for cell in row.split("\t")[1:5]} == {" X ", "PIX"}
    said = Topology("x", "by hand", bare.devices, links, (Pair("GPU0", "GPU1", None),))
    assert render(said).splitlines()[1].split("\t")[2] == "N/A"  # the source looked, and had nothing to say


def test_codes_of_other_tools_are_explained():
    text = render(catalog("mi300x-8"))
    assert "\nGPU0\t X \tXGMI\t" in text
    assert "  XGMI = Connection traversing xGMI" in text
    assert "XGMI" not in render(catalog("dgx-h100"))
    assert "  SOC  = " in render(two_gpus(code="SOC"))


def test_several_hosts_are_several_matrices():
    text = render(catalog("dgx-h100", hosts=3))
    assert text.count("\nGPU0\t X \t") == 3
    assert [line for line in text.splitlines() if line.startswith("Host ")] == ["Host h0", "Host h1", "Host h2"]
    first = nvidia_smi.read(text, "three.txt")
    assert [pair[:3] for pair in first.pairs] == [pair[:3] for pair in sorted_pairs(catalog("dgx-h100"))]
    assert "h0/" not in text


def test_different_hosts_keep_their_own():
    text = render(merge_hosts([catalog("dgx-1-v100"), catalog("rtx4090-pcie-4")]))
    assert text.count("Legend:") == 2
    assert "\tNV1\t" in text.split("Host host1")[0]
    assert "\tNV1\t" not in text.split("Host host1")[1]


def test_without_gpu_there_is_no_matrix():
    with pytest.raises(TopologyError, match="cpu-2-socket: no GPU, and nvidia-smi's matrix has GPUs and NICs only"):
        render(catalog("cpu-2-socket"))


@pytest.mark.parametrize(("name", "columns"), [("dgx-h100", 80), ("dgx-h100", 40), ("mi250x", 80)])
def test_a_narrow_terminal_has_every_pair_in_its_columns(name, columns):
    topology = catalog(name)
    text = render(topology, columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    found, heads = {}, []
    for line in text.partition("Legend:")[0].splitlines():
        cells = line.split()
        if line.startswith(" "):
            heads = cells
        elif cells:
            found |= {(cells[0], other): code for other, code in zip(heads, cells[1:], strict=False)}
    for pair in topology.pairs:
        assert found[pair.a, pair.b] == found[pair.b, pair.a] == pair.code
