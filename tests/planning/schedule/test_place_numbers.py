"""Places of a schedule by number: the compiled pass and columns give the same, on any schedule."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.native import _native
from topocomm.planning.schedule.place_numbers import number_places, number_slices
from topocomm.planning.schedule.schedule import Repeat, input_table, make_schedule
from topocomm.planning.schedule.transforms import most_slices, unrolled

NUMBERS = st.sampled_from([0, 1, 2, 2**31 - 1, -(2**31), 7])


def numbered_plainly(schedule):
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        return number_places(schedule)


def assert_same(one, other):
    assert one.count == other.count
    for name in ("rank", "chunk", "sent", "received", "folded", "operands", "inputs", "outputs", "fold_of"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype and np.array_equal(a, b), name


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
    assert_same(numbers, numbered_plainly(schedule))


@examples(100)
@given(st.lists(st.tuples(*[NUMBERS] * 5), min_size=1, max_size=20) | st.lists(st.tuples(*[st.integers(3, 5)] * 5)))
def test_places_of_any_numbers(moves):
    """Far apart, even more than a key of 64 bits holds, or close: all that nothing writes have one number, the last."""
    none = make_schedule(1, [(0, 1)], inputs=[], outputs=[], transfers=[], combines=[])
    rows = [(0, *move, -1) for move in moves]
    schedule = replace(none, transfers=np.array(rows, dtype=np.int32).reshape(-1, 7))
    numbers = number_places(schedule)
    assert_same(numbers, numbered_plainly(schedule))
    written = [(dst, slot, chunk) for _, _, dst, slot, chunk in moves]
    places = written + [(src, slot, chunk) for src, slot, _, _, chunk in moves]
    found = [*numbers.received.tolist(), *numbers.sent.tolist()]
    for place, number in zip(places, found, strict=True):
        assert (number == len(moves)) == (place not in written) and number < numbers.count
        for other, same in zip(places, found, strict=True):
            if other in written:
                assert (place == other) == (number == same)


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


def test_places_of_long_schedules_have_the_numbers_that_columns_give():
    """More than keys that are looked up together: of several writes the last counts, and some are read that none is."""
    rng = np.random.default_rng(3)
    rows = np.column_stack(
        [np.zeros(5000), *rng.integers(0, 9, (3, 5000)), *rng.integers(0, 40, (2, 5000)), np.full(5000, -1)]
    )
    schedule = make_schedule(
        9, [(0, 1)] * 40, inputs=[(rank, 0, rank) for rank in range(9)], outputs=[(8, 50, 0)], transfers=[], combines=[]
    )
    schedule = replace(
        schedule,
        transfers=rows.astype(np.int32),
        combines=np.column_stack([np.zeros(70), *rng.integers(0, 9, (3, 70))]).astype(np.int32),
        operands=rng.integers(0, 60, 140).astype(np.int32),
        operand_starts=np.arange(0, 141, 2, dtype=np.int32),
    )
    assert_same(number_places(schedule), numbered_plainly(schedule))


def test_arrays_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""
    arrays = [np.zeros((2, 7), np.int32), np.zeros((1, 4), np.int32), np.zeros(2, np.int32), np.zeros(2, np.int64)]
    arrays += [
        np.zeros((3, 4), np.int32),
        np.zeros((1, 3), np.int32),
        *(np.zeros(n, np.int64) for n in (6, 6, 2, 2, 1, 2, 3, 1)),
    ]
    assert _native.number_places(*arrays) == 0
    for which in range(3, 14):
        if which not in (4, 5):
            with pytest.raises(ValueError, match="do not fit each other"):
                _native.number_places(*arrays[:which], arrays[which][:-1], *arrays[which + 1 :])
    for fold in (-1, 1):
        with pytest.raises(ValueError, match="do not fit each other"):
            _native.number_places(*arrays[:3], np.array([0, fold]), *arrays[4:])
    with pytest.raises(TypeError, match="column 13: expected items of 8 bytes, got 4"):
        _native.number_places(*arrays[:13], np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="expected 14 columns, got 13"):
        _native.number_places(*arrays[:13])


@examples(100)
@given(schedules(), st.integers(1, 3), st.integers(0, 2))
def test_slices_have_the_places_of_the_schedule_unrolled(made, count, stagger):
    """Numbers may be others: the same reads and writes have one, of the same rank and chunk."""
    schedule = replace(made[0], repeat=Repeat(min(count, most_slices(made[0])), stagger))
    own, whole = number_slices(schedule), number_places(unrolled(schedule))
    assert np.array_equal(own.fold_of, whole.fold_of)
    other = {}
    for name in ("sent", "received", "folded", "operands", "inputs", "outputs"):
        for number, same in zip(getattr(own, name).tolist(), getattr(whole, name).tolist(), strict=True):
            assert other.setdefault(number, same) == same
            assert (own.rank[number], own.chunk[number]) == (whole.rank[same], whole.chunk[same])
    assert len({*other.values()}) == len(other) and max(other, default=0) < own.count
