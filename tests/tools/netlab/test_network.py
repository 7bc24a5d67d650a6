"""The network of a topology: cables, slots, and what the lab refuses."""

from dataclasses import replace

import pytest

from tests.machines import joined, switch
from tools.netlab.network import Cable, Host, network_of, racks
from topocomm.errors import TopologyError
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, RankPlace
from topocomm.topology.readers.plain import topology_json


def test_hosts_of_one_rack_hang_on_one_switch():
    network = network_of(racks(3, 2, 100.0))
    assert network.hosts == (Host("host0", 2), Host("host1", 2), Host("host2", 2))
    assert network.switches == ("leaf0",)
    assert network.cables == tuple(Cable(f"host{i}", "leaf0", 0.0125, 0.0125, 0.0) for i in range(3))


def test_racks_hang_on_a_spine_by_a_rate_of_their_own():
    network = network_of(racks(5, 1, 100.0, 2, 40.0))
    assert [cable[:2] for cable in network.cables] == [
        ("host0", "leaf0"), ("host1", "leaf0"), ("host2", "leaf0"), ("host3", "leaf1"), ("host4", "leaf1"),
        ("leaf0", "spine"), ("leaf1", "spine"),
    ]  # fmt: skip
    assert [cable.up_gb_per_s for cable in network.cables[5:]] == [0.005, 0.005]
    assert network_of(racks(5, 1, 100.0, 2)).cables[5].up_gb_per_s == pytest.approx(3 * 0.0125)


def test_a_topology_survives_its_file():
    topology = racks(4, 2, 100.0, 2, 50.0)
    again = topology_json.read(topology_json.dumps(topology), "lab.json")
    assert network_of(again) == network_of(topology)
    assert again.digest == topology.digest


def test_each_direction_has_its_rate_and_given_latencies_are_delays():
    topology = racks(2, 1, 100.0)
    links = tuple(
        link._replace(gb_per_s=0.001, latency_us=250.0, latency_us_source="read")
        if link.dst == "host1/nic0" and link.src == "leaf0"
        else link
        for link in topology.links
    )
    first, second = network_of(replace(topology, links=links)).cables
    assert first == Cable("host0", "leaf0", 0.0125, 0.0125, 0.0)
    assert second == Cable("host1", "leaf0", 0.0125, 0.001, 250.0)


def test_ranks_of_the_topology_are_the_slots():
    topology = racks(2, 2, 100.0)
    places = [RankPlace(0, "host0", "host0/CPU0"), *(RankPlace(i, "host1", "host1/CPU0") for i in (1, 2, 3))]
    assert network_of(replace(topology, ranks=tuple(places))).hosts == (Host("host0", 1), Host("host1", 3))


def test_other_machines_with_one_network_switch_will_do():
    network = network_of(joined([2, 1, 1]))
    assert network.hosts == (Host("h0", 2), Host("h1", 1), Host("h2", 1))
    assert {cable.upper for cable in network.cables} == {"network"}


def test_the_number_of_a_cable_by_its_ends():
    network = network_of(racks(4, 1, 100.0, 2))
    assert network.cable("host3") == 3
    assert network.cable("leaf1", "spine") == 5
    with pytest.raises(TopologyError, match="no cable host9: the lab has host0-leaf0, "):
        network.cable("host9")


def with_links(topology, *links, without=()):
    kept = tuple(link for link in topology.links if link[:2] not in without)
    return replace(topology, links=(*kept, *links))


REFUSED = {
    "one host": (switch(4), "has 1 host; the lab needs two or more"),
    "one direction": (with_links(racks(2, 1, 100.0), without=[("leaf0", "host1/nic0")]), "has no reverse"),
    "two links": (with_links(racks(4, 1, 100.0, 2), *both_ways("host0/nic0", "leaf1", "network")), "host0 has 2 links"),
    "two links to one switch": (
        with_links(racks(2, 1, 100.0), *both_ways("host0/numa0", "leaf0", "network")),
        "several links host0 -> leaf0",
    ),
    "hosts joined": (
        with_links(racks(2, 1, 100.0), *both_ways("host0/nic0", "host1/nic0", "network")),
        "joins two hosts",
    ),
    "circle": (with_links(racks(4, 1, 100.0, 2), *both_ways("leaf0", "leaf1", "network")), "form no tree"),
    "parted": (
        with_links(racks(4, 1, 100.0, 2), without=[("leaf0", "spine"), ("spine", "leaf0")]),
        "3 switches with 1 links between them form no tree",
    ),
}


@pytest.mark.parametrize(("topology", "text"), REFUSED.values(), ids=REFUSED)
def test_what_the_lab_cannot_make_is_refused(topology, text):
    with pytest.raises(TopologyError, match=text):
        network_of(topology)


def test_a_name_that_is_no_host_name_is_refused():
    topology = racks(2, 1, 100.0)
    devices = tuple(Device(d.id, d.kind, "Host 0" if d.host == "host0" else d.host) for d in topology.devices)
    with pytest.raises(TopologyError, match="host 'Host 0': expected up to 32 lower-case letters"):
        network_of(replace(topology, devices=devices))


@pytest.mark.parametrize("numbers", [(0, 1, 100.0), (2, 0, 100.0), (2, 1, 0.0), (2, 1, 100.0, 3), (2, 1, 9.0, 2, -1.0)])
def test_racks_of_nothing_are_refused(numbers):
    with pytest.raises(TopologyError, match="expected positive numbers"):
        racks(*numbers)
