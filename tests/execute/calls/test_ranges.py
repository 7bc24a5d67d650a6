"""Rows, virtual shards and colors of all ranks: what is exchanged and what is refused."""

import numpy as np
import pytest

from topocomm import MismatchError, OperatorError, run_local
from topocomm.execute.calls.ranges import (
    NO_COLOR,
    NO_PAIR,
    NO_ROWS,
    NO_SHARDS,
    gather_pairs,
    gather_rows,
    gather_shards,
    pairs_of,
    rows_of,
    shard_edges,
    shards_record,
    split_record,
)


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (np.zeros((3, 2)), 3),
        ({"a": np.zeros(0), "b": np.zeros(0)}, 0),
        (np.float64(1.0), NO_ROWS),
        (np.zeros(()), NO_ROWS),
        ({}, NO_ROWS),
        ({"a": None}, NO_ROWS),
        ("text", NO_ROWS),
    ],
)
def test_rows(value, rows):
    assert rows_of(value) == rows


def test_rows_from_each_rank_to_each():
    def body(comm):
        rows = [[1, 2], [0, 3]][comm.rank]
        wrong = rows if comm.rank else [2, 2]
        return [gather_pairs(comm._calls, comm.session, pairs_of(np.zeros(3), given, 2)) for given in (rows, wrong)]

    assert run_local(body, ranks=2) == [[(1, 2, 0, 3), (NO_ROWS, NO_ROWS, 0, 3)]] * 2


def test_rows_that_do_not_fit_are_refused_on_every_rank():
    wrong = [[2, 2], [3, 0, 0], [4, -1], [1.5, 1.5], 3]

    def body(comm):
        for given in wrong:
            with pytest.raises(OperatorError, match=r"rows of rank 0: expected 2 counts, whole and none below 0, that"):
                comm.alltoall(np.zeros(3), rows=[1, 2] if comm.rank else given)
        with pytest.raises(OperatorError, match=r"rows of rank 1: .*of sendrecv, a dest of 0 to 1"):
            comm.sendrecv(np.zeros(3), 0 if comm.rank == 0 else 2)
        with pytest.raises(MismatchError, match=r": value \(rank"):
            comm.alltoall(np.zeros(3 + comm.rank))

    run_local(body, ranks=2)


def test_edges_of_ranges_that_follow_each_other():
    assert shard_edges([(0, 2), (2, 2), (2, 7)]) == (0, 2, 2, 7)
    assert shard_edges([NO_SHARDS] * 3) is None


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([(0, 2), NO_SHARDS, (2, 3)], "given by rank 0, rank 2, and not by rank 1; all do or none"),
        ([(1, 2), (2, 3)], r"are \[\[1, 2\], \[2, 3\]\]: those of rank 0 must begin at 0;"),
        ([(0, 2), (3, 4)], "those of rank 1 must begin at 2;"),
        ([(0, 2), (2, 1)], "those of rank 1 must begin at 2;"),
        ([(0, 2), NO_PAIR, NO_PAIR], r"shards of rank 1, rank 2: expected \(first, end\), whole numbers of 0 or more"),
    ],
)
def test_ranges_that_do_not_fit_are_named(told, message):
    with pytest.raises(MismatchError, match=message):
        shard_edges(told)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, NO_SHARDS),
        ((0, 3), (0, 3)),
        (np.array([2, 2]), (2, 2)),
        (5, NO_PAIR),
        ((0, 1, 2), NO_PAIR),
        ((0, 2.5), NO_PAIR),
        ("ab", NO_PAIR),
        ((-1, 2), NO_PAIR),
        ((0, 1 << 63), NO_PAIR),
    ],
)
def test_shards_as_they_are_told(given, told):
    assert shards_record(given) == told


@pytest.mark.parametrize(
    ("color", "key", "told"),
    [
        (None, 0, (0, 0, 0)),
        (-3, 7, (1, -3, 7)),
        (np.int32(2), True, (1, 2, 1)),
        (1.5, 0, NO_COLOR),
        ("a", 0, NO_COLOR),
        (0, None, NO_COLOR),
        (1 << 63, 0, NO_COLOR),
    ],
)
def test_colors_as_they_are_told(color, key, told):
    assert split_record(color, key).tolist() == list(told)


def test_rows_are_told_anew_in_every_call():
    def body(comm):
        values = [np.zeros((comm.rank + step, 2)) for step in range(3)]
        return [gather_rows(comm._calls, comm.session, x) for x in (*values, "no array")]

    for told in run_local(body, ranks=3):
        assert told == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (-1, -1, -1)]


def test_shards_are_joined():
    def body(comm):
        given = gather_shards(comm._calls, comm.session, (2 * comm.rank, 2 * comm.rank + 2), "allreduce", "canonical")
        return given, gather_shards(comm._calls, comm.session, None, "allreduce", "canonical")

    assert run_local(body, ranks=3) == [((0, 2, 4, 6), None)] * 3


def test_shards_that_do_not_follow_each_other_are_an_error_on_every_rank():
    def body(comm):
        with pytest.raises(MismatchError, match=f"rank {comm.rank}: virtual shards of the ranks are"):
            gather_shards(comm._calls, comm.session, (0, 2), "allreduce", "canonical")
        return True

    assert run_local(body, ranks=2) == [True, True]
