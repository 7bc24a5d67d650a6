"""Hosts as one: numbers of messages, what they pass, and hosts that are not alike."""

from dataclasses import replace

import numpy as np
import pytest

from topocomm import catalog
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.folded_hosts import folded_hosts


def folded(machine, starts, *, by_nics=True):
    ends, paths = machine.endpoints, PathFinder(machine)
    return folded_hosts(ends, starts, paths, OwnNics(ends, paths) if by_nics else None)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_message_has_its_number(count):
    hosts = folded(catalog("a100-pcie-4", hosts=count), tuple(range(0, 4 * count + 1, 4)))
    assert (hosts.count, hosts.members, len(hosts.ends)) == (count, 4, 12 if count == 1 else 28)
    for number, ((src, dst), away) in enumerate(zip(hosts.ends.tolist(), hosts.away.tolist(), strict=True)):
        assert hosts.number(src, dst, away=away) == number
    assert hosts.number(2, 2, away=False) == -1


def test_what_messages_of_two_cards_pass():
    """GPU1 is past a bus of 16 GB/s: what it sends its like in another host passes one at either end, and two NICs."""
    hosts = folded(catalog("a100-pcie-2", hosts=3), (0, 2, 4, 6))
    rates = {
        pair: sorted(hosts.gb_per_s[hosts.passes[hosts.number(*pair, away=True)] > 0].tolist())
        for pair in ((0, 0), (1, 1))
    }
    assert rates[0, 0] == [25.0, 25.0, 32.0, 32.0, 32.0, 32.0]
    assert rates[1, 1] == [16.0] * 4 + [25.0] * 2 + [32.0] * 4  # the bus is two links
    assert hosts.are_unlike


def test_hosts_share_what_is_between_them():
    """12 lanes of 12.5 GB/s from each rail of three hosts up to the spine, a third of them for each host."""
    machine = catalog("dgx-1-v100", hosts=3)
    hosts = folded(machine, (0, 8, 16, 24))
    spine = hosts.passes[hosts.number(0, 7, away=True)] > hosts.passes[hosts.number(0, 1, away=True)]
    assert set(hosts.gb_per_s[spine].tolist()) >= {12.5}
    assert np.isin(hosts.passes, (0.0, 1.0)).all()
    assert not hosts.are_unlike


def test_hosts_that_are_not_alike_are_none():
    machine = catalog("a100-pcie-2", hosts=3)
    slow = [link._replace(gb_per_s=8.0) if "h1/GPU1" in link[:2] else link for link in machine.links]
    assert folded(replace(machine, links=tuple(slow)), (0, 2, 4, 6)) is None
    assert folded(machine, (0, 2, 6)) is None


@pytest.mark.parametrize(("system", "relays"), [("p3dn", True), ("mi100-8", False), ("a100-pcie-4", False)])
def test_who_wants_relays(system, relays):
    """p3dn's bus of 6 GB/s has half of what its NIC of 12.5 sends; others' have less than their share."""
    machine = catalog(system, hosts=16)
    size = len(machine.endpoints) // 16
    assert folded(machine, tuple(range(0, 16 * size + 1, size))).wants_relays == relays
