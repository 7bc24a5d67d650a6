"""`rocm-smi --showtopo` and its single tables, of ROCm 5 and 6, whole and damaged."""

import json
import re

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.amd.texts import all_pairs, codes_of, rocm_numa_old, rocm_tables
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi, rocm_smi

WEIGHT, HOPS, TYPE = "Weight between two GPUs", "Hops between two GPUs", "Link Type between two GPUs"
ACCESS, BANDWIDTH = "Link accessibility between two GPUs", "Bandwidth"


def read(text):
    assert rocm_smi.matches(text)
    assert not any(other.matches(text) for other in (amd_smi, amd_smi_json, amd_smi_xgmi))
    return rocm_smi.read(text, "/a/folder/dump.txt")


def islands(i, j):
    """Two hives of four."""
    return i // 4 == j // 4


TWO_HIVES = {
    WEIGHT: lambda i, j: "15" if islands(i, j) else "72",
    HOPS: lambda i, j: "1" if islands(i, j) else "3",
    TYPE: lambda i, j: "XGMI" if islands(i, j) else "PCIE",
}
NUMA = [(i // 4, i // 4) for i in range(8)]


@pytest.mark.parametrize("wide", [80, 90])
def test_two_hives(wide):
    topology = read(rocm_tables(8, TWO_HIVES, NUMA, wide))
    assert (topology.name, topology.source) == ("dump", "rocm-smi --showtopo")
    codes = {f"GPU{i}-GPU{j}": TWO_HIVES[TYPE](i, j) for i in range(8) for j in range(i + 1, 8)}
    assert codes_of(topology) == codes
    assert topology.facts["sections"] == ["weight", "hops", "link_type", "numa"]
    assert topology.facts["weight"] == {pair: 15 if code == "XGMI" else 72 for pair, code in codes.items()}
    assert topology.facts["hops"] == {pair: 1 if code == "XGMI" else 3 for pair, code in codes.items()}
    assert topology.facts["numa_node"] == {f"GPU{i}": i // 4 for i in range(8)}
    assert topology.facts["numa_affinity"] == topology.facts["numa_node"]
    assert topology.facts["numa_nodes"] == 2
    assert [d.numa for d in topology.devices[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {d.id for d in topology.devices[8:]} == {"numa0", "numa1", "host0"}
    assert sum(link.kind == "xgmi" for link in topology.links) == 24
    assert {link.kind for link in topology.links} == {"xgmi", "pcie", "smp"}
    assert len(topology.warnings) == 1 and "GB/s of xGMI unknown" in topology.warnings[0]


@pytest.mark.parametrize(("title", "key"), [(WEIGHT, "weight"), (HOPS, "hops"), (TYPE, "link_type")])
def test_one_table_alone(title, key):
    topology = read(rocm_tables(8, {title: TWO_HIVES[title]}))
    assert topology.facts["sections"] == [key]
    assert bool(topology.pairs) == (key == "link_type")
    assert [d.numa for d in topology.devices[:8]] == [None] * 8
    assert ("numa_affinity" in topology.facts, "numa_nodes" in topology.facts) == (False, False)


def test_access():
    topology = read(rocm_tables(2, {ACCESS: lambda i, j: "True"}).replace("GPU0         0 ", "GPU0         True"))
    assert topology.facts["access"] == {"GPU0-GPU1": "True"}


@pytest.mark.parametrize("old", [True, False])
def test_numa_alone(old):
    numa = [(3, 3), (3, 3), (1, 1), (0, -1)]
    topology = read(rocm_numa_old(numa) if old else rocm_tables(4, {}, numa))
    assert [d.numa for d in topology.devices] == [3, 3, 1, None]
    assert topology.facts == {
        "sections": ["numa"],
        "gpu_dev": {"GPU0": 0, "GPU1": 1, "GPU2": 2, "GPU3": 3},
        "numa_node": {"GPU0": 3, "GPU1": 3, "GPU2": 1, "GPU3": 0},
        "numa_affinity": {"GPU0": 3, "GPU1": 3, "GPU2": 1, "GPU3": -1},
        "numa_nodes": 2,
    }
    assert (topology.pairs, topology.links, topology.warnings) == ((), (), ())


def test_affinity_and_not_the_driver_s_node_places_a_gpu():
    topology = read(rocm_tables(2, {}, [(0, 2), (0, 3)]))
    assert [d.numa for d in topology.devices] == [2, 3]


def test_no_numa_node_is_known():
    topology = read(rocm_tables(2, {TYPE: lambda i, j: "XGMI"}, [(0, -1), (0, -1)]))
    assert topology.facts["numa_nodes"] is None
    assert [d.numa for d in topology.devices] == [None, None]


def test_weights_tell_direct_links_from_steps():
    # A ring of four: the driver calls pairs across XGMI too, in one hop.
    tables = {WEIGHT: lambda i, j: "15" if (i - j) % 2 else "30", HOPS: lambda i, j: "1", TYPE: lambda i, j: "XGMI"}
    topology = read(rocm_tables(4, tables))
    assert codes_of(topology) == all_pairs(4, "XGMI")
    assert {frozenset((link.src, link.dst)) for link in topology.links} == {
        frozenset(pair) for pair in [("GPU0", "GPU1"), ("GPU1", "GPU2"), ("GPU2", "GPU3"), ("GPU3", "GPU0")]
    }
    across = next(pair for pair in topology.pairs if (pair.a, pair.b) == ("GPU0", "GPU2"))
    assert across.latency_us is None


def test_weight_0_says_nothing():
    topology = read(rocm_tables(8, {WEIGHT: lambda i, j: "0", TYPE: lambda i, j: "XGMI"}))
    assert len(topology.links) == 56
    assert "does not say which XGMI pairs have a direct link" in topology.warnings[0]


def die_links(i, j):
    """Eight dies on four packages in a ring; a pair of neighbours has one link, the dies of a package four."""
    if i // 2 == j // 2:
        return "50000-200000"
    return "50000-100000" if i % 2 == j % 2 and abs(i // 2 - j // 2) in (1, 3) else "0-0"


def test_bandwidth_counts_links():
    text = rocm_tables(8, {BANDWIDTH: die_links}).replace(" 0 ", " N/A")
    topology = read(text + "Format: min-max; Units: mps\n")
    assert topology.pairs == ()
    lanes = {(link.src, link.dst): (link.lanes, link.gb_per_s) for link in topology.links}
    assert lanes["GPU0", "GPU1"] == (4, 200.0) and lanes["GPU0", "GPU2"] == (2, 100.0)
    assert ("GPU0", "GPU4") not in lanes
    assert topology.facts["numa_bw"]["GPU0-GPU4"] == "0-0"


def test_bandwidth_of_pcie_pairs_is_no_xgmi():
    text = rocm_tables(2, {BANDWIDTH: lambda i, j: "16000-16000"})
    assert read(text).links != ()
    assert read(text + "Non-xGMI links detected and is currently not supported\n").links == ()


def test_types_that_the_tool_does_not_know():
    topology = read(rocm_tables(3, {TYPE: lambda i, j: "XXXX" if i + j == 3 else "XGMI"}))
    assert codes_of(topology) == {"GPU0-GPU1": "XGMI", "GPU0-GPU2": "XGMI", "GPU1-GPU2": "XXXX"}
    assert len(topology.links) == 4


def test_weights_that_cannot_be_read():
    text = rocm_tables(2, {WEIGHT: lambda i, j: "N/A", HOPS: lambda i, j: str(2**64 - 1), TYPE: lambda i, j: "PCIE"})
    text = text.replace("\n", "\nERROR: GPU[1]\t: Cannot read Link Weight: Not supported on this machine\n", 2)
    topology = read(
        "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n" + text
    )
    assert topology.facts["weight"] == {"GPU0-GPU1": None}
    assert topology.facts["hops"] == {"GPU0-GPU1": None}
    assert "dump.txt:1: the tool said 'WARNING: AMD GPU device(s)" in topology.warnings[0]
    assert "dump.txt:3: the tool said 'ERROR: GPU[1]" in topology.warnings[1]


def test_squeezed_and_indented_copies():
    text = "  ========= Link Type between two GPUs =========\n  GPU0 GPU1\n  GPU0 0 PCIE\n  GPU1 PCIE 0\n"
    assert codes_of(read(text)) == {"GPU0-GPU1": "PCIE"}
    assert codes_of(read(text.replace("=", ""))) == {"GPU0-GPU1": "PCIE"}


def test_one_gpu():
    topology = read(rocm_tables(1, {TYPE: lambda i, j: ""}))
    assert ([d.id for d in topology.devices], topology.pairs) == (["GPU0"], ())


def test_some_gpus_only():
    text = rocm_tables(2, {TYPE: lambda i, j: "XGMI"}, [(0, 0), (1, 1)]).replace("GPU1", "GPU6").replace("[1]", "[6]")
    topology = read(text)
    assert codes_of(topology) == {"GPU0-GPU6": "XGMI"}
    assert topology.by_id["GPU6"].numa == 1


def test_json():
    system = {}
    for i in range(3):
        for j in range(i + 1, 3):
            system[f"(Topology) Weight between DRM devices {i} and {j}"] = "15" if j == 1 else "None"
            system[f"(Topology) Hops between DRM devices {i} and {j}"] = "1"
            system[f"(Topology) Link type between DRM devices {i} and {j}"] = "XGMI"
    cards = {f"card{i}": {"(Topology) Numa Node": "0", "(Topology) Numa Affinity": str(i - 1)} for i in range(3)}
    topology = read(json.dumps({**cards, "system": system}))
    assert codes_of(topology) == all_pairs(3, "XGMI")
    assert topology.facts["weight"] == {"GPU0-GPU1": 15, "GPU0-GPU2": None, "GPU1-GPU2": None}
    assert topology.facts["hops"] == all_pairs(3, 1)
    assert [d.numa for d in topology.devices] == [None, 0, 1]
    lost = {key: value for key, value in system.items() if key != "(Topology) Hops between DRM devices 1 and 2"}
    with pytest.raises(TopologyError, match=r"dump\.txt: system: no hops between devices 1 and 2"):
        read(json.dumps({"system": lost}))
    system["(Topology) Hops between DRM devices 0 and 1"] = 1
    with pytest.raises(TopologyError, match=r"system\.\(Topology\) Hops .*: expected a text, got 1"):
        read(json.dumps({"system": system}))
    with pytest.raises(TopologyError, match="expected a NUMA number"):
        read(json.dumps({"card0": {"(Topology) Numa Affinity": "x"}}))
    with pytest.raises(TopologyError, match="no pair of GPUs"):
        read(json.dumps({"card0": {"x": "(Topology) Numa"}, "(Topology)": 1}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("XGMI", "15", 1),
            "GPU0-GPU1 is '15'; that is a cell of 'weight'; rocm-smi mixes up",
        ),
        (lambda text: text.replace("XGMI", "PCIE", 1), r"dump\.txt:5: Link Type .*: not symmetric: GPU0-GPU1"),
        (
            lambda text: text[: text.index("GPU2 ", text.index("GPU2 ") + 5)],
            "Link Type .*: no row for GPU2, GPU3, GPU4, GPU5 and 2 more",
        ),
        (lambda text: text.replace("XGMI ", "     ", 1), r"dump\.txt:4: .*: row GPU0 has 7 cells, the header 8"),
        (lambda text: text.replace("GPU1 ", "GPU0 ", 1), "row GPU1 where the header has GPU0|a GPU is named twice"),
        (lambda text: text.replace("Affinity: 0", "Affinity: 5", 1) + text, "another Affinity of GPU0 stands above"),
    ],
)
def test_damage_is_refused_with_its_place(change, message):
    text = rocm_tables(8, {TYPE: TWO_HIVES[TYPE]}, NUMA)
    with pytest.raises(TopologyError, match=message):
        read(change(text))


def test_tables_of_two_machines():
    text = rocm_tables(2, {WEIGHT: lambda i, j: "15"}) + rocm_tables(3, {HOPS: lambda i, j: "1"})
    with pytest.raises(TopologyError, match="names other GPUs than"):
        read(text)


def test_numa_lines_that_are_missing():
    text = rocm_tables(3, {TYPE: lambda i, j: "XGMI"}, [(0, 0), (1, 1), (2, 2)])
    topology = read(text[: text.index("GPU[2]")])
    assert topology.by_id["GPU2"].numa is None
    assert topology.facts["numa_affinity"]["GPU2"] is None and "numa_nodes" not in topology.facts
    assert "no Numa Affinity for GPU2; the text may be cut" in topology.warnings[0]


def test_a_number_that_may_be_cut_is_not_used():
    text = rocm_numa_old([(10, 10), (11, 11)])
    topology = read(text[: text.rindex("1")])
    assert topology.by_id["GPU1"].numa is None
    assert "the text ends inside this line" in topology.warnings[0]


def test_gpus_in_no_table():
    topology = read(rocm_tables(2, {TYPE: lambda i, j: "XGMI"}, [(0, 0), (0, 0), (1, 1)]))
    assert [d.id for d in topology.devices] == ["GPU0", "GPU1", "GPU2"]
    assert "GPU2: in no table" in topology.warnings[0]


def test_a_title_without_a_table():
    topology = read(rocm_tables(2, {TYPE: lambda i, j: "XGMI"}) + f"=== {HOPS} ===\n")
    assert "no table under 'Hops between two GPUs'" in topology.warnings[0]
    with pytest.raises(TopologyError, match="no table of GPUs"):
        read(f"=== {HOPS} ===\n")


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        rocm_tables(64, TWO_HIVES, [(i // 16, i // 16) for i in range(64)]),
        "=== Bandwidth ===\n" + "GPU0 " * 250_000,
        "\n" * 1_000_000 + " Weight between two GPUs",
        "=" * 1_000_000 + " Weight between two GPUs",
        "=== Numa Nodes ===\n" + "GPU[1]\t\t: (Topology) Numa Node: 1\n" * 28_000,
        "=== Hops between two GPUs ===\n" + "ERROR: GPU[1] " * 70_000,
        '{"system": {"(Topology) Numa":' + "[" * 900_000,
        "=== Hops between two GPUs ===\nGPU0 GPU1\n" + "GPU0 0 1\n" * 120_000,
    ],
    ids=range(8),
)
def test_large_texts_are_read(text):
    assert rocm_smi.matches(text)
    damage.attempt(rocm_smi, text)


TABLES = {
    "Weight between two GPUs": lambda i, j: "15" if i // 2 == j // 2 else "72",
    "Hops between two GPUs": lambda i, j: "1" if i // 2 == j // 2 else "3",
    "Link Type between two GPUs": lambda i, j: "XGMI" if i // 2 == j // 2 else "PCIE",
}


@pytest.mark.parametrize("sign", ["-", "*", "# "])
def test_titles_between_other_signs(sign):
    text = rocm_tables(4, TABLES, [(i // 2, i // 2) for i in range(4)])
    other = re.sub(r"=+ ((?:Weight|Hops|Link|Numa)[^=]*) =+", rf"{sign * 12} \1 {sign * 12}", text)
    assert other.count("=") < text.count("=")
    assert read(other).pairs == read(text).pairs


@each_of("rocm-smi-showtopo")
def test_facts(path):
    text = path.read_text()
    facts = expected(path)
    assert rocm_smi.matches(text)
    if facts["malformed"]:  # link types under the title of the weights
        with pytest.raises(TopologyError, match="Weight between two GPUs: GPU0-GPU1 is 'XGMI'; that is a cell of"):
            rocm_smi.read(text, path.name)
        return
    topology = rocm_smi.read(text, path.name)
    said = {
        **topology.facts,
        "gpus": sum(d.kind == "gpu" for d in topology.devices),
        "links": {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs} or None,
    }
    assert_said(said, facts, but={"malformed"}, absent=None)
    assert {d.id: d.numa for d in topology.devices if d.kind == "gpu"} == facts["numa_affinity"]
