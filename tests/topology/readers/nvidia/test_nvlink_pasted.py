"""Listings of links as people paste them, and switches that the driver does not show."""

import pytest

from tests.topology.readers.nvidia.listings import address, header, remote, status
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status

HIDDEN = "FFFFFFFF:FF:FF.0"
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
