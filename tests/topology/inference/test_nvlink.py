from itertools import combinations

import pytest

from topocomm.topology.inference.nvlink import nvlinks
from topocomm.topology.model import Device


def gpus(count):
    return [Device(f"GPU{i}", "gpu") for i in range(count)]


def all_pairs(count, lanes):
    return {(f"GPU{i}", f"GPU{j}"): lanes for i, j in combinations(range(count), 2)}


@pytest.mark.parametrize(
    ("count", "lanes", "rate"),
    [(8, 18, 450.0), (8, 12, 300.0), (8, 8, 200.0), (16, 6, 150.0), (3, 12, 300.0), (3, 8, 200.0)],
)
def test_switched_machines_count_links_into_the_switch(count, lanes, rate):
    found = nvlinks(gpus(count), all_pairs(count, lanes))
    (switch,) = found.devices
    assert switch.kind == "switch"
    assert len(found.links) == 2 * count
    assert {(link.lanes, link.gb_per_s, link.latency_us) for link in found.links} == {(lanes, rate, 0.3)}
    assert {(pair.code, pair.gb_per_s, pair.latency_us) for pair in found.pairs.values()} == {(f"NV{lanes}", rate, 0.6)}


@pytest.mark.parametrize(("count", "lanes"), [(4, 4), (4, 6), (3, 4), (2, 12), (2, 18), (3, 6)])
def test_machines_whose_counts_add_up_are_linked_directly(count, lanes):
    found = nvlinks(gpus(count), all_pairs(count, lanes))
    assert found.devices == ()
    assert len(found.links) == count * (count - 1)
    assert {(link.lanes, link.latency_us) for link in found.links} == {(lanes, 0.7)}


def test_a_gpu_with_a_dead_link_stays_on_the_switch():
    counts = {pair: 16 if "GPU2" in pair else 18 for pair in all_pairs(4, 0)}
    found = nvlinks(gpus(4), counts)
    assert {link.src: link.lanes for link in found.links if link.dst == "nvswitch0"} == {
        "GPU0": 18,
        "GPU1": 18,
        "GPU2": 16,
        "GPU3": 18,
    }


def test_two_islands_get_two_switches():
    counts = {**all_pairs(4, 18), **{(f"GPU{i}", f"GPU{j}"): 18 for i, j in combinations(range(4, 8), 2)}}
    found = nvlinks(gpus(8), counts)
    assert [d.id for d in found.devices] == ["nvswitch0", "nvswitch1"]
    assert {link.dst for link in found.links if link.src == "GPU5"} == {"nvswitch1"}


def test_the_rate_is_unknown_where_the_count_does_not_tell_the_generation():
    found = nvlinks(gpus(2), all_pairs(2, 4))
    assert {link.gb_per_s for link in found.links} == {None}
    assert {link.gb_per_s_source for link in found.links} == {None}
    assert "at most 4 links per GPU" in found.warnings[0]


def test_eighteen_links_are_two_generations_and_say_so():
    found = nvlinks(gpus(8), all_pairs(8, 18))
    assert {link.gb_per_s_source for link in found.links} == {"assumed"}
    assert "25 GB/s each assumed" in found.warnings[0]
    assert nvlinks(gpus(8), all_pairs(8, 12)).warnings == ()


def test_four_gpus_with_six_links_each_are_read_as_direct_with_a_warning():
    assert any("NV6" in text for text in nvlinks(gpus(4), all_pairs(4, 6)).warnings)


def test_no_nvlink_is_nothing():
    assert nvlinks(gpus(4), {}) == ((), (), {}, ())
