"""All-to-all host after host: what NICs serve in a round, and what goes inside hosts meanwhile."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.planning.algorithms.offered import messages
from tests.planning.replay import builds, collective_of, expected, replay
from topocomm import catalog
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.ways.hosts_alltoall import HostOrder, hosts_alltoall
from topocomm.planning.ways.member_ways import member_ways


@pytest.mark.parametrize("ranks", range(1, 18))
def test_host_after_host_any_number_of_ranks(ranks):
    """Of 2 DGX-1, in reverse order from 9 ranks on; the members of a host relay over NVLink."""
    machine = catalog("dgx-1-v100", hosts=3)
    ends = machine.endpoints[:ranks] if ranks < 9 else machine.endpoints[ranks - 1 :: -1]
    rows = [1 + (5 * pair) % 4 for pair in range(ranks**2)]
    collective = Collective("alltoall", ranks, parts=tuple(rows))
    starts = (0, *range(8, ranks, 8), ranks)
    order = tuple(range(ranks)) if ranks < 9 else tuple(range(ranks)[::-1])
    placed, wanted = [ends[rank] for rank in order], np.array(rows, float).reshape(ranks, ranks)[np.ix_(order, order)]
    insides = tuple(
        member_ways(placed[low:high], PathFinder(machine), wanted[low:high, low:high], 1)
        for low, high in pairwise(starts)
    )
    for slices in (1, 3):
        schedule = hosts_alltoall(rows, HostOrder(order, starts, insides), 4, slices=slices)
        assert verify(schedule, collective, paths=PathFinder(machine), endpoints=ends).complete
        assert replay(schedule) == expected(collective, schedule.chunks)


@pytest.mark.parametrize(("system", "count"), [("p4d", 2), ("dgx-1-v100", 2), ("mi250x", 3)])
def test_in_a_round_ranks_use_nics_evenly(system, count):
    """No NIC sends or receives for more ranks than share it, two here, until only what is inside is left."""
    machine = catalog(system, hosts=count)
    ranks, paths = len(machine.endpoints), PathFinder(machine)
    collective = collective_of("alltoall", ranks, rows=ranks**2)
    schedule = builds(machine, collective, ranks**2)["by-hosts-1"]()
    at, across = Counter(), 0
    for round_, src, dst in messages(schedule):
        if src // 8 != dst // 8:
            assert round_ < 8 * (count - 1)
            across += 1
            route = paths.cheapest(machine.endpoints[src], machine.endpoints[dst]).devices
            nics = [device for device in route if "NIC" in device]
            at.update((round_, side, nic) for side, nic in enumerate((nics[0], nics[-1])))
        else:
            assert round_ >= 8 * (count - 1)
    assert across == 64 * count * (count - 1) and max(at.values()) == 2


@pytest.mark.parametrize(("system", "count"), [("p4d", 2), ("dgx-1-v100", 2), ("mi250x", 3)])
def test_in_turn_a_nic_serves_one_rank_in_a_round(system, count):
    """In no round a port or NIC has two messages; nearly all of what is inside goes between the first and the last.

    Blocks of other sizes do: ports then wait for none of them.
    """
    machine = catalog(system, hosts=count)
    ranks, paths = len(machine.endpoints), PathFinder(machine)
    rows = [10_000 * (1 + (5 * pair) % 4) for pair in range(ranks**2)]
    collective = Collective("alltoall", ranks, parts=tuple(rows))
    schedule = builds(machine, collective, sum(rows))["by-nics-1"]()
    assert replay(schedule) == expected(collective, schedule.chunks)
    at = messages(schedule)
    last = max(round_ for round_, src, dst in at if src // 8 != dst // 8)
    inside, held = Counter(), Counter()
    for round_, src, dst in at:
        inside[round_ <= last] += src // 8 == dst // 8
        held.update([(round_, "out", src), (round_, "in", dst)] if src // 8 == dst // 8 else [])
        if src // 8 != dst // 8:
            route = paths.cheapest(machine.endpoints[src], machine.endpoints[dst]).devices
            nics = [device for device in route if "NIC" in device]
            held.update([(round_, "NIC out", nics[0]), (round_, "NIC in", nics[-1])])
    assert max(held.values()) == 1 and inside[True] >= 9 * inside[False] and inside.total() >= 56 * count


def test_no_round_has_what_is_inside_at_a_port_that_sends_between_hosts():
    """DGX-1's pairs of GPUs share a NIC; with equal blocks half of the ports are free in every round."""
    machine = catalog("dgx-1-v100", hosts=2)
    schedule = builds(machine, collective_of("alltoall", 16, rows=16 * 16 * 64), 16 * 64)["by-nics-1"]()
    held = Counter()
    for round_, src, dst in messages(schedule):
        held.update([(round_, "out", src), (round_, "in", dst)])
    assert max(held.values()) == 1
