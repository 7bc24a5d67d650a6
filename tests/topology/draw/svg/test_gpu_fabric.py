import pytest

from tests.topology.draw.geometry import parsed, words
from topocomm.topology.draw.svg.gpu_fabric import MOST_CHORDS, find_fabric, sum_rate
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Topology


def test_a_mesh_names_the_pairs_it_lacks():
    lost = {(0, 5), (2, 7)}
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8) if (a, b) not in lost]
    links = [link for a, b in pairs for link in both_ways(f"GPU{a}", f"GPU{b}", "xgmi-mi100")]
    topology = Topology("x", "by hand", tuple(Device(f"GPU{i}", "gpu") for i in range(8)), tuple(links))
    assert "each to each but GPU/0-5, GPU/2-7: xGMI, 46 GB/s" in words(parsed(render(topology)))


def gpus(count):
    return [Device(f"GPU{i}", "gpu") for i in range(count)]


def meshed(count, rate=25.0):
    pairs = [(f"GPU{a}", f"GPU{b}") for a in range(count) for b in range(a + 1, count)]
    return [link for a, b in pairs for link in both_ways(a, b, "nvlink", lanes=1, gb_per_s=rate)]


def test_switches_with_the_same_gpus_are_one_bar_with_the_sum_of_each_gpu():
    devices = [*gpus(2), *(Device(f"nvswitch{i}", "switch") for i in range(3))]
    links = [link for i in range(2) for j in range(2) for link in both_ways(f"GPU{i}", f"nvswitch{j}", "nvlink2")]
    links += both_ways("GPU1", "nvswitch2", "nvlink2")
    fabric = find_fabric(devices, links)
    assert [[d.id for d in hub.switches] for hub in fabric.hubs] == [["nvswitch0", "nvswitch1"], ["nvswitch2"]]
    assert fabric.hubs[0].words == ("NVS/0-1: NVLink, 50 GB/s from each GPU", "NVS/0-1: 50 GB/s", "NVS/0-1")
    assert {end: len(own) for end, own in fabric.hubs[0].links_of.items()} == {"GPU0": 4, "GPU1": 4}
    assert fabric.chords == {} and fabric.trunks == []


def test_links_between_switches_are_trunks():
    devices = [*gpus(1), Device("nvswitch0", "switch"), Device("nvswitch1", "switch")]
    trunk = both_ways("nvswitch0", "nvswitch1", "nvlink2")
    fabric = find_fabric(devices, [*both_ways("GPU0", "nvswitch0", "nvlink2"), *trunk])
    assert fabric.trunks == list(trunk)


@pytest.mark.parametrize(
    ("count", "bars", "chords", "arcs"), [(4, 0, 6, 0), (5, 0, 0, 10), (12, 0, 0, 66), (13, 1, 0, 0)]
)
def test_five_joined_each_to_each_get_arcs_and_thirteen_a_bar(count, bars, chords, arcs):
    fabric = find_fabric(gpus(count), meshed(count))
    assert (len(fabric.hubs), len(fabric.chords), len(fabric.arcs)) == (bars, chords, arcs)
    assert all(len(both) == 2 for both in (*fabric.chords.values(), *fabric.arcs.values()))
    assert fabric.mesh_words == ["each to each: NVLink, 25 GB/s"] * bool(arcs)


def test_links_of_several_rates_get_a_bar_only_where_they_are_too_many():
    few = [*meshed(5), *both_ways("GPU0", "GPU5", "nvlink", lanes=1, gb_per_s=50.0)]
    assert find_fabric(gpus(6), few).hubs == []
    many = [*meshed(17), *both_ways("GPU0", "GPU17", "nvlink", lanes=1, gb_per_s=50.0)]
    (hub,) = find_fabric(gpus(18), many).hubs
    assert len(many) // 2 > MOST_CHORDS
    assert hub.words == ("NVLink, 137 links that differ", "NVLink")


def test_rates():
    links = both_ways("GPU0", "GPU1", "nvlink2")
    assert sum_rate([*links, *links], "GPU0") == 50.0
    assert sum_rate([*links, *both_ways("GPU0", "GPU1", "nvlink")], "GPU0") is None
