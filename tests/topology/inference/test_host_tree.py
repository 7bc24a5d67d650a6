from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.topology.paths import latency_us
from topocomm.topology.inference.host_tree import LEVELS, group_words, host_tree, merge_groups
from topocomm.topology.links import PATH_LATENCY_US
from topocomm.topology.model import Device, Topology

CODES = ["PIX", "PXB", "PHB", "NODE", "SYS"]


def gpus(count, **fields):
    return [Device(f"GPU{i}", "gpu", **{key: values[i] for key, values in fields.items()}) for i in range(count)]


def as_topology(tree):
    return Topology("t", "test", tree.devices, tree.links)


@st.composite
def ultrametrics(draw):
    """Devices as addresses in a random tree; the code of a pair is the level at which their addresses part."""
    count = draw(st.integers(2, 9))
    addresses = [draw(st.tuples(*[st.integers(0, 1)] * 5)) for _ in range(count)]
    codes = {}
    for i, j in combinations(range(count), 2):
        shared = next((k for k in range(5) if addresses[i][k] != addresses[j][k]), 4)
        codes[f"GPU{i}", f"GPU{j}"] = CODES[4 - shared]
    return count, codes


@given(ultrametrics())
@examples(60)
def test_path_latency_depends_on_the_code_alone(machine):
    count, codes = machine
    tree = host_tree(gpus(count), codes)
    assert tree.warnings == ()
    for (a, b), code in codes.items():
        assert latency_us(as_topology(tree), a, b) == pytest.approx(PATH_LATENCY_US[code], abs=1e-9), (a, b, code)


@given(ultrametrics())
@examples(30)
def test_the_result_is_a_tree_of_both_directions(machine):
    count, codes = machine
    tree = host_tree(gpus(count), codes)
    edges = {(link.src, link.dst) for link in tree.links}
    assert {(b, a) for a, b in edges} == edges
    assert len(edges) == 2 * (len(tree.devices) - 1)
    assert all(d.kind in ("gpu", "switch", "numa", "host") for d in tree.devices)


def test_numa_numbers_become_nodes_and_reach_the_nics():
    devices = [*gpus(2, numa=[3, 8]), Device("mlx5_0", "nic")]
    codes = {("GPU0", "GPU1"): "SYS", ("GPU0", "mlx5_0"): "SYS", ("GPU1", "mlx5_0"): "PIX"}
    tree = host_tree(devices, codes)
    by_id = {d.id: d for d in tree.devices}
    assert (by_id["numa3"].numa, by_id["numa8"].numa) == (3, 8)
    assert by_id["mlx5_0"].numa == 8
    assert latency_us(as_topology(tree), "GPU0", "GPU1") == PATH_LATENCY_US["SYS"]


def test_a_pair_without_a_code_is_placed_by_numa_then_by_cpus():
    by_number = host_tree(gpus(3, numa=[0, 0, 1]), {("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "SYS"})
    assert {d.id for d in by_number.devices if d.kind == "numa"} == {"numa0", "numa1"}
    by_cpus = host_tree(
        gpus(3, cpu_affinity=["0-7", "0-7", "8-15"]), {("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "SYS"}
    )
    (node,) = [d for d in by_cpus.devices if d.kind == "numa"]
    assert node.numa is None
    assert {link.src for link in by_cpus.links if link.dst == node.id and link.kind == "pcie"} == {"GPU0", "GPU1"}


def test_a_device_that_nothing_places_hangs_off_the_host():
    tree = host_tree(gpus(3), {("GPU0", "GPU1"): "SYS"})
    host = next(d.id for d in tree.devices if d.kind == "host")
    assert {link.src for link in tree.links if link.dst == host} == {"GPU0", "GPU1", "GPU2"}


def test_codes_win_over_numa_numbers_and_say_so():
    tree = host_tree(gpus(2, numa=[0, 0]), {("GPU0", "GPU1"): "SYS"})
    assert not [d for d in tree.devices if d.kind == "numa"]
    assert "GPU0, GPU1: NUMA affinity contradicts the pair codes" in tree.warnings[0]


def test_codes_that_are_no_tree_are_reported():
    codes = {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU2"): "PIX", ("GPU0", "GPU2"): "SYS"}
    (warning,) = host_tree(gpus(3), codes).warnings
    assert "no tree" in warning
    assert "SYS" in warning or "PIX" in warning


def test_ids_of_the_source_are_never_taken():
    devices = [Device("pcie0", "gpu"), Device("GPU1", "gpu")]
    tree = host_tree(devices, {("pcie0", "GPU1"): "PIX"})
    assert [d.id for d in tree.devices] == ["pcie0", "GPU1", "pcie1"]


def test_figures_come_from_the_rows_given():
    tree = host_tree(gpus(2), {("GPU0", "GPU1"): "SYS"}, pcie="pcie4", smp="smp-amd")
    assert {link.gb_per_s for link in tree.links} == {32.0}
    assert {link.gb_per_s for link in host_tree(gpus(2), {("GPU0", "GPU1"): "SYS"}).links} == {None}


def test_levels_cover_the_codes():
    assert set(LEVELS) == set(PATH_LATENCY_US)


def test_merge_groups_keeps_order():
    assert merge_groups([("c",), ("a", "b"), ("d",)], [("d", "c"), ("b", "a")]) == [("c", "d"), ("a", "b")]


def test_group_words():
    assert group_words(["a", "b"]) == "a, b"
    assert group_words(list("abcdef")) == "a, b, c, d and 2 more"


def test_a_numa_node_stays_above_its_pcie_switch():
    tree = host_tree(gpus(2, numa=[0, 0]), {("GPU0", "GPU1"): "PIX"})
    assert {d.id: d.kind for d in tree.devices[2:]} == {"numa0": "numa", "pcie0": "switch"}
    assert latency_us(as_topology(tree), "GPU0", "GPU1") == PATH_LATENCY_US["PIX"]


def test_place_does_not_unite_what_a_code_holds_apart():
    codes = {("GPU0", "GPU2"): "PIX", ("GPU1", "GPU2"): "SYS"}  # NVLink hides the path of GPU0-GPU1
    tree = host_tree(gpus(3, cpu_affinity=["0-7", "0-7", "0-7"]), codes)
    assert latency_us(as_topology(tree), "GPU1", "GPU2") == PATH_LATENCY_US["SYS"]
