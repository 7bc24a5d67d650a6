from itertools import pairwise

from tests.topology.draw.geometry import facts, parsed, wires, words
from tests.topology.draw.machines import two_gpus
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.device_tree import split_hosts
from topocomm.topology.draw.svg.host_blocks import build, walk
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Pair, Topology


def test_a_nic_without_a_link_hangs_by_a_dashed_line_on_the_gpu_that_codes_put_it_next_to():
    root = parsed(render(two_gpus()))
    assert len(wires(root, "guess")) == 1
    assert any("NIC0 is placed by pair codes" in text for text in facts(root))


def test_many_cores_and_nics_are_drawn_as_one():
    said = words(parsed(render(catalog("cpu-2-socket-64"))))
    assert {"CPU/0-31", "CPU/32-63"} <= set(said)
    nics = [Device(f"NIC{i}", "nic") for i in range(20)]
    links = [link for nic in nics for link in both_ways("numa0", nic.id, "pcie4")]
    host = (Device("GPU0", "gpu"), Device("numa0", "numa", numa=0), *nics)
    topology = Topology("x", "by hand", host, (*both_ways("GPU0", "numa0", "pcie4"), *links))
    assert "20 NICs" in words(parsed(render(topology)))


def test_a_long_chain_of_switches_is_no_trouble():
    names = ["numa0", *(f"pcie{i}" for i in range(3000)), "GPU0"]
    devices = (Device("numa0", "numa", numa=0), *(Device(n, "switch") for n in names[1:-1]), Device("GPU0", "gpu"))
    links = [link for a, b in pairwise(names) for link in both_ways(a, b, "pcie4")]
    parsed(render(Topology("chain", "by hand", devices, tuple(links))))


def blocks_of(topology, codes=None, most_ends=16):
    pairs = tuple(Pair(a, b, code) for (a, b), code in (codes or {}).items())
    return build(split_hosts(topology)[0]._replace(pairs=pairs), most_ends)


def test_a_switch_holds_its_gpus_and_nics():
    found = blocks_of(catalog("dgx-1-v100"))
    switch = found.home["GPU0"].parent
    assert [end.devices[0].id for end in switch.ends()] == ["GPU0", "GPU1"]
    assert [nic.devices[0].id for nic in switch.nics] == ["NIC0"]
    assert (found.home["GPU0"].level, switch.level) == (0, 1)
    assert sorted(found.row.order) == [f"GPU{i}" for i in range(8)]
    assert {frozenset(pair) for pair in found.fabric.chords} >= {frozenset(("GPU0", "GPU3"))}


def test_endpoints_beyond_the_most_are_left_out():
    topology = Topology("x", "by hand", tuple(Device(f"GPU{i}", "gpu", numa=i) for i in range(5)), ())
    found = blocks_of(topology, most_ends=3)
    assert [d.id for d in found.left_out] == ["GPU3", "GPU4"]
    assert set(found.home) == {"GPU0", "GPU1", "GPU2"}


def test_nics_without_a_link_go_to_the_gpu_with_the_fewest_of_those_that_codes_name():
    ends = [*(Device(f"GPU{i}", "gpu") for i in range(2)), *(Device(f"NIC{i}", "nic") for i in range(3))]
    codes = {(f"GPU{i}", f"NIC{j}"): "PIX" for i in range(2) for j in range(2)}
    found = blocks_of(Topology("x", "by hand", tuple(ends), ()), codes)
    assert {
        nic: found.home[nic].parent and found.home[nic].parent.devices[0].id for nic in ("NIC0", "NIC1", "NIC2")
    } == {
        "NIC0": "GPU0",
        "NIC1": "GPU1",
        "NIC2": None,
    }


def test_a_nic_that_several_gpus_share_is_at_the_first():
    ends = (Device("GPU0", "gpu"), Device("GPU1", "gpu"), Device("NIC0", "nic"))
    links = both_ways("GPU0", "NIC0", "pcie4") + both_ways("GPU1", "NIC0", "pcie4")
    found = blocks_of(Topology("x", "by hand", ends, links))
    assert found.home["NIC0"].parent is found.home["GPU0"]
    assert {link[:2] for link in found.rest} == {("GPU1", "NIC0"), ("NIC0", "GPU1")}
    assert [block.devices[0].id for block in walk(found.roots)] == ["GPU0", "NIC0", "GPU1"]
