"""What listings of `nvidia-smi nvlink` have in common: GPUs and links left out, lost lines, copies."""

import pytest

from tests.topology.readers.nvidia.listings import address, header, remote, status, uuid
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status


def read(text):
    assert nvidia_nvlink_status.matches(text)
    return nvidia_nvlink_status.read(text, "box/dump.txt")


NONE = "NVML: Unable to retrieve NVLink information as all links are inActive"


def test_a_sentence_on_the_header_line():
    text = header(0, "NVIDIA RTX A4000").replace("\n", " Device does not have or support Nvlink\n")
    topology = read(text)
    assert topology.facts["inactive_gpus"] == ["GPU0"]
    assert topology.devices[0].name == "NVIDIA RTX A4000"


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


def test_a_gpu_of_which_nothing_is_said():
    text = status([[25.0] * 2, [25.0] * 2])
    topology = read(header(7, "NVIDIA A100-SXM4-40GB", 2) + text.replace("GPU 0", "GPU 8").replace("GPU 1:", "GPU 9:"))
    assert topology.facts["links_per_gpu"] == {"GPU8": 2, "GPU9": 2}
    assert "nothing is said of the links of GPU7" in topology.warnings[0]


def test_a_lost_line_of_a_gpu_alone_is_a_warning():
    topology = read(status([[25.0] * 4]).replace("\t Link 2: 25 GB/s\n", ""))
    assert topology.warnings == ("dump.txt:1: GPU0: no line for Link 2; the text may have lost it",)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: t.rindex(" 5: ")], "dump.txt:14: the text ends inside a line"),
        (lambda t: t + "GPU", "dump.txt:15: the text ends inside a line"),
        (lambda t: t + "GPU 2: NVIDIA A100-SX", "dump.txt:15: the text ends after the line of GPU2"),
        (lambda t: t + "GPU 2: NVIDIA A100 (UUID: GPU-0", "dump.txt:15: the text ends inside the line of a GPU"),
        (lambda t: t.replace("\t Link 2: 25 GB/s\n", "", 1), "dump.txt:1: GPU0: no line for Link 2, which GPU1"),
        (lambda t: t.replace("Link 2", "Link 1", 1), "dump.txt:4: GPU0: Link 1 follows Link 1"),
        (lambda t: t.replace("GPU 1", "GPU 0", 1), "dump.txt:8: GPU 0 has another UUID than on line 1"),
        (lambda t: t.replace(uuid(1), uuid(0)), "dump.txt:8: GPU 1 has the UUID of GPU 0 (line 1)"),
        (lambda t: t.replace("GPU 1:", "GPU 4000:"), "dump.txt:8: GPU number 4000"),
        (lambda t: t.replace("GPU 1:", f"GPU {'9' * 5000}:"), "dump.txt:8: GPU number 999"),
        (lambda t: "\n".join(t.split("\n")[1:]), "dump.txt:1: a link above the first line"),
        (lambda t: t + "...\n", "dump.txt:15: the text ends with lines left out"),
        (lambda t: t.replace("Link 3:", "Link 3", 1), "dump.txt:5: 'Link 3 25 GB/s' is damaged"),
        (lambda t: t + NONE + "\n", "dump.txt:9: GPU1 has links and a line that says that it has none"),
        (lambda t: "", "dump.txt:1: no line `GPU 0: NAME"),
    ],
)
def test_damage(damage, says):
    with pytest.raises(TopologyError) as error:
        nvidia_nvlink_status.read(damage(status([[25.0] * 6, [25.0] * 6])), "dump.txt")
    assert says in str(error.value)


PREFIXES = ["2025-03-04 10:11:12 INFO ", "3: ", "[1,0]<stdout>:", "> ", "# ", "    7\t"]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_on_every_line(prefix):
    ends = [[(address(9 + k % 6), 2 * gpu + k // 6) for k in range(12)] for gpu in range(8)]
    for reader, text in (
        (nvidia_nvlink_status, status([[25.0] * 3 + [None]] * 2)),
        (nvidia_nvlink_remote, remote(ends)),
    ):
        pasted = "".join(prefix + line for line in text.splitlines(True))
        assert reader.matches(pasted)
        assert reader.read(pasted, "links.txt") == reader.read(text, "links.txt")
