"""Schedules as columns: what is read of one rank, and how rows are compared."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.native._native import order_slices
from topocomm.planning.schedule.schedule import (
    Repeat,
    _slice_order_plainly,
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


@examples(200)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 9), st.integers(0, 5), st.sampled_from([1, 1000]))
def test_both_ways_order_slices_alike(rounds, count, stagger, apart):
    """With rounds without entries, also many, and with several entries."""
    table = np.zeros((len(rounds), 4), dtype=np.int32)
    table[:, 0] = np.sort(rounds)
    table[:, 0] *= apart
    repeat = Repeat(count, stagger * apart)
    wanted = [column.tolist() for column in _slice_order_plainly(table, repeat)]
    assert [column.tolist() for column in slice_order(table, repeat)] == wanted
    with patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert [column.tolist() for column in slice_order(table, repeat)] == wanted


def test_rounds_far_apart_take_no_time_of_their_own():
    table = np.array([[0, 1], [2**31 - 1, 2]], dtype=np.int32)
    assert slice_order(table, Repeat(2, 2**31 - 1))[0].tolist() == [0, 1, 0, 1]


def test_columns_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""

    def columns():
        return [np.array([[0], [3]], np.int32), np.array([2, 1]), *(np.zeros(size, np.int64) for size in (2, 4, 4))]

    order_slices(*(good := columns()))
    assert [column.tolist() for column in good[3:]] == [[0, 0, 1, 1], [0, 1, 0, 1]]
    for which in range(5):
        wrong = columns()
        wrong[which] = wrong[which][:-1]
        with pytest.raises(ValueError, match="do not fit each other"):
            order_slices(*wrong)
    for which, place, value in [(0, 0, 9), (1, 0, 0), (1, 0, -1), (1, 1, -1), (1, 0, 3)]:
        wrong = columns()
        wrong[which][place] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            order_slices(*wrong)
