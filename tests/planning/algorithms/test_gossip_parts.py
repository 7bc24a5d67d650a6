"""Allgather and reduce-scatter of gossips: proved, replayed, in the fewest rounds."""

import pytest

from tests.planning.algorithms.offered import messages, most_rows_sent, offered, takes
from tests.planning.replay import expected, replay, same
from topocomm.planning.algorithms.gossip_parts import gossip_allgather, gossip_reduce_scatter
from topocomm.planning.algorithms.multiport import (
    spread_gossip,
)
from topocomm.planning.bounds import least_rounds
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.range_tree import aligned_tree


def check(schedule, collective, ports):
    ends = [str(rank) for rank in range(collective.ranks)]
    proof = verify(schedule, collective, endpoints=ends, ports=ports, serialised=False)
    assert schedule.rounds == least_rounds(collective.ranks, ports)
    assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept)
    return proof


@pytest.mark.parametrize("ports", [1, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, 9, 13])
def test_parts(ranks, ports):
    parts = tuple(5 * rank % 4 for rank in range(ranks))
    told = spread_gossip(ranks, ports)
    if sum(parts):
        check(gossip_allgather(told, parts), Collective("allgather", ranks, parts=parts), ports)
        kept = [gossip_reduce_scatter(told, parts, tree) for tree in (None, aligned_tree(ranks, ports + 1))]
        proofs = [check(schedule, Collective("reduce_scatter", ranks, parts=parts), ports) for schedule in kept]
        assert proofs[1].order_kept


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_rounds_of_dissemination(name):
    takes(name, "dissemination", lambda ranks: (ranks - 1).bit_length())


@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_in_dissemination_every_rank_sends_one_message_a_round_and_each_part_once(name, ranks):
    schedule = offered(name, "dissemination", ranks, rows=16 * ranks)
    assert len(messages(schedule)) == ranks * (ranks - 1).bit_length()
    assert most_rows_sent(schedule) == 16 * (ranks - 1)
