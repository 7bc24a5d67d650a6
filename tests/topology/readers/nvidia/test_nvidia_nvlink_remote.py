"""`nvidia-smi nvlink -R`: switches, direct links, what does not follow, damage."""

from itertools import combinations

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.readers.nvidia.listings import address, header, meshed, remote, switched, uuid
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status, nvidia_p2p, nvidia_smi
from topocomm.topology.readers.nvidia.nvidia_nvlink_remote import links_of_model, nvlink_kind

H100 = "NVIDIA H100 80GB HBM3"
CUBE = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 1, (2, 6): 2, (3, 7): 2}
CUBE |= {(4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 1}


def read(text):
    assert nvidia_nvlink_remote.matches(text)
    assert not any(reader.matches(text) for reader in (nvidia_nvlink_status, nvidia_p2p, nvidia_smi))
    return nvidia_nvlink_remote.read(text, "box/dump.txt")


def codes(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def test_switches_that_every_gpu_sees():
    topology = read(remote(switched(4, 3, 4)))
    assert topology.facts == {
        "remote": {f"GPU{i}": {f"{8 + s:08x}:00:00.0": 4 for s in range(3)} for i in range(4)},
        "remote_ports": {
            f"GPU{i}": [[4 * s + k, f"{8 + s:08x}:00:00.0", 4 * i + k] for s in range(3) for k in range(4)]
            for i in range(4)
        },
        "nvlink_total_per_gpu": {f"GPU{i}": 12 for i in range(4)},
        "uuids": {f"GPU{i}": uuid(i) for i in range(4)},
        "nvswitches": 3,
        "nvswitch_busids": {f"{8 + s:08x}:00:00.0": 16 for s in range(3)},
    }
    assert [(d.id, d.kind, d.in_network) for d in topology.devices[4:]] == [("nvswitch0", "switch", None)]
    assert len(topology.links) == 8
    assert topology.links[0][:5] == ("GPU0", "nvswitch0", "nvlink", 12, 300.0)
    assert topology.pairs == topology.warnings == ()


def test_eighteen_links_reach_switches_that_reduce():
    topology = read(remote(switched(8, 2, 9), H100))
    assert topology.by_id["nvswitch0"].in_network == "nvls"
    assert topology.links[0][3:5] == (18, 450.0)


def test_one_gpu_with_numbers_that_no_gpu_has():
    topology = read(remote([[("00000008:00:00.0", 30), ("00000008:00:00.0", 31)]]))
    assert topology.facts["nvswitches"] == 1
    assert read(remote([[(address(1), 4), (address(1), 5)]])).facts.get("nvswitches") is None


def test_one_number_beyond_may_be_a_misprint():
    topology = read(remote([[(address(1), 40), (address(1), 5)]]))
    assert "nvswitches" not in topology.facts and not topology.links
    assert topology.warnings == (
        "dump.txt: whether the far ends are GPUs or NVSwitches does not follow from this listing: no links",
    )


def test_two_boards_of_switches():
    other = [[(f"000000C{s}:00:00.0", 14 + 2 * gpu + k) for s in range(3) for k in range(2)] for gpu in range(2)]
    topology = read(remote(switched(2, 3, 2) + other, "Tesla V100-SXM3-32GB"))
    assert topology.facts["nvswitches"] == 6
    assert len(topology.links) == 8 and topology.links[0][3:5] == (6, 150.0)


def test_a_bridge_between_two_gpus():
    topology = read(remote(meshed({(0, 1): 4}, 2), "NVIDIA RTX A6000"))
    assert [d.bus_id for d in topology.devices] == ["00000000:07:00.0", "00000000:17:00.0"]
    assert codes(topology) == {("GPU0", "GPU1"): "NV4"}
    assert topology.pairs[0].gb_per_s == 56.25 and topology.pairs[0].gb_per_s_source == "table"
    assert [link[:5] for link in topology.links] == [
        ("GPU0", "GPU1", "nvlink", 4, 56.25),
        ("GPU1", "GPU0", "nvlink", 4, 56.25),
    ]
    assert topology.facts["nvswitches"] == 0 and topology.warnings == ()


def test_numbers_of_links_that_are_up_have_gaps_at_the_far_end():
    numbers = [0, 1, 2, 3, 6, 7]
    topology = read(remote([[(address(1), n) for n in numbers], [(address(0), n) for n in numbers]]))
    assert codes(topology) == {("GPU0", "GPU1"): "NV6"}


@pytest.mark.parametrize(
    ("lanes", "gpus"),
    [
        (dict.fromkeys(combinations(range(4), 2), 4), 4),
        (dict.fromkeys(combinations(range(4), 2), 6), 4),
        (CUBE, 8),
        ({(0, 1): 3, (2, 3): 3}, 4),
        ({(0, 1): 2, (1, 2): 2, (2, 3): 2, (0, 3): 2}, 4),
    ],
)
def test_direct_links(lanes, gpus):
    topology = read(remote(meshed(lanes, gpus), H100 if gpus == 4 else "V100"))
    assert codes(topology) == {(f"GPU{a}", f"GPU{b}"): f"NV{n}" for (a, b), n in lanes.items()}
    assert all(d.bus_id in (None, address(int(d.id[3:])).lower()) for d in topology.devices)


def test_far_ends_that_do_not_agree_make_no_links():
    for text in (
        remote(meshed({(0, 1): 4}, 2)).replace(": Link 2\n", ": Link 9\n", 1),
        remote(meshed({(0, 1): 2, (1, 2): 2, (2, 3): 2, (0, 3): 2}, 4)).replace(": Link 2\n", ": Link 5\n", 1),
        remote([[(address(1), 0), (address(4), 0)], [(address(0), 0), (address(5), 0)]]),
    ):
        topology = read(text)
        assert topology.links == topology.pairs == () and "nvswitches" not in topology.facts
        assert "does not follow from this listing" in topology.warnings[-1]


def test_the_older_listing_has_no_numbers():
    text = remote(meshed({(0, 1): 4}, 2)).replace("Remote Device ", "")
    topology = read("\n".join(line.split(": Link")[0] for line in text.splitlines()) + "\n")
    assert codes(topology) == {("GPU0", "GPU1"): "NV4"}
    assert topology.facts["remote"] == {"GPU0": {address(1).lower(): 4}, "GPU1": {address(0).lower(): 4}}
    assert "remote_ports" not in topology.facts


def test_a_gpu_without_links():
    text = remote(meshed({(0, 1): 4}, 2)) + header(2, "NVIDIA A100-SXM4-40GB") + "NVML: all links are inActive\n"
    topology = read(text)
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU0": 4, "GPU1": 4, "GPU2": 0}
    assert topology.facts["remote"]["GPU2"] == {}
    assert codes(topology) == {("GPU0", "GPU1"): "NV4"}


def test_gpus_left_out():
    text = remote(switched(3, 3, 4)).replace("GPU 2:", "...\nGPU 6:").replace(uuid(2), uuid(6))
    topology = read(text)
    assert len([d for d in topology.devices if d.kind == "gpu"]) == 7
    assert topology.facts["gpus_listed"] == 3
    assert "nvswitches" not in topology.facts  # ports up to 11 are numbers that an A100 has


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: t.rindex("Link")], "dump.txt:10: the text ends inside Link 3 of GPU1"),
        (lambda t: t[: t.rindex(": Link")], "dump.txt:10: the text ends inside Link 3 of GPU1"),
        (lambda t: t[: t.rindex("\n\t")], "dump.txt:9: the text ends inside the listing: GPU1 has 3 links"),
        (lambda t: t.replace("Remote Device 00000000:17:00.0", "Remote 17:0", 1), "is no far end of a link"),
        (lambda t: t.replace("Remote Device 00000000:17:00.0: Link 0", "25 GB/s", 1), "'25 GB/s' is a rate"),
        (lambda t: t.replace(": Link 1\n", ": Link 0\n", 1), "dump.txt:1: GPU0 has two links to Link 0 of 00000000:17"),
        (lambda t: t.replace("\t Link 1: Remote Device 00000000:17:00.0: Link 1\n", ""), "no line for Link 1"),
    ],
)
def test_damage(damage, says):
    with pytest.raises(TopologyError) as error:
        nvidia_nvlink_remote.read(damage(remote(meshed({(0, 1): 4}, 2))), "dump.txt")
    assert says in str(error.value)


