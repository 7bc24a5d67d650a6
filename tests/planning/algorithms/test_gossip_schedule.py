"""Any gossip becomes a proved schedule; what a message carries is what its destination lacks."""

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.replay import expected, replay
from topocomm import PlanError
from topocomm.native import _native
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


def random_exchange(seed):
    """A leaf on each rank, or a few nodes of any tree and all leaves on rank 0; and a gossip that may lack some."""
    rng = np.random.default_rng(seed)
    leaves, ranks = int(rng.integers(1, 90)), int(rng.integers(2, 40))
    tree, held = aligned_tree(leaves, int(rng.integers(2, 4))), None
    if rng.random() < 0.5:
        few = [rng.permutation(len(tree.parent))[: rng.integers(1, 5)].tolist() for _ in range(ranks)]
        held = [{node: slot for slot, node in enumerate(nodes)} for nodes in few]
        held[0] |= {leaf: 9 + leaf for leaf in range(leaves)}
        build = ScheduleBuilder(ranks, ((0, 1),), first_slots=[9 + leaves] * ranks)
    else:
        ranks = leaves
        build = ScheduleBuilder(ranks, ((0, 1),))
    rounds = int(rng.integers(1, 9)) + 2 * ranks.bit_length()
    drawn = rng.integers(0, ranks, (rounds, max(ranks, 2), 2))
    gossip = [[(src, dst) for src, dst in own if src != dst] for own in drawn.tolist()]
    return NodeExchange(build, tree, chunk=3, held=held), gossip


def columns_of(exchange):
    build = exchange.build
    return build.moves, build.folds, build.operands, build.widths, build.next_slot


@pytest.mark.parametrize("seed", range(60))
def test_both_ways_send_and_fold_the_same(seed):
    (compiled, gossip), (plain, _) = random_exchange(seed), random_exchange(seed)
    try:
        wanted = plain._run_plainly(gossip, 5)
    except PlanError as error:
        with pytest.raises(PlanError, match=str(error)):
            compiled.run_everywhere(gossip, first_round=5)
        return
    with mock.patch.object(NodeExchange, "_run_plainly", side_effect=AssertionError):
        assert compiled.run_everywhere(gossip, first_round=5) == wanted
    assert columns_of(compiled) == columns_of(plain)
    assert [compiled.value(rank) for rank in range(compiled.build.ranks)] == wanted
    without, _ = random_exchange(seed)
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert without.run_everywhere(gossip, first_round=5) == wanted


def test_wrong_arrays_are_refused():
    tree = aligned_tree(3).columns

    def exchange(place=0, at=(0, 0), value=None, *, entries=None):
        given = [tree, [[0, 0, 0], [1, 1, 0], [2, 2, 0]], [[0, 0, 1], [0, 1, 0], [1, 0, 2]], [1, 1, 1], [0, 0, 0]]
        own = [np.array(array, np.int32) for array in given]
        if value is not None:
            own[place][at] = value
        own[place] = own[place][:entries] if place else own[place]
        return _native.exchange_nodes(*own, 0)

    assert exchange() is None  # rank 1 never hears of 2
    wrong = [(0, (0, 0), -1), (0, (1, 4), 4), (0, (2, 3), 3), (0, (3, 4), 5), (0, (4, 4), 3), (0, (4, 0), 5)]
    wrong += [(1, (1, 0), 3), (1, (1, 1), 5), (1, (1, 2), -1), (2, (0, 0), -1), (2, (0, 1), 3), (2, (2, 2), -1)]
    for place, at, value in wrong:
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            exchange(place, at, value)
    for place in (3, 4):
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            exchange(place, entries=2)
    with pytest.raises(TypeError, match="5 arrays and a chunk"):
        _native.exchange_nodes(tree)
