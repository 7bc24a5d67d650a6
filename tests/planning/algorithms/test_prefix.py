"""Prefix reductions: rounds of each algorithm, with one port and with several."""

from math import ceil, log2

import pytest

from tests.planning.algorithms.offered import messages, offered, takes
from tests.planning.replay import expected, replay
from topocomm.planning.algorithms.prefix import chain_scan, doubling_exscan, doubling_scan
from topocomm.planning.bounds import least_rounds
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_rounds(name):
    takes(name, "chain", lambda ranks: ranks - 1)
    takes(name, "doubling", lambda ranks: (ranks - 1).bit_length())


def test_rounds_of_one_two_three():
    takes("exscan", "1-2-3-doubling", lambda p: ceil(log2(p - 1) + log2(4 / 3) - 1e-12) if p > 2 else 1)


def test_one_two_three_folds_less_than_doubling():
    folds = [len(offered("exscan", name, 32).combine_list()) for name in ("1-2-3-doubling", "doubling")]
    assert folds[0] < folds[1]


def test_a_chain_has_the_fewest_messages():
    assert messages(offered("scan", "chain", 9)) == {(rank, rank, rank + 1) for rank in range(8)}


@pytest.mark.parametrize("name", ["scan", "exscan"])
def test_ranks_of_a_chain_send_in_the_rounds_that_they_are_told(name):
    schedule = chain_scan(4, 3, own=name == "scan", sends=[0, 5, 6])
    assert schedule.transfers[:, [0, 1, 3]].tolist() == [[0, 0, 1], [5, 1, 2], [6, 2, 3]]
    assert replay(schedule) == expected(Collective(name, 4), schedule.chunks)


@pytest.mark.parametrize("ports", [1, 2, 3, 7])
@pytest.mark.parametrize("ranks", [*range(1, 18), 27, 64])
def test_several_ports(ranks, ports):
    for name, build in (("scan", doubling_scan), ("exscan", doubling_exscan)):
        schedule, collective = build(ranks, 3, ports), Collective(name, ranks)
        ends = [str(rank) for rank in range(ranks)]
        assert verify(schedule, collective, endpoints=ends, ports=ports, serialised=False).ports_respected
        assert schedule.rounds == least_rounds(ranks, ports)
        assert replay(schedule) == expected(collective, schedule.chunks)
