"""`amd-smi topology --json`, both shapes."""

import json

import pytest

from tests.topology.readers.amd.texts import all_pairs, bus, codes_of, json_links, json_maps
from topocomm.errors import TopologyError
from topocomm.topology.readers.amd import amd_smi, amd_smi_json, amd_smi_xgmi, rocm_smi
from topocomm.topology.readers.plain import topology_json


def own(value, other):
    return lambda i, j: value if i == j else other


NEW = {
    "weight": own(0, 15),
    "link_status": own("ENABLED", "ENABLED"),
    "link_type": own("SELF", "XGMI"),
    "num_hops": own(0, 1),
    "bandwidth": own("N/A", "64000-128000"),
    "coherent": own("SELF", "C"),
    "atomics": own("SELF", "64,32"),
    "dma": own("SELF", "T"),
    "bi_dir": own("SELF", "F"),
}
OLD = {
    "link_accessibility": own("ENABLED", "DISABLED"),
    "weight": own(0, 72),
    "hops": own(0, 3),
    "link_type": own("SELF", "PCIE"),
    "numa_bandwidth": own("N/A", "N/A"),
}


def read(text):
    assert amd_smi_json.matches(text)
    assert not any(other.matches(text) for other in (rocm_smi, amd_smi, amd_smi_xgmi))
    return amd_smi_json.read(text, "dump.json")


def test_links():
    topology = read(json_links(4, NEW))
    assert [(d.id, d.bus_id) for d in topology.devices] == [(f"GPU{i}", bus(i)) for i in range(4)]
    assert codes_of(topology) == all_pairs(4, "XGMI")
    assert topology.facts == {
        "access": all_pairs(4, "ENABLED"),
        "weight": all_pairs(4, 15),
        "hops": all_pairs(4, 1),
        "numa_bw": all_pairs(4, "64000-128000"),
        "coherency": all_pairs(4, "C"),
        "atomics": all_pairs(4, "64,32"),
        "dma": all_pairs(4, "T"),
        "bidirectional": all_pairs(4, "F"),
    }
    assert {link.lanes for link in topology.links} == {2}


def test_maps():
    topology = read(json_maps(3, OLD))
    assert {d.bus_id for d in topology.devices} == {None}
    assert codes_of(topology) == all_pairs(3, "PCIE")
    assert topology.facts["access"] == all_pairs(3, "DISABLED")
    assert topology.facts["weight"] == all_pairs(3, 72)
    assert topology.facts["hops"] == all_pairs(3, 3)
    assert topology.facts["numa_bw"] == all_pairs(3, None)
    assert {pair.latency_us for pair in topology.pairs} == {2.0}


def test_the_first_release():
    old = {
        "link_accessibility": own(True, False),
        "link_type": own(0, "XMGI"),
        "weight": own(0, "AMDSMI_STATUS_NO_DATA"),
    }
    topology = read(json_maps(2, old))
    assert codes_of(topology) == {"GPU0-GPU1": "XGMI"}
    assert topology.facts == {"access": {"GPU0-GPU1": "False"}, "weight": {"GPU0-GPU1": None}}


@pytest.mark.parametrize("key", NEW)
def test_what_is_filtered_out_is_absent(key):
    topology = read(json_links(2, {key: NEW[key]}))
    assert len(topology.facts) + len(topology.pairs) == 1


def test_some_gpus_only():
    text = json_links(3, NEW).replace('"gpu": 2', '"gpu": 7').replace('"gpu": 1', '"gpu": 5')
    topology = read(text)
    assert codes_of(topology) == {"GPU0-GPU5": "XGMI", "GPU0-GPU7": "XGMI", "GPU5-GPU7": "XGMI"}


def test_warnings_above_and_a_prompt_below():
    text = "WARNING: User is missing the following required groups: render\n" + json_links(2, NEW) + "\n[me@node ~]$"
    assert codes_of(read(text + " \n")) == {"GPU0-GPU1": "XGMI"}


def test_plain_topology_json_is_not_taken():
    text = json.dumps({"schema": "topocomm.topology/1", "devices": [{"id": "gpu"}], "links": [], "weight": 1}, indent=1)
    assert topology_json.matches(text) and not amd_smi_json.matches(text)


def items(count=2):
    return json.loads(json_links(count, NEW))


