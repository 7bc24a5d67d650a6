"""Scratch bytes of all ranks at once are those of the buffers that are assigned rank by rank."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.planning.schedules import any_schedules, schedules
from topocomm.native import _native
from topocomm.planning.algorithms.ring import ring_allreduce
from topocomm.planning.program import scratch, slot_memory
from topocomm.planning.program.scratch import scratch_bytes
from topocomm.planning.program.slot_memory import rank_program
from topocomm.planning.schedule.place_numbers import number_places
from topocomm.planning.schedule.schedule import Repeat, input_pieces
from topocomm.planning.schedule.transforms import unrolled


def by_rank(schedule, row_bytes, align):
    """What every rank's own program takes beside its inputs, at most."""
    rows = [rows for _, rows in schedule.chunks]
    worst = 0
    for rank in range(schedule.ranks):
        program = rank_program(schedule, rank, lambda chunk: rows[chunk] * row_bytes, align)
        own = sum(rows[chunk] * row_bytes for _, chunk in input_pieces(schedule, rank))
        worst = max(worst, program.arena_bytes - own)
    return worst


@examples(150)
@given(any_schedules(), st.sampled_from([1, 64, 1000]))
def test_any_schedule(drawn, align):
    schedule, _ = drawn
    assert scratch_bytes(schedule, lambda rows: 4 * rows, align) == by_rank(schedule, 4, align)
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert scratch_bytes(schedule, lambda rows: 4 * rows, align) == by_rank(schedule, 4, align)


@examples(80)
@given(schedules(), st.sampled_from([1, 64, 1000]))
def test_every_algorithm(drawn, align):
    schedule, _ = drawn
    assert scratch_bytes(schedule, lambda rows: 4 * rows, align) == by_rank(schedule, 4, align)


@pytest.mark.parametrize("rows", [0, 8, 9, 16])
def test_a_pipelined_schedule_needs_what_its_slices_need(rows):
    schedule = replace(ring_allreduce(4, rows), repeat=Repeat(2, 1))
    assert scratch_bytes(schedule, lambda rows: 4 * rows, 4) == by_rank(unrolled(schedule), 4, 4)


@examples(300)
@given(any_schedules() | schedules(), st.data())
def test_first_fit_of_any_sizes(drawn, data):
    """Of pieces of no bytes, too, and messages of one round and pair that are apart."""
    schedule, _ = drawn
    sizes = np.array(data.draw(st.lists(st.integers(0, 9), min_size=(n := len(schedule.chunks)), max_size=n)))
    if len(schedule.transfers) and data.draw(st.booleans()):
        seed = data.draw(st.integers(0, 9))
        order = np.lexsort((np.random.default_rng(seed).random(len(schedule.transfers)), schedule.transfers[:, 0]))
        schedule = replace(schedule, transfers=schedule.transfers[order])
    wanted = [rank_program(schedule, rank, sizes.item, 1).arena_bytes for rank in range(schedule.ranks)]
    assert scratch._arena_bytes(schedule, number_places(schedule), sizes).tolist() == wanted
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert scratch._arena_bytes(schedule, number_places(schedule), sizes).tolist() == wanted


@examples(150)
@given(any_schedules(), st.integers(2, 9), st.integers(0, 4), st.sampled_from(["count", "1", "both"]))
def test_pipelines_are_counted_slice_by_slice(drawn, count, stagger, phases):
    """With many slices under way or one, with phases, and with chunks of no rows beside others."""
    schedule, _ = drawn
    chunks, first = [], 0
    for number, (_, rows) in enumerate(schedule.chunks):
        rows = 0 if not rows and number else count * (1 + rows)
        chunks.append((first, rows))
        first += rows
    stretch = {"1": 1, "count": count, "both": 2}[phases]
    tables = schedule.transfers.copy(), schedule.combines.copy()
    for table in tables:
        table[:, 0] *= stretch
    schedule = replace(
        schedule,
        rounds=max(0, schedule.rounds - 1) * stretch + 1,
        chunks=tuple(chunks),
        transfers=tables[0],
        combines=tables[1],
        repeat=Repeat(count, stagger),
    )
    whole, pieces = unrolled(schedule), number_places(schedule)
    counted = np.array([rows > 0 for _, rows in whole.chunks])
    wanted = scratch._most_alive_plainly(whole, number_places(whole), counted).tolist()
    assert scratch._most_alive(schedule, pieces, counted).tolist() == wanted
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        assert scratch._most_alive(schedule, pieces, counted).tolist() == wanted
    assert scratch_bytes(schedule, lambda rows: 4 * rows, 64) == by_rank(whole, 4, 64)


