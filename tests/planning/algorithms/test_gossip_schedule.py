"""Any gossip becomes a proved schedule; what a message carries is what its destination lacks."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.replay import expected, replay
from topocomm import PlanError
from topocomm.planning.algorithms.gossip_parts import gossip_allgather, gossip_reduce_scatter
from topocomm.planning.algorithms.gossip_schedule import (
    NodeExchange,
    gossip_allreduce,
    gossip_broadcast,
    gossip_of,
    gossip_reduce,
    gossip_scan,
    worth_sending,
)
from topocomm.planning.algorithms.multiport import gather_gossip, reversed_gossip
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.range_tree import aligned_tree
from topocomm.planning.schedule.schedule_builder import ScheduleBuilder


def random_gossip(rng, ranks):
    """Random messages until all know all."""
    knows, rounds = [{rank} for rank in range(ranks)], []
    while any(len(known) < ranks for known in knows):
        messages = [tuple(rng.sample(range(ranks), 2)) for _ in range(rng.randint(1, ranks))]
        messages = list(dict.fromkeys(messages))
        before = [set(known) for known in knows]
        for src, dst in messages:
            knows[dst] |= before[src]
        rounds.append(messages)
    return rounds


@examples(150)
@given(st.integers(0, 2**32), st.integers(2, 9), st.sampled_from([2, 3]))
def test_any_gossip_is_an_allreduce_and_an_allgather(seed, ranks, radix):
    rng = random.Random(seed)
    told = random_gossip(rng, ranks)
    tree = aligned_tree(ranks, radix)
    parts = (*(rng.randrange(3) for _ in range(ranks - 1)), 1)
    for schedule, collective in (
        (gossip_allreduce(told, tree, 5), Collective("allreduce", ranks)),
        (gossip_allgather(told, parts), Collective("allgather", ranks, parts=parts)),
        (gossip_reduce_scatter(told, parts, tree), Collective("reduce_scatter", ranks, parts=parts)),
    ):
        assert verify(schedule, collective).order_kept
        assert replay(schedule) == expected(collective, schedule.chunks)
    commuting = gossip_reduce_scatter(told, parts, None)
    verify(commuting, Collective("reduce_scatter", ranks, parts=parts))


@examples(300)
@given(st.integers(0, 2**32), st.integers(2, 12), st.booleans(), st.sampled_from([2, 3]))
@example(1250412, 11, False, 2)  # a value that came folded with the next goes on in one message with that of another
def test_any_gossip_is_a_scan(seed, ranks, own, radix):
    """Also where a value comes folded to one who passes it on to somebody whose result ends within it."""
    told = random_gossip(random.Random(seed), ranks)
    schedule = gossip_scan(told, aligned_tree(ranks, radix), 2, own=own)
    collective = Collective("scan" if own else "exscan", ranks)
    verify(schedule, collective, keep_order=True)
    assert replay(schedule) == expected(collective, schedule.chunks)


def test_nothing_is_told_twice():
    told = [[(0, 1), (1, 0)], [(0, 1), (1, 0)]]
    assert gossip_of(gossip_allreduce(told, aligned_tree(2), 1)) == [[(0, 1), (1, 0)]]


def test_a_message_to_one_who_knows_part_carries_one_value():
    """Rank 2 has 0 and 1 folded; rank 0, which knows itself, gets the fold and not rank 1 apart."""
    told = [[(1, 0)], [(0, 2)], [(2, 3)], [(3, 1)]]
    schedule = gossip_allreduce([*told, [(3, 2), (1, 0)], [(2, 0), (2, 1)]], aligned_tree(4), 1)
    verify(schedule, Collective("allreduce", 4))


def test_a_gossip_that_leaves_somebody_out_is_no_allreduce():
    with pytest.raises(PlanError, match="rank 0 is to fold the value of rank 1, of which it never hears"):
        gossip_allreduce([[(0, 1)]], aligned_tree(2), 1)


@pytest.mark.parametrize("ranks", [*range(1, 18), 40])
def test_trees(ranks):
    members = list(range(ranks))
    for ports in (1, 2, 4):
        told = gather_gossip(members, ranks // 3, ports)
        reduce = gossip_reduce(told, aligned_tree(ranks, ports + 1), 2, ranks // 3)
        assert verify(reduce, Collective("reduce", ranks, ranks // 3)).order_kept
        assert len(reduce.transfers) == ranks - 1
        broadcast = gossip_broadcast(reversed_gossip(told), ranks, 2, ranks // 3)
        verify(broadcast, Collective("broadcast", ranks, ranks // 3))
        assert len(broadcast.transfers) == ranks - 1


def test_a_value_that_is_not_there_apart_is_no_message_of_a_scan():
    """Rank 0 has the fold of 0 and 1 alone, and a result that the message goes into ends between them."""
    tree = aligned_tree(4)
    pair = tree.parent[0]
    exchange = NodeExchange(ScheduleBuilder(4, ((0, 1),)), tree, held=[{pair: 0}, {1: 0}, {2: 0}, {3: 0}])
    with pytest.raises(PlanError, match="rank 0 is to send on values of ranks 0, which it has not apart"):
        exchange.round_before(0, [(0, 3, 0b11, 0b10)])


def test_messages_that_carry_nothing_new_are_not_worth_sending():
    """In a round every rank sends what it knew before; of two that bring the same the first counts."""
    gossip = [[(0, 1), (1, 2), (2, 1)], [(1, 2), (0, 2), (0, 1), (2, 0)]]
    assert worth_sending(gossip, [0b001, 0b010, 0b010]) == [[(0, 1)], [(1, 2), (2, 0)]]
