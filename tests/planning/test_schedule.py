"""Schedules as columns: what a pipelined one unrolls to, and what helpers read from the columns."""

from dataclasses import replace

import pytest

from tests.machines import switch
from tests.planning.replay import builds, collective_of, expected, replay, same
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.schedule import Repeat, split_rows, unrolled
from topocomm.planning.verify import verify


@pytest.mark.parametrize("repeat", [(1, 0), (1, 3), (2, 1), (3, 0), (4, 2), (2, 9)], ids=str)
@pytest.mark.parametrize("rows", [0, 48])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_repeats_unrolled_computes_the_same(name, rows, repeat):
    count, stagger = repeat
    for ranks in (1, 2, 5):
        collective = collective_of(name, ranks, rows=rows)
        for build in builds(switch(ranks), collective, rows).values():
            once = build()
            schedule = unrolled(replace(once, repeat=Repeat(*repeat)))
            assert schedule.repeat is None
            assert schedule.rounds == once.rounds + (count - 1) * stagger
            slices = [(first + low, n) for first, size in once.chunks for low, n in split_rows(size, count)]
            assert schedule.chunks == tuple(slices)
            assert len(schedule.transfers) == count * len(once.transfers)
            proof = verify(schedule, collective)
            assert proof == verify(once, collective)
            if rows:
                assert same(replay(schedule), expected(collective, schedule.chunks), proof.order_kept)


def test_without_repeat_nothing_changes():
    collective = collective_of("allreduce", 4)
    for build in builds(switch(4), collective, 16).values():
        schedule = build()
        assert unrolled(schedule) is schedule


def test_slices_take_their_turn():
    collective = collective_of("reduce", 4, rows=6)
    once = builds(switch(4), collective, 6)["binomial"]()
    schedule = unrolled(replace(once, repeat=Repeat(3, 1)))
    assert [(t.round, t.chunk, t.src, t.dst) for t in schedule.transfer_list()] == sorted(
        (t.round + i, i, t.src, t.dst) for i in range(3) for t in once.transfer_list()
    )
    assert [(c.round, c.chunk, c.rank, c.operands) for c in schedule.combine_list()] == sorted(
        (c.round + i, i, c.rank, c.operands) for i in range(3) for c in once.combine_list()
    )