def test_more_links_than_a_gpu_has():
    with pytest.raises(TopologyError, match="GPU0 has 19 links; no GPU has more than 18"):
        nvidia_nvlink_remote.read(remote([[(address(1), k) for k in range(19)]]), "dump.txt")


def test_fewer_links_at_the_end_are_said():
    text = remote(switched(2, 3, 4))
    topology = read(text[: text.rindex("\t Link 11")])
    assert topology.warnings == ("dump.txt:25: GPU1 has 11 links, others of its model 12; the text may be cut",)


def test_a_changed_character_makes_no_wrong_link():
    change = damage.put("0123456789abcdef:. ")
    text = remote(meshed({(0, 1): 4}, 2))
    read, _ = damage.attempts(nvidia_nvlink_remote, [text], [change], seed=3, times=500, most=1)
    silent = [found for found in read if not found.warnings]
    assert silent
    assert all(codes(found) == {("GPU0", "GPU1"): "NV4"} for found in silent)


@pytest.mark.soak
def test_a_megabyte_is_read():
    for text in (
        remote(switched(160, 3, 6)),
        remote(meshed({(i, i + 1): 4 for i in range(0, 1000, 2)}, 1000)),
        header(0, "A100") + "Link 0: Remote Device " + "0" * 1_000_000,
        remote(meshed({(0, 1): 4}, 2)) * 2500,
    ):
        damage.attempt(nvidia_nvlink_remote, text)


