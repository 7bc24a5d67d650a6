"""The messages of one host for all: turns on shared NICs, one turn for those that send to each other, and the order."""

from itertools import pairwise

import numpy as np
import pytest

from tests.machines import hosts, sharing
from topocomm import catalog
from topocomm.planning.hierarchical.host_messages import host_messages
from topocomm.planning.routing.paths import NoRouteError, PathFinder

RING = (0, 3, 2, 1, 5, 6, 7, 4)
"""The fastest links of a DGX-1."""


def messages_on(machine, count, trees=None, gates=None):
    members = len(machine.endpoints) // count
    every = range(members)
    trees = trees or {root: [(root, other) for other in every if other != root] for root in every}
    ends = machine.endpoints[: 2 * members]
    return host_messages(ends, count, every, gates or every, trees, PathFinder(machine)).in_turns()


def around(ring):
    """From each member one way around."""
    return {root: list(pairwise([*ring[at:], *ring[:at]])) for at, root in enumerate(ring)}


@pytest.mark.parametrize(("gpus", "nics", "most"), [(4, 2, 2), (6, 2, 3), (6, 3, 2), (8, 1, 8), (12, 4, 3)])
def test_members_that_share_a_nic_have_other_turns(gpus, nics, most):
    turns = messages_on(sharing(3, gpus, nics), 3).turns
    for nic in range(nics):
        own = [int(turns[gpu]) for gpu in range(gpus) if gpu * nics // gpus == nic]
        assert sorted(own) == list(range(most))


def test_a_nic_for_two_has_two_at_a_time():
    assert messages_on(sharing(2, 4, 1, nic_gb_per_s=32.0), 2).turns.tolist() == [0, 0, 1, 1]
    assert not messages_on(hosts(2, 4), 2).turns.any()


def test_neighbours_in_trees_get_one_turn():
    """Two NICs of a pair each, and a ring that leaves each pair: by number two links would join members of one turn."""
    machine = catalog("dgx-1-v100", hosts=2)
    turns = messages_on(machine, 2, around(RING)).turns
    apart = sum(turns[a] != turns[b] for a, b in pairwise([*RING, RING[0]]))
    assert apart == 2 and all(turns[a] != turns[a + 1] for a in (0, 2, 4, 6))


def test_worth_it_where_a_nic_is_shared_alone():
    assert messages_on(sharing(2, 4, 2), 2).is_worth(1.05)
    assert not messages_on(hosts(2, 4), 2).is_worth(1.05)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("gates", [None, (0, 0, 3, 3)])
def test_every_message_comes_once_and_after_what_it_brings(gates, slices):
    made = messages_on(sharing(3, 4, 2), 3, gates=gates)
    assert made.is_direct == (gates is None)
    end_us, sends = made.sends(slices, 1 << 16)
    assert sorted(send.piece for send in sends) == list(range(slices * len(made.table)))
    ends_us = dict(zip((send.piece for send in sends), made.ends_us(sends, 1 << 16), strict=True))
    assert max(ends_us.values()) <= end_us + 1e-6
    by_port = {}
    for send in sends:
        slice_, message = divmod(send.piece, len(made.table))
        before = int(made.table[message, 5])
        if before >= 0:
            line = made.line[before]
            there_us = ends_us[slice_ * len(made.table) + before] + float(made.lines.latency_us[line])
            assert send.start_us >= there_us - 1e-6
        for port in made.lines.held[send.line, :2].tolist():
            by_port.setdefault(port, []).append((send.start_us, ends_us[send.piece]))
    for own in by_port.values():
        assert all(low[1] <= high[0] + 1e-6 for low, high in pairwise(sorted(own)))


def test_turns_keep_ports_and_nics_busy():
    """Three hosts of six, a NIC for three members that send to two hosts at 12.5 GB/s; ports have less to do."""
    made = messages_on(sharing(3, 6, 2), 3)
    size = 1 << 20
    end_us, _ = made.sends(4, size // 4)
    least_us = 6 * size / 12.5e3
    assert least_us <= end_us <= 1.1 * least_us


def test_members_without_a_way_are_refused():
    machine = hosts(2, 3)
    cut = type(machine)(
        machine.name, machine.source, machine.devices, tuple(link for link in machine.links if "NIC1" not in link.src)
    )
    with pytest.raises(NoRouteError):
        messages_on(cut, 2)
    assert np.isinf(PathFinder(cut).latencies_us(["h0/GPU1"], ["h1/GPU1"])).all()
