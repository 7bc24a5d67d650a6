"""Several captures of one machine: how devices are joined, and what cannot be of one machine."""

import pytest

from tests.topology.joined import capture, codes, gpus, rates, topo_m
from topocomm.errors import TopologyError
from topocomm.topology.merge.captures import combine, same_host
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.merge.device_matching import bus_key, match_devices
from topocomm.topology.model import Device, Pair
from topocomm.topology.readers.nvidia import nvidia_p2p

# Addresses and devices.


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("00000000:0F:00.0", "0000:0f:00.0"),
        ("0000:0f:00.0", "0000:0f:00.0"),
        ("0f:00.0", "0000:0f:00.0"),
        ("f000", "0000:0f:00.0"),
        ("26000", "0000:26:00.0"),
        ("00000008:00:00.0", "0008:00:00.0"),
        ("8:0:0.1", "0008:00:00.1"),
        ("800000", "0008:00:00.0"),
        ("17a1", "0000:01:7a.1"),
        ("1234abcd:c1:00.0", "1234abcd:c1:00.0"),
        ("", None),
        (None, None),
        ("GPU0", None),
        ("0000:0f:00", None),
    ],
)
def test_addresses(text, key):
    assert bus_key(text) == key


def test_gpus_are_joined_by_address_whatever_their_numbers():
    first = capture("a", [Device("GPU0", "gpu", bus_id="00000000:0F:00.0"), Device("GPU1", "gpu", bus_id="2d000")])
    other = capture(
        "b",
        [
            Device("GPU0", "gpu", name="second", bus_id="0000:2d:00.0", numa=1),
            Device("GPU1", "gpu", name="first", bus_id="0f:00.0", numa=0),
        ],
        pairs=[Pair("GPU0", "GPU1", "NV4")],
        source="lstopo",
        facts={"weights": {"GPU0-GPU1": 15}, "order": ["GPU0", "GPU1"], "uuids": {"GPU0": "x"}},
    )
    found = combine([first, other])
    assert found.devices == (
        Device("GPU0", "gpu", name="first", bus_id="00000000:0F:00.0", numa=0),
        Device("GPU1", "gpu", name="second", bus_id="2d000", numa=1),
    )
    assert codes(found) == {("GPU1", "GPU0"): "NV4"}
    assert found.facts == {"weights": {"GPU1-GPU0": 15}, "order": ["GPU1", "GPU0"], "uuids": {"GPU1": "x"}}
    assert found.source == "NCCL topology XML + lstopo" and found.name == "a" and found.warnings == ()


def test_gpus_are_joined_by_uuid():
    first = capture("a", [Device("GPU0", "gpu"), Device("GPU1", "gpu")], facts={"uuids": {"GPU0": "x", "GPU1": "y"}})
    other = capture(
        "b",
        [Device("GPU0", "gpu", numa=3), Device("GPU1", "gpu", numa=5)],
        source="s",
        facts={"uuids": {"GPU0": "y", "GPU1": "x"}},
    )
    assert [d.numa for d in combine([first, other]).devices] == [5, 3]
    stranger = capture("c", [Device("GPU0", "gpu")], source="s", facts={"uuids": {"GPU0": "z"}})
    with pytest.raises(TopologyError, match="no GPU of one has the UUID of one of the other"):
        combine([first, stranger])


def test_gpus_without_addresses_are_joined_by_number():
    found = combine([topo_m(2, lambda a, b: "PIX"), capture("x", gpus(2, numa=1))])
    assert [d.bus_id for d in found.devices if d.kind == "gpu"] == ["0000:07:00.0", "0000:17:00.0"]
    assert [d.numa for d in found.devices if d.kind == "gpu"] == [1, 1]


def test_nics_are_joined_by_name_then_by_address():
    first = capture(
        "a",
        [
            *gpus(1),
            Device("NIC0", "nic", name="mlx5_0", bus_id="3b:00.0"),
            Device("NIC1", "nic", name="mlx5_1", bus_id="3b:00.0"),
            Device("NIC2", "nic", name="mlx5_2", bus_id="5e:00.0"),
        ],
    )
    other = capture(
        "b",
        [
            *gpus(1),
            Device("mlx5_1", "nic", numa=1),
            Device("ib7", "nic", numa=2, bus_id="0000:5e:00.0"),
            Device("eth9", "nic", numa=3, bus_id="0000:3b:00.0"),
        ],
        pairs=[Pair("GPU0", "mlx5_1", "PIX"), Pair("GPU0", "eth9", "SYS")],
        source="lstopo",
    )
    found = combine([first, other])
    assert {d.id: d.numa for d in found.devices} == {
        "GPU0": None, "NIC0": 3, "NIC1": 1, "NIC2": 2,
    }  # fmt: skip
    assert codes(found) == {("GPU0", "NIC1"): "PIX", ("GPU0", "NIC0"): "SYS"}