@examples(80)
@given(any_schedules(), st.sampled_from([1, 64, 1000]), st.sampled_from([4, 516]))
def test_chunks_of_many_transfers_that_differ_by_little_are_counted_at_once(drawn, align, row_bytes):
    schedule, _ = drawn
    rows = [rows for _, rows in schedule.chunks]
    assume(max(rows) - min(rows) <= 1)
    with (
        mock.patch.object(slot_memory, "MANY_TRANSFERS", -1),
        mock.patch.object(scratch, "_arena_bytes", side_effect=AssertionError("rank by rank")),
    ):
        assert scratch_bytes(schedule, lambda rows: row_bytes * rows, align) == by_rank(schedule, row_bytes, align)


def test_chunks_that_differ_by_much_are_not_padded():
    sizes = np.array([64, 64 + slot_memory.PADDED_BYTES]), np.array([0, 100])
    with mock.patch.object(slot_memory, "MANY_TRANSFERS", -1):
        found = [slot_memory.slot_sizes(packed, 64, 4).tolist() for packed in (*sizes, sizes[0] + [0, 64])]
    assert found == [[64 + slot_memory.PADDED_BYTES] * 2, [0, 128], [64, 128 + slot_memory.PADDED_BYTES]]
    assert slot_memory.slot_sizes(np.array([64, 65]), 64, 4).tolist() == [64, 128]
    with mock.patch.object(slot_memory, "SEVERAL_TRANSFERS", -1):
        found = [slot_memory.slot_sizes(np.array([1024 - low, 1024]), 64, 4).tolist() for low in (64, 128)]
    assert found == [[1024, 1024], [896, 1024]]


def most_alive_arrays():
    """A transfer of two ranks, folded there: what `_most_alive` hands to the compiled part."""
    whole = (np.array(column, dtype=np.int64) for column in ([0, 1], [0, 1]))
    tables = (
        np.array([[0, 0, 0, 1, 1, 0, -1]], np.int32),
        np.array([[0, 1, 2, 0]], np.int32),
        np.array([0, 2], np.int32),
    )
    numbers, none = ([0], [2], [3], [1, 2], [0, 1], [3], [0, 1, 1, 1], [0, 0, 0, 0]), np.zeros(0, np.int64)
    places = (np.array(column, dtype=np.int64) for column in numbers)
    return [*whole, *tables, *places, np.ones(1, np.uint8), np.array([1, 0]), none, none, np.zeros(2, np.int64)]


def test_arrays_that_do_not_fit_each_other_are_refused():
    """Each would be read or written past its end."""
    _native.most_alive(*(arrays := most_alive_arrays()))
    assert arrays[-1].tolist() == [1, 2]  # the sum takes the place of what arrived
    for which in range(15):
        wrong = most_alive_arrays()
        if which not in (9, 10, 13):
            wrong[which] = wrong[which][:-1]
            with pytest.raises(ValueError, match="do not fit each other"):
                _native.most_alive(*wrong)
    for which, value in [
        (2, 2),
        (2, -1),
        (3, 9),
        (4, 7),
        *((place, 4) for place in range(5, 11)),
        (11, 2),
        (12, 1),
        (14, 0),
        (14, 2),
        (14, -1),
    ]:
        wrong = most_alive_arrays()
        wrong[which][..., 1 if which in (2, 3) else 0] = value
        with pytest.raises(ValueError, match="do not fit each other"):
            _native.most_alive(*wrong)
    sized = [*arrays[:15], np.zeros(1, np.int64), np.array([64]), np.zeros(2, np.int64)]
    _native.most_alive(*sized)
    assert sized[-1].tolist() == [64, 128]
    for which, value in [(15, [1]), (15, [-1]), (15, [0, 0]), (15, []), (16, [-1]), (16, [1, 1]), (16, [])]:
        with pytest.raises(ValueError, match="do not fit each other"):
            _native.most_alive(*sized[:which], np.array(value, np.int64), *sized[which + 1 :])
    with pytest.raises(TypeError, match="column 13: expected items of 1 bytes, got 8"):
        _native.most_alive(*arrays[:13], np.ones(1, np.int64), *arrays[14:])
