"""Every contribution reaches the root once, or its value every rank; and no message leaves before what it forwards."""

import re

import numpy as np
import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.collectives import collective_of
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.rooted_hosts import RootedHosts
from topocomm.planning.host_forests.rooted_packing import RootedPacking
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced

MACHINES = [(hosts(2, 2), 2), (hosts(3, 3), 3), (hosts(6, 2), 6), (catalog("mi250x", hosts=4), 4)]


def made_of(machine, count, root, *, reduces, backwards=False, late=False, shares=2, radix=2):
    """With `backwards` the trees are those of the other collective: links are as fast both ways."""
    loads = HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count)
    packing = RootedPacking(loads, root % loads.members, reduces=reduces != backwards)
    made = RootedHosts(loads, packing, packing.trees((shares,))[0], root, radix=radix, reduces=reduces).in_turns(4)
    return made.as_late() if late else made


@pytest.mark.parametrize(("machine", "count"), MACHINES, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize(("backwards", "late", "shares"), [(False, False, 2), (True, True, 3), (False, True, 16)])
@pytest.mark.parametrize("value_us", [0.5, 50.0])
def test_values_get_where_they_are_wanted_once(machine, count, name, backwards, late, shares, value_us):
    ranks = len(machine.endpoints)
    root = ranks // 2 + 1
    made = made_of(machine, count, root, reduces=name == "reduce", backwards=backwards, late=late, shares=shares)
    rows = 5 * made.chunks + 1
    clock = made.clock(value_us)
    schedule = made.schedule(rows, clock)
    collective = collective_of(name, ranks, rows, root=root)
    verify(schedule, collective)
    verify(sliced(schedule, 3, clock.stagger), collective)
    assert schedule.rows == rows and len(schedule.chunks) == made.chunks
    whose = range(ranks) if name == "reduce" else [root]
    for (rank, chunk), text in replay(schedule).items():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose)), (rank, chunk)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shares", [2, 16])
@pytest.mark.parametrize("value_us", [0.1, 3.0, 1e4])
def test_messages_wait_for_what_they_forward(name, late, shares, value_us):
    """In a later period than what it forwards, or in a later turn: once that has arrived."""
    machine = catalog("mi250x", hosts=4)
    made = made_of(machine, 4, 9, reduces=name == "reduce", late=late, shares=shares)
    clock = made.clock(value_us)
    turns = sorted(set(np.round(np.array(made.starts) / made.period, 9)))
    assert clock.stagger == len(turns)
    begins = [made.period * (round_ // clock.stagger + turns[round_ % clock.stagger]) for round_ in clock.edges.round]
    before = {}
    columns = [column.tolist() for column in clock.edges]
    for begin, round_, child, parent, chunk in zip(begins, *columns, strict=True):
        apart = 5.0 if child // 8 != parent // 8 else 0.7
        before.setdefault((chunk, parent if name == "reduce" else child), []).append((round_, begin + apart / value_us))
        assert begin + apart / value_us <= clock.takes + 1e-6
    for begin, round_, child, parent, chunk in zip(begins, *columns, strict=True):
        for earlier, arrives in before.get((chunk, child if name == "reduce" else parent), ()):
            assert earlier < round_
            assert begin >= arrives - 1e-5 * made.period


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_messages_of_one_turn_go_a_period_after_what_they_forward(name):
    made = made_of(catalog("mi250x", hosts=4), 4, 9, reduces=name == "reduce")
    made.starts = made.held = made.latency_us = [0.0] * len(made.starts)
    schedule = made.schedule(10 * made.chunks, made.clock(1.0))
    verify(schedule, collective_of(name, 32, 10 * made.chunks, root=9))
    assert schedule.rounds > 5


def test_messages_of_a_slice_are_counted():
    """Shares on one tree go together inside hosts, each by itself between them."""
    machine = catalog("mi250x", hosts=4)
    made = made_of(machine, 4, 0, reduces=True, shares=16)
    edges = made.clock(10.0).edges
    messages = {(r, c, p) for r, c, p in zip(*(column.tolist() for column in edges[:3]), strict=True)}
    assert len(messages) <= made.messages
    across = np.count_nonzero(edges.child // 8 != edges.parent // 8)
    assert across == made.chunks * 3 and len(edges.round) == made.chunks * 31
    assert made.messages - across == (len(made.made.own) + 3 * len(made.made.others)) * 7 < 16 * 4 * 7


def test_all_turns_are_as_late_as_they_can_be():
    """A message that ends with the period in place of one that begins with it, and none meets another."""
    made = made_of(catalog("mi250x", hosts=4), 4, 9, reduces=True, shares=16)
    late = made.as_late()
    ends = np.array(late.starts) + late.held
    assert min(made.starts) == 0 and max(ends) == pytest.approx(late.period) and min(late.starts) >= 0
    assert np.allclose(ends, made.period - np.array(made.starts))


def test_a_share_goes_between_hosts_in_several_parts():
    """Whole, it takes a slow link long, while ports inside wait for it."""
    assert made_of(catalog("mi250x", hosts=2), 2, 0, reduces=True, shares=8).chunks == 32
    assert made_of(catalog("mi250x", hosts=5), 5, 0, reduces=True, shares=16).chunks == 32


@pytest.mark.parametrize(("system", "root", "most"), [("dgx-2", 0, 1.17), ("dgx-1-v100", 0, 1.13), ("mi250x", 3, 1.21)])
@pytest.mark.parametrize("reduces", [True, False])
def test_turns_of_many_shares_are_near_what_ports_and_links_allow(system, root, most, reduces):
    """Two GPUs share a NIC: without the rows of `with_neighbours` 1.2 times, with equal trees over 1.4."""
    machine = catalog(system, hosts=4)
    loads = HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // 4)
    packing = RootedPacking(loads, root, reduces=reduces)
    least = 1 / sum(weight for weight, _ in packing.best()[0])
    made = [
        RootedHosts(loads, packing, trees, root, radix=2, reduces=reduces).in_turns(64)
        for trees in packing.trees((16, 32, 48))
    ]
    assert 1 - 1e-6 <= min(each.period for each in made) / least <= most
