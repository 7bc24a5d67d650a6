"""Schedules as columns: what is read of one rank, and how rows are compared."""

from dataclasses import replace
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.planning.schedule.schedule import (
    input_pieces,
    input_table,
    make_schedule,
    number_keys,
    number_places,
    row_keys,
    spans,
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


@examples(100)
@given(any_schedules() | schedules())
def test_places_that_are_written_have_numbers_of_their_own(made):
    schedule, _ = made
    numbers = number_places(schedule)
    found = {}
    for places, own in (
        (schedule.transfers[:, [1, 2, 5]], numbers.sent),
        (schedule.transfers[:, [3, 4, 5]], numbers.received),
        (schedule.combines[:, 1:4], numbers.folded),
        (input_table(schedule)[:, :3], numbers.inputs),
        (schedule.outputs, numbers.outputs),
    ):
        for place, number in zip(places.tolist(), own.tolist(), strict=True):
            assert found.setdefault(tuple(place), number) == number
            assert [numbers.rank[number], numbers.chunk[number]] == [place[0], place[2]]
    assert len({*found.values()}) == len(found)


@examples(100)
@given(st.lists(st.tuples(*[NUMBERS] * 5), min_size=1, max_size=20) | st.lists(st.tuples(*[st.integers(3, 5)] * 5)))
def test_places_of_any_numbers(moves):
    """Far apart, even more than a key of 64 bits holds, or close: all that nothing writes have one number, the last."""
    none = make_schedule(1, [(0, 1)], inputs=[], outputs=[], transfers=[], combines=[])
    rows = [(0, *move, -1) for move in moves]
    numbers = number_places(replace(none, transfers=np.array(rows, dtype=np.int32).reshape(-1, 7)))
    written = [(dst, slot, chunk) for _, _, dst, slot, chunk in moves]
    places = written + [(src, slot, chunk) for src, slot, _, _, chunk in moves]
    found = [*numbers.received.tolist(), *numbers.sent.tolist()]
    for place, number in zip(places, found, strict=True):
        assert (number == len(moves)) == (place not in written) and number < numbers.count
        for other, same in zip(places, found, strict=True):
            if other in written:
                assert (place == other) == (number == same)


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


def test_slots_that_few_ranks_have_are_numbered_without_sorting():
    """One rank with many slots among many with few: keys by rank, slot and chunk would be far more than places."""
    many, ranks = 4000, 500
    rows = [(0, 0, slot, 1, slot, 0, -1) for slot in range(many)]
    rows += [(0, rank, 0, rank + 1, 0, 0, -1) for rank in range(2, ranks)]
    none = make_schedule(ranks + 1, [(0, 1)], inputs=[], outputs=[], transfers=[], combines=[])
    schedule = replace(none, transfers=np.array(rows, dtype=np.int32))
    with mock.patch.object(np, "unique", side_effect=AssertionError("sorted")):
        numbers = number_places(schedule)
    assert numbers.received.tolist() == list(range(len(rows)))
    assert numbers.sent[:many].tolist() == [len(rows)] * many  # nothing writes them
    assert numbers.sent[many + 1 :].tolist() == list(range(many, len(rows) - 1))


def test_ranges_follow_each_other():
    starts, numbers = spans(np.array([4, 0, 9]), np.array([2, 0, 3]))
    assert starts.tolist() == [0, 2, 2, 5]
    assert numbers.tolist() == [4, 5, 9, 10, 11]
