"""`nvidia-smi nvlink -s`: facts field by field, copies, damage."""

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.nvidia.listings import header, status, uuid
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status, nvidia_p2p, nvidia_smi


def read(text):
    assert nvidia_nvlink_status.matches(text)
    assert not any(reader.matches(text) for reader in (nvidia_nvlink_remote, nvidia_p2p, nvidia_smi))
    return nvidia_nvlink_status.read(text, "box/dump.txt")


def test_every_fact():
    topology = read(status([[25.0] * 12, [25.0] * 12]))
    assert topology.name == "dump" and topology.source == "nvidia-smi nvlink -s"
    assert [(d.id, d.kind, d.name) for d in topology.devices] == [
        ("GPU0", "gpu", "NVIDIA A100-SXM4-40GB"),
        ("GPU1", "gpu", "NVIDIA A100-SXM4-40GB"),
    ]
    assert topology.links == topology.pairs == topology.warnings == ()
    assert topology.facts == {
        "links_per_gpu": {"GPU0": 12, "GPU1": 12},
        "active_links_per_gpu": {"GPU0": 12, "GPU1": 12},
        "nvlink_total_per_gpu": {"GPU0": 12, "GPU1": 12},
        "inactive_gpus": [],
        "link_gb_per_s": 25.0,
        "uuids": {"GPU0": uuid(0), "GPU1": uuid(1)},
    }


def test_links_that_are_down_are_listed_but_not_counted_as_active():
    facts = read(status([[26.562] * 4 + [None] * 2, [26.562] * 6])).facts
    assert facts["links_per_gpu"] == {"GPU0": 6, "GPU1": 6}
    assert facts["active_links_per_gpu"] == facts["nvlink_total_per_gpu"] == {"GPU0": 4, "GPU1": 6}
    assert facts["inactive_links"] == {"GPU0": [4, 5]}
    assert facts["link_gb_per_s"] == 26.562


@pytest.mark.parametrize(
    "sentence",
    [
        "NVML: Unable to retrieve NVLink information as all links are inActive",
        "Device does not have or support Nvlink",
        "NVML: all links are inactive",
        "NVLink not supported",
    ],
)
def test_a_sentence_says_that_there_are_no_links(sentence):
    topology = read(status([[14.062] * 4, [14.062] * 4, sentence]))
    assert topology.facts["inactive_gpus"] == ["GPU2"]
    assert topology.facts["links_per_gpu"] == {"GPU0": 4, "GPU1": 4, "GPU2": 0}
    assert topology.warnings == ()


def test_all_links_down():
    facts = read(status([[None] * 6, [None] * 6])).facts
    assert facts["inactive_gpus"] == ["GPU0", "GPU1"] and "link_gb_per_s" not in facts


def test_different_models():
    text = status([[25.0] * 12]) + status([[25.0] * 12, [14.062] * 4], "NVIDIA RTX A6000").split("\n", 13)[13]
    facts = read(text).facts
    assert "link_gb_per_s" not in facts
    assert facts["link_gb_per_s_per_gpu"] == {"GPU0": 25.0, "GPU1": 14.062}


def test_different_rates_on_one_gpu_are_not_used():
    topology = read(status([[25.0] * 11 + [15.0], [25.0] * 12]))
    assert topology.facts["link_gb_per_s_per_gpu"] == {"GPU0": None, "GPU1": 25.0}
    assert topology.warnings == (
        "dump.txt:1: links of GPU0 have different rates: 15 and 25 GB/s; none of them is used",
    )


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: t.rindex(" GB/s")], "dump.txt:14: the text ends inside Link 5 of GPU1"),
        (lambda t: t[: t.rindex("\t Link 5")], "dump.txt:13: the text ends inside the listing: GPU1 has 5 links"),
        (lambda t: t.replace("\t Link 5: 25 GB/s\n", "", 1), "dump.txt:6: GPU0 has 5 links, GPU1 of its model 6"),
        (lambda t: t.replace("25 GB/s", "fast", 1), "dump.txt:2: Link 0 of GPU0: 'fast' is no state of a link"),
        (lambda t: t.replace("25 GB/s", "0 GB/s", 1), "'0 GB/s' is no state of a link"),
        (lambda t: t.replace("25 GB/s", "Remote Device 0000:01:00.0: Link 1", 1), "is a remote device, as of"),
    ],
)
def test_damage(damage, says):
    with pytest.raises(TopologyError) as error:
        nvidia_nvlink_status.read(damage(status([[25.0] * 6, [25.0] * 6])), "dump.txt")
    assert says in str(error.value)


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        status([[25.0] * 18]) + "Link 1: " + "2" * 1_000_000,
        "GPU 0: " + "x " * 500_000,
        "GPU 0: a (UUID: b)\nLink 0: 1 GB/s\n" * 30_000,
        "".join(header(i, "NVIDIA A100") + "Link 1: 25 GB/s\nLink 2: 25 GB/s\n" for i in range(1000)),
        ("GPU 0: " + "(UUID: " * 100_000),
    ],
)
def test_a_megabyte_is_read(text):
    damage.attempt(nvidia_nvlink_status, text)


@each_of("nvidia-smi-nvlink-s")
def test_facts(path):
    wanted = expected(path)
    topology = nvidia_nvlink_status.read(path.read_bytes().decode(), str(path))
    assert topology.warnings or not wanted["malformed"]
    facts = {**topology.facts, "gpus": len(topology.devices), "malformed": wanted["malformed"]}
    assert_said(facts, wanted, absent=None)
