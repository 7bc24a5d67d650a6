"""Schedules made of schedules compute the same: unrolled, and with rounds cut where ports are too busy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.machines import switch
from tests.planning.forests.machines import forest
from tests.planning.replay import builds, collective_of, expected, replay, same
from tests.planning.schedules import any_schedules
from topocomm.planning.algorithms.flat import flat_allgather
from topocomm.planning.algorithms.two_tree import two_tree_allreduce
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.proof.verify import verify
from topocomm.planning.schedule.schedule import Repeat, split_rows
from topocomm.planning.schedule.traffic import busiest_port, rows_sent
from topocomm.planning.schedule.transforms import (
    in_phases,
    joined_rounds,
    most_slices,
    sliced,
    split_rounds,
    unrolled,
)


@pytest.mark.parametrize("repeat", [(1, 0), (1, 3), (2, 1), (3, 0), (4, 2), (2, 9)], ids=str)
@pytest.mark.parametrize("rows", [0, 48])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_repeats_unrolled_computes_the_same(name, rows, repeat):
    count, stagger = repeat
    for ranks in (1, 2, 5):
        rows *= ranks if name == "alltoall" else 1  # for rows in every slice
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


def test_slices_of_many_rows_do_not_overflow():
    rows = 2**53 - 1
    collective = collective_of("reduce", 2)
    once = builds(switch(2), collective, rows)["binomial"]()
    schedule = unrolled(replace(once, repeat=Repeat(2**15, 1)))
    assert schedule.chunks == split_rows(rows, 2**15)


REPEATS = st.builds(Repeat, st.integers(1, 9), st.integers(0, 8))


@examples(100)
@given(any_schedules(), REPEATS, st.integers(1, 3))
def test_rounds_are_cut_only_where_ports_are_too_busy(made, repeat, ports):
    schedule = replace(made[0], repeat=repeat)
    ends = [str(rank) for rank in range(schedule.ranks)]
    cut = split_rounds(schedule, ends, ports)
    assert busiest_port(cut, ends) <= ports
    assert (cut is schedule) == (busiest_port(schedule, ends) <= ports)
    assert rows_sent(cut) == rows_sent(schedule)


@pytest.mark.parametrize("ports", [1, 3, 16])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_joined_rounds_compute_the_same_in_no_more_rounds(name, ports):
    for ranks in (1, 2, 5, 8):
        collective, ends = collective_of(name, ranks, rows=16), [str(rank) for rank in range(ranks)]
        for build in builds(switch(ranks), collective, 16).values():
            once = build()
            joined = joined_rounds(once, ends, ports)
            verify(joined, collective)
            assert replay(joined) == replay(once)
            assert joined.rounds <= once.rounds
            assert busiest_port(joined, ends) <= max(ports, busiest_port(once, ends))
            assert rows_sent(joined) == rows_sent(once)


@pytest.mark.parametrize(("ports", "rounds"), [(1, 7), (2, 4), (3, 3), (7, 1), (9, 1)])
def test_a_flat_exchange_takes_as_many_rounds_as_its_ports_need(ports, rounds):
    ends = [str(rank) for rank in range(8)]
    for name, times in (("flat", 1), ("direct", 2), ("recursive-doubling", 0)):
        once = builds(switch(8), collective_of("allreduce", 8), 16)[name]()
        assert joined_rounds(once, ends, ports).rounds == (times * rounds or 3)


@examples(100)
@given(any_schedules(), st.integers(1, 4))
def test_nothing_is_read_in_the_joined_round_that_wrote_it(made, ports):
    schedule = made[0]
    joined = joined_rounds(schedule, [str(rank) for rank in range(schedule.ranks)], ports)
    written = {(f.rank, f.out_slot, f.chunk): f.round for f in joined.combine_list()}
    written |= {(t.dst, t.dst_slot, t.chunk): t.round for t in joined.transfer_list()}
    for move in joined.transfer_list():
        assert written.get((move.src, move.src_slot, move.chunk), -1) < move.round


def test_slices_are_asked_for_and_cut_to_the_rows():
    assert sliced(forest(switch(4), "allreduce", 64).schedule, 1, 1).repeat is None
    assert sliced(forest(switch(4), "allreduce", 64).schedule, 8, 1).repeat == Repeat(8, 1)
    assert sliced(forest(switch(4), "allreduce", 8).schedule, 8, 1).repeat == Repeat(2, 1)


def test_the_shortest_chunk_counts_and_empty_ones_do_not():
    assert most_slices(flat_allgather([7, 0, 3])) == 3
    assert most_slices(flat_allgather([0, 0])) == 1
    assert two_tree_allreduce(4, 5, 64).repeat == Repeat(2, 4)
    assert two_tree_allreduce(4, 3, 64).repeat is None


@pytest.mark.parametrize("name", COLLECTIVES)
def test_in_phases_all_slices_have_a_round_before_any_has_the_next(name):
    for ranks in (2, 5):
        rows = 48 * ranks
        collective = collective_of(name, ranks, rows=rows)
        for build in builds(switch(ranks), collective, rows).values():
            once = build()
            if once.repeat is not None:
                continue
            made = in_phases(once, 3)
            count = min(3, most_slices(once))
            assert made.repeat == (Repeat(count, 1) if count > 1 else None)
            every = unrolled(made)
            assert verify(made, collective) == verify(once, collective)
            slice_of, round_of = every.transfers[:, 5] % count, every.transfers[:, 0] // count
            assert (every.transfers[:, 0] % count == slice_of).all()
            assert sorted(round_of.tolist()) == sorted(once.transfers[:, 0].tolist() * count)


def test_in_phases_slices_have_no_less_than_a_row():
    once = flat_allgather((1, 1, 1))
    assert in_phases(once, 4) is once
