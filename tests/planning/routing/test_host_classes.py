"""Hosts that look alike are found, and no others."""

from dataclasses import replace

from tests.planning.routing.reference import linked, same_as_reference, without
from topocomm import Device, Topology
from topocomm.topology.catalog.systems import catalog


def test_irregular_hosts_are_classes_of_their_own():
    topology = catalog("dgx-h100", hosts=6)
    broken = without(topology, devices=["h2/GPU3", "h4/NIC0"], links=[("h5/NIC1", "rail1"), ("rail1", "h5/NIC1")])
    slow = [link._replace(gb_per_s=1.0) if link.src == "h1/NIC2" else link for link in broken.links]
    paths = same_as_reference(replace(broken, links=tuple(slow)))
    assert len(paths.classes.first) == 5
    assert paths.classes.class_of.tolist() == [0, 1, 2, 0, 3, 4]


def test_hosts_joined_without_a_network_are_searched_as_one():
    ring = [(f"h{i}/GPU", f"h{i}/nic", 0.5, 10.0) for i in range(4)]
    ring += [(f"h{i}/nic", f"h{(i + 1) % 4}/nic", 1.0, 10.0) for i in range(4)]
    devices = [
        Device(f"h{i}/{name}", kind, f"h{i}") for i in range(4) for name, kind in (("GPU", "gpu"), ("nic", "nic"))
    ]
    paths = same_as_reference(Topology("ring", "test", tuple(devices), tuple(linked(ring))))
    assert paths.cheapest("h0/GPU", "h2/GPU").devices == ("h0/GPU", "h0/nic", "h1/nic", "h2/nic", "h2/GPU")


def test_routes_are_not_those_of_a_host_that_only_looks_alike():
    """A planted fault: one link of one host is faster, in one direction."""
    topology = catalog("dgx-h100", hosts=4)
    links = [link._replace(latency_us=0.1) if link.src == "h2/GPU5" else link for link in topology.links]
    paths = same_as_reference(replace(topology, links=tuple(links)), ["h2/GPU5", "h0/GPU5", "h1/GPU5"])
    there, back = paths.latencies_us(["h2/GPU5", "h0/GPU5"], ["h0/GPU5", "h2/GPU5"])
    assert there < back
