"""Canonical order: one bracketing for every rank count and layout, and nothing else is accepted."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.replay import builds, replay, shards_word
from topocomm import PlanError
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.canonical_tree import canonical_nodes, canonical_split
from topocomm.planning.schedule.schedule import Combine, make_schedule


def test_the_tree_is_dyadic_and_a_ragged_edge_joins_last():
    assert [canonical_split(n) for n in (2, 3, 4, 5, 8, 9, 64, 65)] == [1, 2, 2, 4, 4, 8, 32, 64]
    assert shards_word(0, 5) == "(((01)(23))4)"
    assert shards_word(0, 7) == "(((01)(23))((45)6))"


@pytest.mark.parametrize(
    ("low", "high", "total", "nodes"),
    [
        (0, 64, 64, [(0, 64)]),
        (3, 3, 8, []),
        (0, 3, 8, [(0, 2), (2, 3)]),
        (3, 8, 8, [(3, 4), (4, 8)]),
        (1, 7, 8, [(1, 2), (2, 4), (4, 6), (6, 7)]),
        (4, 7, 7, [(4, 7)]),
        (5, 7, 7, [(5, 6), (6, 7)]),
        (6, 7, 7, [(6, 7)]),
        (8, 11, 11, [(8, 11)]),
    ],
)
def test_nodes_of_a_range(low, high, total, nodes):
    assert canonical_nodes(low, high, total) == nodes


def tree(low, high):
    """All nodes of the tree."""
    found = {(low, high)}
    if high - low > 1:
        middle = low + canonical_split(high - low)
        found |= tree(low, middle) | tree(middle, high)
    return found


@examples(200)
@given(st.integers(1, 130), st.data())
def test_nodes_cover_the_range_and_are_the_largest_and_few(total, data):
    low = data.draw(st.integers(0, total))
    high = data.draw(st.integers(low, total))
    nodes = canonical_nodes(low, high, total)
    assert [shard for node in nodes for shard in range(*node)] == list(range(low, high))
    every = tree(0, total)
    assert set(nodes) <= every
    larger = {node for node in every if low <= node[0] and node[1] <= high}
    assert not any(node != other and other[0] <= node[0] and node[1] <= other[1] for node in nodes for other in larger)
    assert len(nodes) <= max(1, 2 * (total - 1).bit_length())


def test_another_tree_over_the_shards_is_refused():
    """((0 1) (2 3)) may be folded in one go or in two, but not as (0 (1 (2 3))), though every contribution is there."""
    shards = (0, 1, 2, 4)
    collective = Collective("allreduce", 3, shards=shards)
    schedule = builds(switch(3), collective, 1)["canonical-flat"]()
    folds = schedule.combine_list()
    for fold in [f for f in folds if len(f.operands) == 2][::2]:
        (last,) = [f for f in folds if f.rank == fold.rank and fold.out_slot in f.operands]
        folds.remove(fold)
        folds[folds.index(last)] = last._replace(operands=(*fold.operands, last.operands[1]))
    same = with_folds(schedule, folds)  # ((a.b).c) folded at once is the same tree
    assert verify(same, collective).canonical_tree
    last = [f for f in folds if len(f.operands) == 3]
    assert len(last) == 3
    wrong = with_folds(schedule, rebracketed(folds))
    with pytest.raises(PlanError, match="not the canonical tree over the virtual shards"):
        verify(wrong, collective)


@examples(300)
@given(st.integers(2, 9), st.randoms(use_true_random=False))
def test_a_bracketing_is_accepted_where_it_is_that_of_the_tree_and_nowhere_else(ranks, chance):
    """All ranks evaluate one random bracketing of the shards in order, sometimes the canonical one."""
    shards = tuple(range(ranks + 1))
    collective = Collective("allreduce", ranks, shards=shards)
    schedule = builds(switch(ranks), collective, 1)["canonical-flat"]()
    canonical, slots = chance.random() < 0.3, [{rank: 0} for rank in range(ranks)]
    for move in schedule.transfer_list():
        slots[move.dst][move.src] = move.dst_slot
    cuts = {}  # (low, high) -> where the left branch ends
    for low in range(ranks):
        for high in range(low + 2, ranks + 1):
            cuts[low, high] = low + (canonical_split(high - low) if canonical else chance.randrange(1, high - low))
    folds, outputs = [], []
    for rank in range(ranks):

        def fold(low, high, rank=rank):
            if high - low == 1:
                return slots[rank][low]
            operands = fold(low, cuts[low, high]), fold(cuts[low, high], high)
            folds.append(Combine(max(ranks - 2, 0), rank, 100 + len(folds), 0, operands))
            return folds[-1].out_slot

        outputs.append((rank, fold(0, ranks), 0))
    made = with_folds(schedule, folds, outputs)
    right = set(replay(made, brackets=True).values()) == {shards_word(0, ranks)}
    assert right or not canonical
    if right:
        assert verify(made, collective).canonical_tree
    else:
        with pytest.raises(PlanError, match="not the canonical tree"):
            verify(made, collective)


def with_folds(schedule, folds, outputs=None):
    """The schedule with other combines, and other slots put out."""
    return make_schedule(
        schedule.ranks,
        schedule.chunks,
        inputs=schedule.inputs.tolist(),
        outputs=outputs or schedule.outputs.tolist(),
        transfers=schedule.transfer_list(),
        combines=folds,
        nodes=schedule.nodes,
    )


def rebracketed(folds):
    """(a.(b.c)) in place of ((a.b).c)."""
    found = []
    for fold in folds:
        a, b, c = fold.operands
        found += [fold._replace(out_slot=99, operands=(b, c)), fold._replace(operands=(a, 99))]
    return found


def test_nodes_that_the_rank_does_not_own_are_refused():
    collective = Collective("allreduce", 3, shards=(0, 3, 3, 8))
    schedule = builds(switch(3), collective, 1)["canonical-doubling"]()
    verify(schedule, collective)
    with pytest.raises(
        PlanError, match=r"input of rank 0 is node \(2, 4\); expected each .* of its shards 0 to 3 once"
    ):
        verify(replace(schedule, nodes=((0, 2), (2, 4), *schedule.nodes[2:])), collective)
    with pytest.raises(PlanError, match=r"input of rank 0 is node 3; expected"):
        verify(replace(schedule, inputs=np.add(schedule.inputs, [0, 0, 3]), nodes=schedule.nodes[:3]), collective)
    with pytest.raises(PlanError, match=r"input of rank 0 is node \(2, 3\)"):
        verify(schedule, Collective("allreduce", 3, shards=(0, 2, 3, 8)))
    with pytest.raises(PlanError, match="misses the contribution of virtual shard 8"):
        verify(schedule, Collective("allreduce", 3, shards=(0, 3, 3, 9)))
