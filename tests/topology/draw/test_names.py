import pytest

from topocomm.topology.draw.names import counts, label, listed, plural, ranges, rate_words
from topocomm.topology.inference.pci_tree import natural
from topocomm.topology.model import Device, Topology


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["GPU/0", "GPU/1", "GPU/2", "GPU/5"], "GPU/0-2,5"),
        (["NIC/mlx5_0", "NIC/mlx5_1"], "NIC/mlx5_0-1"),
        (["spine"], "spine"),
        (["h0", "h2", "node"], "h0,2, node"),
        ([], ""),
    ],
)
def test_ranges(names, text):
    assert ranges(names) == text


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (Device("h3/GPU7", "gpu"), "GPU/7"),
        (Device("mlx5_0", "nic", name="mlx5_0"), "NIC/mlx5_0"),
        (Device("nvswitch0", "switch"), "NVS/0"),
        (Device("bridge1", "switch"), "HB/1"),
        (Device("rail0", "switch"), "SW/rail0"),
        (Device("domain0", "numa"), "NUMA/?"),
        (Device("numa8", "numa", numa=8), "NUMA/8"),
    ],
)
def test_labels(device, text):
    assert label(device) == text


def test_further_ports_of_a_card_are_neither_nics_nor_network_switches():
    port = Device("mlx5_1", "switch", name="network port mlx5_1")
    card = Topology("card", "test", (Device("mlx5_0", "nic"), port, Device("leaf", "switch", host="network")), ())
    assert label(port) == "PORT/mlx5_1"
    assert counts(card) == "1 NIC, 1 further NIC port, 1 network switch"


def test_names_of_nics_are_shown_while_short():
    nics = [Device(f"NIC{i}", "nic", name=f"mlx5_{i}") for i in range(6)]
    assert listed(nics[:2]) == "NIC/0 mlx5_0, NIC/1 mlx5_1"
    assert listed(nics) == "NIC/0-5"


def test_plural():
    assert [plural(1, "GPU"), plural(2, "GPU"), plural(2, "NVSwitch")] == ["1 GPU", "2 GPUs", "2 NVSwitches"]


def test_names_are_sorted_as_people_do():
    assert sorted(["node10", "node2", "node1a"], key=natural) == ["node1a", "node2", "node10"]


def test_rates_are_rounded_for_people():
    rates = [None, 449.9999, 450.0, 25.78125, 0.0641, 1800.0, 999.7, 12345.6]
    words = ["GB/s not known", "450 GB/s", "450 GB/s", "25.8 GB/s", "0.0641 GB/s", "1800 GB/s", "1000 GB/s"]
    assert [rate_words(rate) for rate in rates] == [*words, "12346 GB/s"]
