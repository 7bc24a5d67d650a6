"""Allreduce in canonical order: one bracketing for every layout, few slots a message."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.replay import builds, replay, shards_word
from tests.plans import every_plan
from topocomm import SUM
from topocomm.planning.collectives import Collective
from topocomm.planning.proof.verify import verify


@st.composite
def layouts(draw, most_ranks=17, most_shards=70):
    """Starts of the ranks' ranges and the end; many are empty."""
    ranks, total = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_shards))
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=ranks - 1, max_size=ranks - 1)))
    return (0, *cuts, total)


@examples(150)
@given(layouts(), st.sampled_from([0, 1, 3, 40]))
def test_every_layout_evaluates_one_expression(shards, rows):
    """For every algorithm, rank and chunk: the tree over all virtual shards, bracket by bracket."""
    ranks = len(shards) - 1
    collective = Collective("allreduce", ranks, shards=shards)
    whole = shards_word(0, shards[-1])
    for name, build in builds(switch(ranks), collective, rows).items():
        schedule = build()
        proof = verify(schedule, collective, keep_order=True)
        assert proof.canonical_tree, name
        results = replay(schedule, brackets=True)
        assert set(results.values()) == {whole}, name
        assert len(results) == ranks * len(schedule.chunks), name


@pytest.mark.parametrize("ranks", [32, 64, 100])
def test_many_ranks(ranks):
    chance = random.Random(ranks)
    shards = (0, *sorted(chance.randint(0, 128) for _ in range(ranks - 1)), 128)
    collective = Collective("allreduce", ranks, shards=shards)
    offered = builds(switch(ranks), collective, 4)
    assert {"canonical-doubling", "canonical-binomial"} <= set(offered)
    assert ("canonical-flat" in offered) == (ranks <= 64)
    for build in offered.values():
        schedule = build()
        assert verify(schedule, collective).canonical_tree
        assert set(replay(schedule, brackets=True).values()) == {shards_word(0, 128)}


def test_a_message_has_few_slots():
    for shards in [(0, 1, 127, 128), (0, 3, 64, 65, 128), tuple(range(0, 129, 8))]:
        collective = Collective("allreduce", len(shards) - 1, shards=shards)
        for build in builds(switch(collective.ranks), collective, 1).values():
            sizes = {}
            for move in build().transfer_list():
                sizes[move.round, move.src, move.dst] = sizes.get((move.round, move.src, move.dst), 0) + 1
            assert max(sizes.values()) <= 2 * 7


def test_fewer_messages_than_flat_for_many_ranks():
    shards = tuple(range(17))
    counts = {
        p.algorithm: p.figures.transfers
        for p in every_plan(switch(16), "allreduce", SUM, SUM.default_layout(4), shards=shards)
    }
    assert counts["canonical-flat"] == 16 * 15
    assert counts["canonical-doubling"] == 16 * 4
    assert counts["canonical-binomial"] == 2 * 15