@pytest.mark.parametrize(
    ("name", "kind", "links"),
    [
        ("Tesla P100-SXM2-16GB", "nvlink1", 4),
        ("Tesla V100-SXM2-32GB", "nvlink2", 6),
        ("NVIDIA A800-SXM4-80GB", "nvlink3", 12),
        ("NVIDIA RTX A6000", "nvlink3-rtx", 4),
        ("NVIDIA GeForce RTX 3090", "nvlink3-rtx", 4),
        ("NVIDIA GH200 480GB", "nvlink4", 18),
        ("NVIDIA H20", "nvlink4", 18),
        ("NVIDIA GB200", "nvlink5", 18),
        ("NVIDIA L4", "nvlink", 18),
        (None, "nvlink", 18),
    ],
)
def test_models(name, kind, links):
    assert (nvlink_kind(name), links_of_model(name)) == (kind, links)


@each_of("nvidia-smi-nvlink-R")
def test_facts(path):
    wanted = expected(path)
    topology = nvidia_nvlink_remote.read(path.read_bytes().decode(), str(path))
    gpus = sum(device.kind == "gpu" for device in topology.devices)
    facts = {**topology.facts, "gpus": gpus, "malformed": bool(topology.warnings)}
    assert_said(facts, wanted, absent=None)


HIDDEN = "FFFFFFFF:FF:FF.0"


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_hidden_switches(gpus):
    """The address and the port of all far ends are the same: a sign that there is a switch, not which."""
    topology = nvidia_nvlink_remote.read(remote([[(HIDDEN, 0)] * 18] * gpus, "NVIDIA B200"), "b200.txt")
    assert topology.facts["nvlink_total_per_gpu"] == {f"GPU{i}": 18 for i in range(gpus)}
    assert "nvswitches" not in topology.facts
    assert "nvswitch_busids" not in topology.facts
    assert [(d.id, d.kind, d.bus_id) for d in topology.devices[gpus:]] == [("nvswitch0", "switch", None)]
    assert {(link.src, link.dst, link.lanes) for link in topology.links if link.dst == "nvswitch0"} == {
        (f"GPU{i}", "nvswitch0", 18) for i in range(gpus)
    }
    assert all(device.bus_id is None for device in topology.devices)
    assert topology.warnings == (
        "b200.txt: the driver hides the addresses of the NVSwitches (FFFFFFFF:FF:FF.0): how many is not known",
    )


def test_hidden_and_shown_ends_are_no_pair_of_gpus():
    text = remote([[(HIDDEN, 0)] * 2, [(address(1), 0), (address(1), 1)]], "NVIDIA H100")
    topology = nvidia_nvlink_remote.read(text, "mixed.txt")
    assert topology.pairs == ()
    assert all(device.bus_id is None for device in topology.devices)


def test_some_links_of_one_gpu_do_not_count_the_switches():
    text = header(5, "NVIDIA A100-SXM4-80GB") + f"\t Link 0: Remote Device {address(20)}: Link 32\n"
    text += f"\t Link 1: Remote Device {address(20)}: Link 33\n"
    topology = nvidia_nvlink_remote.read(text, "part.txt")
    assert topology.facts["nvlink_total_per_gpu"] == {"GPU5": 2}
    assert "nvswitches" not in topology.facts
    assert "how many NVSwitches there are is not known" in " ".join(topology.warnings)


def test_all_links_of_one_gpu_count_the_switches():
    ends = [(address(20 + k % 6), 20 + k) for k in range(12)]
    listed = remote([ends]).replace("GPU 0:", "GPU 5:")
    assert nvidia_nvlink_remote.read(listed, "one.txt").facts["nvswitches"] == 6


def test_address_that_lost_a_digit_is_no_further_switch():
    ends = [[(address(9 + k % 6), 2 * gpu + k // 6) for k in range(12)] for gpu in range(8)]
    damaged = remote(ends).replace(f"Remote Device {address(9)}", f"Remote Device {address(9)[1:]}", 1)
    with pytest.raises(TopologyError, match="is no far end of a link"):
        nvidia_nvlink_remote.read(damaged, "switch.txt")
