"""`nvidia-smi nvlink -s`: facts field by field, copies, damage."""

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.nvidia.listings import DAMAGE, header, status, uuid
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status, nvidia_p2p, nvidia_smi

NONE = "NVML: Unable to retrieve NVLink information as all links are inActive"


def read(text):
    assert nvidia_nvlink_status.matches(text)
    assert not any(reader.matches(text) for reader in (nvidia_nvlink_remote, nvidia_p2p, nvidia_smi))
    return nvidia_nvlink_status.read(text, "box/dump.txt")


def refused(text):
    with pytest.raises(TopologyError) as error:
        nvidia_nvlink_status.read(text, "dump.txt")
    return str(error.value)


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
    "sentence", [NONE, "Device does not have or support Nvlink", "NVML: all links are inactive", "NVLink not supported"]
)
def test_a_sentence_says_that_there_are_no_links(sentence):
    topology = read(status([[14.062] * 4, [14.062] * 4, sentence]))
    assert topology.facts["inactive_gpus"] == ["GPU2"]
    assert topology.facts["links_per_gpu"] == {"GPU0": 4, "GPU1": 4, "GPU2": 0}
    assert topology.warnings == ()


def test_a_sentence_on_the_header_line():
    text = header(0, "NVIDIA RTX A4000").replace("\n", " Device does not have or support Nvlink\n")
    topology = read(text)
    assert topology.facts["inactive_gpus"] == ["GPU0"]
    assert topology.devices[0].name == "NVIDIA RTX A4000"


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


def test_gpus_left_out_between_others_exist():
    text = status([[25.0] * 2, [25.0] * 2]) + "...\n" + header(5, "NVIDIA A100-SXM4-40GB")
    topology = read(text + "\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n")
    assert [d.id for d in topology.devices] == [f"GPU{i}" for i in range(6)]
    assert topology.devices[3].name is None
    assert topology.facts["gpus_listed"] == 3
    assert topology.facts["links_per_gpu"] == {"GPU0": 2, "GPU1": 2, "GPU5": 2}
    assert topology.warnings == (
        "dump.txt:8: no lines for GPU2, GPU3, GPU4; they exist, because the GPUs around them are shown",
    )


def test_links_left_out_leave_the_gpu_without_figures():
    lines = status([[25.0] * 12, [25.0] * 12]).splitlines()
    for first in (12, 13):  # between links, and up to the next GPU
        topology = read("\n".join([*lines[:3], "   ...", *lines[first:]]) + "\n")
        assert topology.facts["links_per_gpu"] == {"GPU1": 12}
        assert "dump.txt:4: lines of GPU0 were left out" in topology.warnings[0]