def test_two_ports_at_one_address_are_not_joined_by_it():
    ports = [Device("NIC0", "nic", name="mlx5_0", bus_id="3b:00.0"), Device("NIC1", "nic", name="p", bus_id="3b:00.0")]
    other = capture("b", [*gpus(1), Device("eth9", "nic", bus_id="3b:00.0")], source="lstopo")
    assert len(combine([capture("a", [*gpus(1), *ports]), other]).devices) == 4


def test_a_nic_without_a_name_is_said():
    first = topo_m(1, lambda a, b: "PIX", nics=["NIC0"])
    found = combine([first, capture("x", [*gpus(1), Device("NIC0", "nic", name="mlx5_3")])])
    assert [d.id for d in found.devices if d.kind == "nic"] == ["NIC0", "NIC0.2"]
    assert any("gives no name to NIC0" in text for text in found.warnings)


# What cannot be one machine.


def test_other_gpu_counts_are_refused():
    with pytest.raises(TopologyError) as error:
        combine([topo_m(8, lambda a, b: "NV12"), rates([[25.0] * 12] * 4)])
    assert str(error.value) == (
        "m (nvidia-smi topo -m) and s (nvidia-smi nvlink -s) cannot be of one machine: the first has 8 GPUs, the "
        "second 4; give captures of the whole of one machine (no -i, no CUDA_VISIBLE_DEVICES), or one kind of capture "
        "for each of several machines"
    )


def test_other_addresses_are_refused():
    far = [Device(f"GPU{i}", "gpu", bus_id=f"0001:{i:02x}:00.0") for i in range(2)]
    with pytest.raises(TopologyError, match="no GPU of one has the PCI address of one of the other"):
        combine([capture("a", gpus(2)), capture("b", far, source="lstopo")])


def test_other_numbers_are_refused():
    with pytest.raises(TopologyError, match="GPUs are numbered differently"):
        combine([capture("a", [Device("GPU0", "gpu")]), capture("b", [Device("GPU1", "gpu")], source="lstopo")])


def test_nothing_in_common_is_refused():
    cpu = capture("b", [Device("cpu0", "cpu"), Device("eth0", "nic")], source="sysfs")
    with pytest.raises(TopologyError, match="they have no device in common"):
        combine([capture("a", gpus(2)), cpu])
    ids, _ = match_devices(cpu, capture("a", [*gpus(2), Device("NIC0", "nic", name="eth0")]))
    assert ids == {"NIC0": "eth0"}


def test_clusters_and_nothing_are_refused():
    with pytest.raises(TopologyError, match="expected at least one"):
        combine([])
    cluster = capture("c", [Device("a/GPU0", "gpu", "a"), Device("b/GPU0", "gpu", "b")])
    with pytest.raises(TopologyError, match="has 2 hosts; only captures of one host combine"):
        combine([cluster, capture("a", gpus(2))])


def test_a_subset_by_address_is_said():
    found = combine([capture("a", gpus(4)), capture("b", gpus(5)[1:], source="lstopo")])
    assert len(found.endpoints) == 5
    assert found.warnings == (
        "a (NCCL topology XML) has 4 GPUs, b (lstopo) 4, and 3 are in both by PCI address; all of them are kept",
    )


def test_one_alone_is_returned_as_it_is():
    one = capture("a", gpus(2))
    assert combine([one]) is one


# One machine or several.


def test_the_rule_for_several_captures():
    matrix, listing = topo_m(2, lambda a, b: "NV4"), rates([[14.062] * 4] * 2)
    assert same_host([matrix, listing]) and same_host([matrix]) and same_host([])
    assert not same_host([matrix, matrix])
    assert not same_host([matrix] * 4)
    reads, writes = (
        nvidia_p2p.read(f"$ nvidia-smi topo -p2p {c}\n   GPU0 GPU1\n GPU0 X OK\n GPU1 OK X\n", "p.txt") for c in "rw"
    )
    assert same_host([matrix, reads, writes])
    with pytest.raises(TopologyError, match="4 captures, 2 of them of `nvidia-smi topo -m`"):
        same_host([matrix, listing, matrix, listing])


def test_hosts_of_different_names_are_several():
    a = capture("a", gpus(2, host="node1"))
    b = capture("b", gpus(2, host="node2"), source="lstopo")
    assert not same_host([a, b])
    assert same_host([a, capture("c", gpus(2), source="lstopo")])
    found = combine([capture("c", [*gpus(2), NETWORK], source="lstopo"), a])
    assert {d.host for d in found.devices} == {"node1", "network"}