def changed(change):
    document = items()
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[0].pop("gpu"), r"dump\.json: \[0\]\.gpu: expected the number of a GPU, got nothing"),
        (lambda d: d[0].update(gpu=True), r"\[0\]\.gpu: expected"),
        (lambda d: d[1].update(gpu=0), r"two objects have the same 'gpu'"),
        (lambda d: d[0].update(bdf="card0"), r'\[0\]\.bdf: expected a bus id such as .*, got "card0"'),
        (lambda d: d[0].update(links={}), r"\[0\]\.links: expected a list of objects"),
        (lambda d: d[1].pop("links"), r"\[1\]\.links: expected a list of objects, got nothing"),
        (lambda d: d[0].update(links=[3]), r"\[0\]\.links\[0\]: expected an object, got 3"),
        (lambda d: d[0]["links"].pop(), r"\[0\]\.links: nothing for GPU 1"),
        (lambda d: d.pop(), r"\[0\]\.links: GPU 1 has no object of its own"),
        (lambda d: d[0]["links"].append(d[0]["links"][0]), r"two of them lead to the same GPU"),
        (lambda d: d[0]["links"][1].pop("weight"), r"\[0\]\.links\[1\]: 'weight' is missing, other links have it"),
        (lambda d: [link.pop("weight") for link in d[1]["links"]], r"\[1\]: 'weight' is missing, other GPUs have it"),
        (lambda d: d[0]["links"][1].update(weight=1.5), r"\[0\]\.links\[1\]\.weight: expected a text or a whole"),
        (lambda d: d[0]["links"][1].update(weight=-1), r"\[0\]: weight: GPU0-GPU1 is '-1'"),
        (lambda d: d[0]["links"][1].update(link_type="PCIE"), r"\[1\]: link_type: not symmetric"),
        (lambda d: d[0]["links"][1].update(link_type="NVLINK"), r"\[0\]: link_type: GPU0-GPU1 is 'NVLINK'"),
        (lambda d: d.clear(), r"a list without GPUs"),
    ],
)
def test_damage_is_refused_with_its_path(change, message):
    with pytest.raises(TopologyError, match=message):
        amd_smi_json.read(changed(change), "dump.json")


def test_maps_that_miss_a_gpu():
    with pytest.raises(TopologyError, match=r"\[0\]\.hops: nothing for GPU 1"):
        read(json_maps(2, OLD).replace('"gpu_1": 3', '"gpu_9": 3', 1))
    with pytest.raises(TopologyError, match=r"\[0\]\.hops: expected an object with gpu_0"):
        read('[{"gpu": 0, "hops": [1]}]')


def test_a_sample_of_a_manual():
    text = json_links(2, NEW).replace('"bi_dir": "F"\n', '"bi_dir": "F",\n').replace("    {\n", "    ...\n    {\n", 1)
    with pytest.raises(
        TopologyError, match=r"dump\.json:2: not JSON at column 5, and lines were left out \(line 2: '\.\.\.'\)"
    ):
        read(text)


def test_a_text_that_was_cut():
    text = json_links(2, NEW)
    with pytest.raises(TopologyError, match=r"dump\.json:\d+: not JSON"):
        read(text[:300])
    with pytest.raises(TopologyError, match="not usable JSON"):
        read('[{"gpu": 0, "weight": NaN}]')


def test_too_many_gpus():
    with pytest.raises(TopologyError, match="200 GPUs; a host has at most 128"):
        amd_smi_json.read(json.dumps([{"gpu": i} for i in range(200)]), "dump.json")


LINKS = json_links(2, NEW)
OTHER = json.dumps([{"gpu": 0, "usage": {"gfx_activity": {"value": 1, "unit": "%"}}}], indent=4)


def test_the_json_of_another_command_below():
    both = f"$ amd-smi topology --json\n{LINKS}\n$ amd-smi metric --json\n{OTHER}\n"
    assert read(both).pairs == read(LINKS).pairs


@pytest.mark.parametrize("first", [LINKS, OTHER])
def test_two_documents_of_which_the_second_counts_are_refused(first):
    with pytest.raises(TopologyError, match=r"dump\.json:\d+: not JSON: Extra data at column 1"):
        amd_smi_json.read(f"{first}\n{LINKS}\n", "dump.json")