@pytest.mark.parametrize(
    "paste",
    [
        lambda text: "user@node0:~$ nvidia-smi nvlink -s\n" + text + "user@node0:~$\n",
        lambda text: "\n".join("      " + line.replace("\t", "   ") for line in text.splitlines()),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\x1b[1m" + text.replace("\n", "\x1b[0m\n"),
        lambda text: "> " + text.replace("\n", "\n> "),
        lambda text: text.replace(" GB/s", "GB/s  "),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "".join(header(i, "NVIDIA A100-SXM4-40GB") for i in range(2)) + text,  # nvidia-smi -L
    ],
)
def test_copies(paste):
    text = status([[25.0] * 12, [25.0] * 12])
    assert read(paste(text)).facts == read(text).facts


def test_two_calls_for_a_gpu_each():
    one, two = status([[25.0] * 2, [25.0] * 2]).split("GPU 1")
    facts = read(f"$ nvidia-smi nvlink -s -i 0\n{one}$ nvidia-smi nvlink -s -i 1\nGPU 1{two}").facts
    assert facts["links_per_gpu"] == {"GPU0": 2, "GPU1": 2}


def test_one_gpu_alone():
    text = "GPU 1" + status([[25.0] * 2, [25.0] * 2]).split("GPU 1")[1]
    assert [d.id for d in read(text).devices] == ["GPU1"]


def test_a_second_listing_is_said():
    text = status([[25.0] * 2])
    topology = read(text + "$ nvidia-smi nvlink -c\n" + text.replace(": 25 GB/s", ", P2P is supported: true"))
    assert topology.warnings == ("dump.txt:5: a second listing starts here; only the first was read",)
    assert topology.facts["links_per_gpu"] == {"GPU0": 2}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: t.rindex(" GB/s")], "dump.txt:14: the text ends inside Link 5 of GPU1"),
        (lambda t: t[: t.rindex("\t Link 5")], "dump.txt:13: the text ends inside the listing: GPU1 has 5 links"),
        (lambda t: t[: t.rindex(" 5: ")], "dump.txt:14: the text ends inside a line"),
        (lambda t: t + "GPU", "dump.txt:15: the text ends inside a line"),
        (lambda t: t + "GPU 2: NVIDIA A100-SX", "dump.txt:15: the text ends after the line of GPU2"),
        (lambda t: t + "GPU 2: NVIDIA A100 (UUID: GPU-0", "dump.txt:15: the text ends inside the line of a GPU"),
        (lambda t: t.replace("\t Link 2: 25 GB/s\n", "", 1), "dump.txt:1: GPU0: no line for Link 2, which GPU1"),
        (lambda t: t.replace("\t Link 5: 25 GB/s\n", "", 1), "dump.txt:6: GPU0 has 5 links, GPU1 of its model 6"),
        (lambda t: t.replace("Link 2", "Link 1", 1), "dump.txt:4: GPU0: Link 1 follows Link 1"),
        (lambda t: t.replace("25 GB/s", "fast", 1), "dump.txt:2: Link 0 of GPU0: 'fast' is no state of a link"),
        (lambda t: t.replace("25 GB/s", "0 GB/s", 1), "'0 GB/s' is no state of a link"),
        (lambda t: t.replace("GPU 1", "GPU 0", 1), "dump.txt:8: GPU 0 has another UUID than on line 1"),
        (lambda t: t.replace(uuid(1), uuid(0)), "dump.txt:8: GPU 1 has the UUID of GPU 0 (line 1)"),
        (lambda t: t.replace("GPU 1:", "GPU 4000:"), "dump.txt:8: GPU number 4000"),
        (lambda t: t.replace("GPU 1:", f"GPU {'9' * 5000}:"), "dump.txt:8: GPU number 999"),
        (lambda t: "\n".join(t.split("\n")[1:]), "dump.txt:1: a link above the first line"),
        (lambda t: t + "...\n", "dump.txt:15: the text ends with lines left out"),
        (lambda t: t.replace("Link 3:", "Link 3", 1), "dump.txt:5: 'Link 3 25 GB/s' is damaged"),
        (lambda t: t + NONE + "\n", "dump.txt:9: GPU1 has links and a line that says that it has none"),
        (lambda t: "", "dump.txt:1: no line `GPU 0: NAME"),
        (lambda t: t.replace("25 GB/s", "Remote Device 0000:01:00.0: Link 1", 1), "is a remote device, as of"),
    ],
)
def test_damage(damage, says):
    assert says in refused(damage(status([[25.0] * 6, [25.0] * 6])))


def test_a_gpu_of_which_nothing_is_said():
    text = status([[25.0] * 2, [25.0] * 2])
    topology = read(header(7, "NVIDIA A100-SXM4-40GB", 2) + text.replace("GPU 0", "GPU 8").replace("GPU 1:", "GPU 9:"))
    assert topology.facts["links_per_gpu"] == {"GPU8": 2, "GPU9": 2}
    assert "nothing is said of the links of GPU7" in topology.warnings[0]


def test_a_lost_line_of_a_gpu_alone_is_a_warning():
    topology = read(status([[25.0] * 4]).replace("\t Link 2: 25 GB/s\n", ""))
    assert topology.warnings == ("dump.txt:1: GPU0: no line for Link 2; the text may have lost it",)


def test_mutations():
    texts = [status([[26.562] * 6, [26.562] * 4 + [None] * 2, NONE]), status([[25.781] * 6] * 3)]
    damage.attempts(nvidia_nvlink_status, texts, DAMAGE, seed=18, times=3000)


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
