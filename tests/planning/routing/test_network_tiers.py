"""Orders of hosts follow the network's tree, however hosts are numbered."""

from dataclasses import replace

import pytest

from tools.netlab.network import racks
from topocomm import catalog
from topocomm.planning.routing.network_tiers import tier_orders
from topocomm.planning.routing.paths import PathFinder


def orders_of(machine, hosts):
    return tier_orders([f"host{host}/CPU0" for host in hosts], PathFinder(machine))


@pytest.mark.parametrize("machine", [catalog("dgx-h100", hosts=5), catalog("mi300x-8", hosts=2)])
def test_one_tier_has_no_order(machine):
    first = [next(d.id for d in machine.devices if d.host == host and d.kind == "gpu") for host in machine.hosts]
    assert tier_orders(first, PathFinder(machine)) is None


def test_racks_follow_each_other_or_take_turns():
    machine = racks(6, 1, 100.0, 2)  # hosts 0 to 2 in one rack, 3 to 5 in the other
    assert orders_of(machine, range(6)) == ((0, 1, 2, 3, 4, 5), (0, 3, 1, 4, 2, 5))
    assert orders_of(machine, (0, 3, 1, 4, 2, 5)) == ((0, 2, 4, 1, 3, 5), (0, 1, 2, 3, 4, 5))
    assert orders_of(machine, (5, 0, 4, 1)) == ((0, 2, 1, 3), (0, 1, 2, 3))


def test_racks_of_unlike_numbers_of_hosts():
    near, turns = orders_of(racks(5, 1, 100.0, 2), range(5))
    assert near == (0, 1, 2, 3, 4) and turns == (0, 3, 1, 4, 2)


def test_hosts_without_a_route_are_the_farthest():
    """A host that reaches no other, first or last: it ends."""
    machine = racks(5, 1, 100.0, 2)
    for lone in (0, 4):
        links = tuple(link for link in machine.links if not {link.src, link.dst} & {f"host{lone}/nic0"})
        near, turns = orders_of(replace(machine, links=links), range(5))
        assert sorted(near) == sorted(turns) == list(range(5)) and near[lone] == lone


def test_three_tiers():
    """Two rows of two racks of two hosts."""
    flat = racks(8, 1, 100.0, 4)
    spine = next(device for device in flat.devices if device.id == "spine")
    row_of = {"leaf0": "row0", "leaf1": "row0", "leaf2": "row1", "leaf3": "row1"}
    links = []
    for link in flat.links:
        row = row_of.get(link.src if link.dst == "spine" else link.dst)
        src, dst = (row if end == "spine" else end for end in (link.src, link.dst))
        links.append(link._replace(src=src, dst=dst))
    up = next(link for link in flat.links if link.dst == "spine")
    links += [up._replace(src=a, dst=b) for row in ("row0", "row1") for a, b in ((row, "spine"), ("spine", row))]
    rows = tuple(spine._replace(id=row) for row in ("row0", "row1"))
    near, turns = orders_of(replace(flat, devices=(*flat.devices, *rows), links=tuple(links)), range(8))
    assert near == tuple(range(8))
    assert turns == (0, 4, 2, 6, 1, 5, 3, 7)
