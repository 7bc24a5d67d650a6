"""Every rank gets every part, or the sum of its own; and no message leaves before what it forwards has arrived."""

import re

import numpy as np
import pytest

from tests.machines import hosts
from tests.planning.replay import replay, word
from topocomm import catalog
from topocomm.planning.collectives import collective_of
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.parts_hosts import HostParts
from topocomm.planning.host_forests.parts_packing import PartsPacking
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.schedule.transforms import sliced

MACHINES = [(hosts(2, 2), 2), (hosts(3, 3), 3), (hosts(6, 2), 6), (catalog("mi250x", hosts=4), 4)]


def made_of(machine, count, *, reduces, shares=2):
    loads = HostLoads(machine.endpoints, PathFinder(machine), len(machine.endpoints) // count)
    packing = PartsPacking(loads, reduces=reduces)
    return HostParts(loads, packing, packing.trees((shares,))[0], reduces=reduces, tries=4)


@pytest.mark.parametrize(("machine", "count"), MACHINES, ids=lambda each: getattr(each, "name", str(each)))
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("value_us", [0.5, 50.0])
def test_parts_get_where_they_are_wanted_once(machine, count, name, value_us):
    ranks = len(machine.endpoints)
    made = made_of(machine, count, reduces=name == "reduce_scatter")
    rows = 9 * ranks + 1
    clock = made.clock(value_us)
    schedule = made.schedule(rows, clock)
    collective = collective_of(name, ranks, rows, parts=tuple(n for _, n in split_rows(rows, ranks)))
    verify(schedule, collective)
    verify(sliced(schedule, 3, clock.stagger), collective)
    assert schedule.rows == rows and len(schedule.chunks) == made.chunks == 2 * ranks
    for (rank, chunk), text in replay(schedule).items():
        wanted = range(ranks) if name == "reduce_scatter" else [chunk // 2]
        assert sorted(re.findall("<[^>]*>", text)) == sorted(map(word, wanted)), (rank, chunk)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("slices", [8, 64])
def test_messages_have_their_turn_when_their_ports_serve_them_in_order(name, slices):
    """Backwards a message's own latency comes before what it forwards: else 64 slices took 123 us, not 61."""
    machine, rows = catalog("mi250x", hosts=2), 1 << 22
    made = made_of(machine, 2, reduces=name == "reduce_scatter", shares=1)
    value_us = rows * 4 / slices / (made.fastest * 1e3)
    clock = made.clock(value_us)
    schedule = sliced(made.schedule(rows, clock), slices, clock.stagger)
    cost = Cost(schedule, machine.endpoints, PathFinder(machine), row_bytes=4, port_model="loggp")
    head = -(-int(clock.rounds.max() + 1) // clock.stagger) + 6 if slices > 8 else slices
    assert cost._turns.times.total_us <= (clock.takes + (head - 1) * clock.period) * value_us * 1.02
    assert cost.messages == made.messages * slices


def test_what_all_other_hosts_send_goes_on_together():
    """Of three hosts: a tree inside carries two parts in one message, and each gate sends its own to two."""
    made = made_of(hosts(3, 2), 3, reduces=False, shares=1)
    schedule = made.schedule(24, made.clock(10.0))
    keys, counts = np.unique(schedule.transfers[:, [0, 1, 3]], axis=0, return_counts=True)
    inside = keys[:, 1] // 2 == keys[:, 2] // 2
    assert sorted(counts[~inside]) == [1] * 12 and sorted(counts[inside]) == [1] * 6 + [2] * 6
    assert len(keys) == made.messages
