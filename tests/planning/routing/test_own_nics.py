"""NICs of ranks: the nearest, in turn where several are; ways by them only where the cheapest route has others."""

from collections import Counter

import pytest

from topocomm import Topology, catalog
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import PathFinder


def nics_of(way):
    return [device for device in way if "NIC" in device]


def ways(machine, sources, targets):
    return OwnNics(machine.endpoints, PathFinder(machine)).ways(sources, targets)


def test_sockets_with_a_nic_each():
    """From the first socket to the second the cheapest route is by the first NICs, and over the bus."""
    machine = catalog("cpu-2-socket-64", hosts=2)
    near, far, straight = ways(machine, ["h0/cpu0", "h0/cpu40", "h0/cpu0"], ["h1/cpu40", "h1/cpu0", "h1/cpu1"])
    assert nics_of(near) == ["h0/NIC0", "h1/NIC1"] and nics_of(far) == ["h0/NIC1", "h1/NIC0"] and straight == ()
    assert "spine" in near and (near[0], near[-1]) == ("h0/cpu0", "h1/cpu40")
    PathFinder(machine).explicit(near, "h0/cpu0", "h1/cpu40")


def test_ranks_that_are_as_near_to_several_take_them_in_turn():
    """A socket of 8 cores and 2 NICs: the cheapest route takes the first NIC for all."""
    host = catalog("cpu-1-socket", hosts=2)
    second = [device._replace(id=device.id.replace("NIC0", "NIC1")) for device in host.devices if "NIC" in device.id]
    links = [
        link._replace(src=link.src.replace("NIC0", "NIC1"), dst=link.dst.replace("NIC0", "NIC1"))
        for link in host.links
        if "NIC" in link.src + link.dst
    ]
    machine = Topology("two NICs", "hand", (*host.devices, *second), (*host.links, *links))
    ends = machine.endpoints
    found = ways(machine, ends[:8], ends[8:])
    used = Counter(nic for way in found for nic in nics_of(way))
    assert used == {"h0/NIC1": 4, "h1/NIC1": 4} and found.count(()) == 4


@pytest.mark.parametrize("system", ["dgx-h100", "p3dn", "rtx3090-pair"])
def test_where_the_cheapest_route_has_them_there_is_no_other(system):
    machine = catalog(system, hosts=2)
    ends = machine.endpoints
    half = len(ends) // 2
    assert set(ways(machine, ends[:half], ends[half:])) == {()}


def test_without_nics_or_a_way_between_them_the_cheapest_route_stays():
    one = catalog("dgx-1-v100")
    assert ways(one, ["GPU0"], ["GPU1"]) == [()]
    apart = catalog("cpu-2-socket-64", hosts=2)
    links = tuple(link for link in apart.links if "spine" not in link.src + link.dst)
    machine = Topology("no spine", "hand", apart.devices, links)
    assert ways(machine, ["h0/cpu0"], ["h1/cpu40"]) == [()]
