"""All-to-all straight and over rails: what each rank sends, and how many messages cross between hosts."""

from collections import Counter

import numpy as np
import pytest

from tests.machines import hosts, switch
from tests.planning.algorithms.offered import messages, most_rows_sent
from tests.planning.replay import builds, collective_of, expected, replay
from topocomm import catalog, plan
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify


@pytest.mark.parametrize("ranks", range(1, 18))
def test_each_block_goes_once_in_as_many_rounds_as_there_are_others(ranks):
    collective = collective_of("alltoall", ranks, rows=2 * ranks**2)
    offered = builds(switch(ranks), collective, 2 * ranks**2)
    flat, joined = offered["flat"](), offered["dissemination"]()
    assert flat.rounds == ranks - 1 and len(messages(flat)) == ranks * (ranks - 1)
    assert most_rows_sent(flat) == 2 * (ranks - 1)
    assert joined.rounds == (ranks - 1).bit_length()
    hops = sum(distance.bit_count() for distance in range(ranks))  # Bruck et al. 1997
    assert most_rows_sent(joined) == 2 * hops
    ends = switch(ranks).endpoints
    assert all(verify(s, collective, endpoints=ends, ports=1, serialised=False) for s in (flat, joined))


@pytest.mark.parametrize(("count", "gpus"), [(2, 1), (2, 4), (3, 3), (4, 2), (5, 3)])
def test_hosts_exchange_one_message_a_rail(count, gpus):
    ranks = count * gpus
    collective = collective_of("alltoall", ranks, rows=ranks**2)
    offered = builds(hosts(count, gpus), collective, ranks**2)
    if gpus == 1:
        assert "rails" not in offered
        return
    schedule = offered["rails"]()
    across = Counter((src // gpus, dst // gpus) for _, src, dst in messages(schedule) if src // gpus != dst // gpus)
    assert set(across.values()) == {gpus} and len(across) == count * (count - 1)
    assert schedule.rounds == count - 1 + gpus - 1
    assert replay(schedule) == expected(collective, schedule.chunks)


def test_hosts_of_unlike_sizes_and_ranks_in_any_order():
    """A rank of the larger host that has no counterpart gets its blocks by another, a step more."""
    machine = hosts(3, 3)
    ends = np.array(machine.endpoints)[[7, 0, 3, 1, 4, 8, 2, 5]].tolist()
    rows = [(3 * pair) % 5 for pair in range(64)]
    for objective in ("throughput", "auto"):
        most = max(sum(rows[low : low + 8]) for low in range(0, 64, 8))
        made = plan(machine, "alltoall", payload_bytes=4 * most, parts=rows, ranks=ends, objective=objective)
        assert made.collective == Collective("alltoall", 8, parts=tuple(rows))
        assert made.proof.complete and made.payload_bytes == 4 * most


@pytest.mark.parametrize(("system", "count"), [("dgx-a100", 2), ("dgx-h100", 4), ("mi300x-8", 2), ("mi250x", 4)])
def test_long_blocks_reach_the_bound(system, count):
    machine = catalog(system, hosts=count)
    made = plan(machine, "alltoall", payload_bytes=len(machine.endpoints) << 12, objective="throughput")
    assert made.certificate.gap < 1 / 0.97
