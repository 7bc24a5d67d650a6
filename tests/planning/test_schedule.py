"""Schedules as columns: what a pipelined one unrolls to, and what helpers read from the columns."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines import switch
from tests.planning.replay import builds, collective_of, expected, replay, same
from tests.planning.schedules import any_schedules, schedules
from topocomm.planning.collectives import COLLECTIVES
from topocomm.planning.schedule import (
    Repeat,
    busiest_port,
    count_messages,
    input_pieces,
    input_table,
    row_keys,
    rows_sent,
    split_rounds,
    split_rows,
    unrolled,
)
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


REPEATS = st.builds(Repeat, st.integers(1, 9), st.integers(0, 8))


@settings(max_examples=200, deadline=None)
@given(any_schedules(), REPEATS, st.integers(1, 5))
def test_figures_of_what_repeats_are_those_of_what_it_unrolls_to(made, repeat, endpoints):
    once, _ = made
    schedule = replace(once, repeat=repeat)
    flat = unrolled(schedule)
    messages = {(t.round, t.src, t.dst, t.path) for t in flat.transfer_list()}
    assert count_messages(schedule) == (len({message[0] for message in messages}), len(messages))
    assert count_messages(flat) == count_messages(schedule)
    assert rows_sent(schedule) == sum(flat.chunks[t.chunk][1] for t in flat.transfer_list())
    ends = [str(rank % endpoints) for rank in range(once.ranks)]
    for places in ((), ends):
        at = places or [str(rank) for rank in range(once.ranks)]
        sides = ([(m[0], at[m[side]]) for m in messages] for side in (1, 2))
        most = max(max(Counter(ports).values(), default=0) for ports in sides)
        assert busiest_port(schedule, places) == busiest_port(flat, places) == most


@settings(max_examples=100, deadline=None)
@given(any_schedules(), REPEATS, st.integers(1, 3))
def test_rounds_are_cut_only_where_ports_are_too_busy(made, repeat, ports):
    schedule = replace(made[0], repeat=repeat)
    ends = [str(rank) for rank in range(schedule.ranks)]
    cut = split_rounds(schedule, ends, ports)
    assert busiest_port(cut, ends) <= ports
    assert (cut is schedule) == (busiest_port(schedule, ends) <= ports)
    assert rows_sent(cut) == rows_sent(schedule)


@settings(max_examples=100, deadline=None)
@given(any_schedules() | schedules())
def test_what_is_read_of_one_rank_is_what_the_columns_say(made):
    schedule, _ = made
    places = []
    for rank in range(-1, schedule.ranks + 1):
        assert schedule.transfers_of(rank) == [t for t in schedule.transfer_list() if rank in (t.src, t.dst)]
        assert schedule.combines_of(rank) == [c for c in schedule.combine_list() if c.rank == rank]
        assert schedule.inputs_of(rank) == [row for row in schedule.inputs.tolist() if row[0] == rank]
        assert schedule.outputs_of(rank) == [row for row in schedule.outputs.tolist() if row[0] == rank]
        places += [(rank, *piece) for piece in input_pieces(schedule, rank)]
    table = input_table(schedule).tolist()
    assert sorted(tuple(row[:3]) for row in table) == sorted(places)
    assert all(schedule.inputs[row, :2].tolist() == [rank, slot] for rank, slot, _, row in table)


NUMBERS = st.sampled_from([0, 1, 2, 2**31 - 1, -(2**31), 7])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_keys_of_rows_are_ordered_as_the_rows(rows):
    """Four columns of 32 bits are more than a key holds: it is made dense on the way."""
    keys = row_keys(*np.asarray(rows, dtype=np.int32).reshape(-1, 4).T).tolist()
    for a, key in zip(rows, keys, strict=True):
        for b, other in zip(rows, keys, strict=True):
            assert (a < b) == (key < other)
            assert (a == b) == (key == other)


def test_slices_of_many_rows_do_not_overflow():
    rows = 2**53 - 1
    collective = collective_of("reduce", 2)
    once = builds(switch(2), collective, rows)["binomial"]()
    schedule = unrolled(replace(once, repeat=Repeat(2**15, 1)))
    assert schedule.chunks == split_rows(rows, 2**15)
