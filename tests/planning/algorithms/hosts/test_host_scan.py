"""Scans over hosts that are alike, as columns: in order, within the ports, for any number of hosts."""

import pytest

from tests.planning.replay import expected, replay
from tests.thinning import thinned
from topocomm.planning.algorithms.hosts.host_scan import shift_scan
from topocomm.planning.algorithms.hosts.rank_groups import Groups, Inside
from topocomm.planning.algorithms.multiport import spread_gossip
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.range_tree import aligned_tree


def groups(hosts, members, ports):
    told = tuple(map(tuple, spread_gossip(members, ports)))
    inside = Inside(told, aligned_tree(members, ports + 1))
    return Groups(tuple(range(0, hosts * members + 1, members)), (0,) * hosts, (inside,))


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 5, 7, 8, 9, 12, 17])
@pytest.mark.parametrize("members", thinned([1, 2, 3, 4, 5, 8]))
def test_every_number_of_hosts_and_members(hosts, members):
    for ports in (1, 2, 3):
        most = members * ports + 1
        for radix in {2, min(4, most), most}:
            radices = []
            while radix ** len(radices) < hosts:
                radices.append(radix)
            for own in (True, False):
                schedule = shift_scan(groups(hosts, members, ports), radices, 3, ports, own=own)
                collective = Collective("scan" if own else "exscan", hosts * members)
                proof = verify(schedule, collective, keep_order=True, ports=ports, serialised=False)
                assert proof.ports_respected
                if hosts * members <= 24:
                    assert replay(schedule) == expected(collective, schedule.chunks)
