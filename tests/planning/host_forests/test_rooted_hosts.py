"""Every contribution reaches the root once, or its value every rank; and no message leaves before what it forwards."""

import re

import numpy as np
import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.collectives import collective_of
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.rooted_hosts import TURNS, RootedHosts
from topocomm.planning.host_forests.rooted_packing import RootedPacking
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import sliced

MACHINES = [(hosts(2, 2), 2), (hosts(3, 3), 3), (hosts(6, 2), 6), (catalog("mi250x", hosts=4), 4)]


def made_of(machine, count, root, *, reduces, mirrored=False, trees=2, radix=2):
    loads = HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count)
    packing = RootedPacking(loads, root % loads.members, reduces=reduces or mirrored)
    made = RootedHosts(loads, packing, packing.trees((trees,))[0], root, radix=radix).in_turns(4)
    return made.mirrored() if mirrored else made


@pytest.mark.parametrize(("machine", "count"), MACHINES, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize(("name", "mirrored"), [("reduce", False), ("broadcast", False), ("broadcast", True)])
@pytest.mark.parametrize("value_us", [0.5, 50.0])
def test_values_get_where_they_are_wanted_once(machine, count, name, mirrored, value_us):
    ranks = len(machine.endpoints)
    root = ranks // 2 + 1
    made = made_of(machine, count, root, reduces=name == "reduce", mirrored=mirrored)
    rows = 5 * made.chunks + 1
    schedule = made.schedule(rows, made.clock(value_us))
    collective = collective_of(name, ranks, rows, root=root)
    verify(schedule, collective)
    verify(sliced(schedule, 3, TURNS), collective)
    assert schedule.rows == rows and len(schedule.chunks) == made.chunks
    whose = range(ranks) if name == "reduce" else [root]
    for (rank, chunk), text in replay(schedule).items():
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, whose)), (rank, chunk)


@pytest.mark.parametrize(("name", "mirrored"), [("reduce", False), ("broadcast", False), ("broadcast", True)])
@pytest.mark.parametrize("value_us", [0.1, 3.0, 1e4])
def test_messages_wait_for_what_they_forward(name, mirrored, value_us):
    """By rounds, of which a period has as many as TURNS: as long as the latency and the bytes take, nearly."""
    machine = catalog("mi250x", hosts=4)
    made = made_of(machine, 4, 9, reduces=name == "reduce", mirrored=mirrored)
    clock = made.clock(value_us)
    after = {}
    for round_, child, parent, chunk in zip(*(column.tolist() for column in clock.edges), strict=True):
        src, dst = (child, parent) if name == "reduce" else (parent, child)
        apart = 5.0 if child // 8 != parent // 8 else 0.7
        after.setdefault((chunk, dst), []).append((round_, apart))
    turn = made.period / TURNS
    for round_, child, parent, chunk in zip(*(column.tolist() for column in clock.edges), strict=True):
        src = child if name == "reduce" else parent
        for before, latency_us in after.get((chunk, src), ()):
            assert before < round_
            assert (round_ - before + 1) * turn >= latency_us / value_us
    assert clock.takes >= (clock.edges.round.max() + 1) * turn - made.period


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_messages_of_one_turn_go_a_period_after_what_they_forward(name):
    made = made_of(catalog("mi250x", hosts=4), 4, 9, reduces=name == "reduce")
    made.starts = made.held = made.latency_us = [0.0] * len(made.starts)
    schedule = made.schedule(10 * made.chunks, made.clock(1.0))
    verify(schedule, collective_of(name, 32, 10 * made.chunks, root=9))
    assert schedule.rounds > 5 * TURNS


def test_messages_of_a_slice_are_counted():
    machine = catalog("mi250x", hosts=4)
    made = made_of(machine, 4, 0, reduces=True, trees=8)
    edges = made.clock(10.0).edges
    messages = {(r, c, p) for r, c, p in zip(*(column.tolist() for column in edges[:3]), strict=True)}
    assert len(messages) <= made.messages
    across = np.count_nonzero(edges.child // 8 != edges.parent // 8)
    assert across == made.chunks * 3 and len(edges.round) == made.chunks * 31


def test_a_share_goes_between_hosts_in_several_parts():
    """Whole, it takes a slow link long, while ports inside wait for it: a period of 304 us, not 252 (16 MiB)."""
    made = made_of(catalog("mi250x", hosts=2), 2, 0, reduces=True, trees=8)
    assert made.chunks == 32
    assert made.period / made.fastest * (16 << 20) / 1e3 <= 265
