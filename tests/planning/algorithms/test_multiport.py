"""K ports on machines where all pairs are alike: the fewest rounds, for every number of ranks."""

import pytest

from tests.planning.replay import expected, replay, same
from topocomm.planning.algorithms.multiport import (
    multiport_allreduce,
    multiport_broadcast,
    multiport_reduce,
)
from topocomm.planning.bounds import least_rounds
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify

RANKS = [*range(1, 18), 27, 31, 64, 100]
PORTS = [1, 2, 3, 7]


def check(schedule, collective, ports):
    ends = [str(rank) for rank in range(collective.ranks)]
    proof = verify(schedule, collective, endpoints=ends, ports=ports, serialised=False)
    assert schedule.rounds == least_rounds(collective.ranks, ports)
    assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept)
    return proof


@pytest.mark.parametrize("ports", PORTS)
@pytest.mark.parametrize("ranks", RANKS)
def test_fewest_rounds_in_rank_order(ranks, ports):
    assert check(multiport_allreduce(ranks, 3, ports), Collective("allreduce", ranks), ports).order_kept
    for root in {0, ranks // 2, ranks - 1}:
        assert check(multiport_reduce(ranks, 3, root, ports), Collective("reduce", ranks, root), ports).order_kept
        check(multiport_broadcast(ranks, 3, root, ports), Collective("broadcast", ranks, root), ports)


@pytest.mark.parametrize(("ranks", "most"), [(17, 5), (31, 7), (100, 8), (64, 1), (8, 1)])
def test_few_values_travel_together(ranks, most):
    """Of a window of w ranks at most 2 log2 w aligned ranges; in an exchange between powers of two, one."""
    moves = multiport_allreduce(ranks, 1, 1).transfer_list()
    together: dict = {}
    for move in moves:
        key = (move.round, move.src, move.dst)
        together[key] = together.get(key, 0) + 1
    assert max(together.values()) <= most
