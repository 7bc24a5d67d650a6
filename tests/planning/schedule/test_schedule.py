"""Schedules as columns: what is read of one rank, and how rows are compared."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.planning.schedule.schedule import (
    Repeat,
    input_pieces,
    input_table,
    number_keys,
    row_keys,
    slice_order,
    spans,
    stable_order,
)


@examples(100)
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


@given(st.lists(st.integers(0, 40) | st.sampled_from([2**40, 2**62]), max_size=30))
def test_keys_are_numbered_in_their_order_whether_close_or_far_apart(keys):
    first, numbers = number_keys(np.array(keys, dtype=np.int64))
    assert first.tolist() == [keys.index(key) for key in sorted(set(keys))]
    assert numbers.tolist() == [sorted(set(keys)).index(key) for key in keys]


@given(st.lists(st.integers(0, 5) | st.sampled_from([2**40, 2**57 - 1, 2**58, 2**62]), max_size=40))
def test_order_is_stable_for_keys_of_any_size(keys):
    keys = np.array(keys, dtype=np.int64)
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


def test_ranges_follow_each_other():
    starts, numbers = spans(np.array([4, 0, 9]), np.array([2, 0, 3]))
    assert starts.tolist() == [0, 2, 2, 5]
    assert numbers.tolist() == [4, 5, 9, 10, 11]


@examples(100)
@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 9), st.integers(0, 5))
def test_slices_come_by_round_and_then_by_slice(rounds, count, stagger):
    table = np.array(sorted(rounds), dtype=np.int32)[:, None].repeat(4, axis=1)
    wanted = sorted((int(row[0]) + each * stagger, each, at) for each in range(count) for at, row in enumerate(table))
    row, number = slice_order(table, Repeat(count, stagger))
    assert list(zip(number.tolist(), row.tolist(), strict=True)) == [(each, at) for _, each, at in wanted]
