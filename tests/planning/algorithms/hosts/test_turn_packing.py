"""No two messages have one port or link in one turn, and the period is the least where a packing can be found."""

from unittest import mock

import numpy as np
import pytest

from topocomm.native import _native
from topocomm.planning.algorithms.hosts import turn_packing
from topocomm.planning.algorithms.hosts.turn_packing import least_period, packed_turns


def check(rows, durations):
    """Return the length of the period, in which no row is held twice."""
    starts, period = packed_turns(rows, durations)
    held = set()
    for own, start, turns in zip(rows, starts.tolist(), durations, strict=True):
        for row in own:
            mine = {(row, (start + turn) % period) for turn in range(turns)}
            assert len(mine) == turns and not held & mine
            held |= mine
    return period


def test_all_pairs_take_as_many_turns_as_a_rank_has_partners():
    for ranks in (2, 3, 4, 7):
        rows = [(src, ranks + dst) for src in range(ranks) for dst in range(ranks) if src != dst]
        assert check(rows, [2] * len(rows)) == 2 * (ranks - 1)


def test_long_messages_over_one_link_leave_the_other_ports_to_short_ones():
    """Each of four sends 5 turns by the NIC (row 8) and 2 turns twice to each other: 20 turns, not 5 * 4 + 12."""
    pairs = [(src, 4 + dst) for src in range(4) for dst in range(4) if src != dst]
    rows = [(member, 4 + member, 8) for member in range(4)] + 2 * pairs
    assert check(rows, [5] * 4 + [2] * 24) == 20


def test_messages_in_the_way_are_displaced():
    """Two sockets of two: who sends over the bus must not receive over it then, as the first turns would have it."""
    across = [(0, 6, 8), (1, 7, 8), (2, 4, 9), (3, 5, 9)]
    inside = [(0, 5), (1, 4), (2, 7), (3, 6)]
    assert check(across + 2 * inside, [2] * 4 + [1] * 8) == 4


@pytest.mark.parametrize("seed", range(6))
def test_any_messages_fit(seed):
    rng = np.random.default_rng(seed)
    rows = [tuple(set(rng.integers(0, 9, 3).tolist())) for _ in range(60)]
    durations = rng.integers(1, 6, 60).tolist()
    least = max(sum(turns for own, turns in zip(rows, durations, strict=True) if row in own) for row in range(9))
    assert least_period(rows, durations) == least
    assert least <= check(rows, durations) <= 1.5 * least


def test_nothing_to_send():
    assert packed_turns([], [])[1] == 1


def test_of_equal_messages_turns_are_packed_once_and_stay_as_they_are(monkeypatch):
    rows, durations = [(0, 4), (1, 5), (0, 5)], [3, 2, 7]
    starts, period = packed_turns(rows, durations)
    monkeypatch.delattr(turn_packing, "_packed")
    again, same = packed_turns(tuple(rows), tuple(durations))
    assert again is starts and same == period
    with pytest.raises(ValueError, match="read-only"):
        starts[0] = 1


@pytest.mark.parametrize("seed", range(30))
def test_both_ways_give_the_same_turns(seed):
    rng = np.random.default_rng(seed)
    count, most = int(rng.integers(1, 90)), int(rng.integers(2, 30))
    rows = [tuple(set(rng.integers(0, most, rng.integers(1, 5)).tolist())) for _ in range(count)]
    durations = rng.integers(1, 1 + rng.integers(1, 9), count).tolist()
    turns, period = turn_packing._packed(rows, durations)
    with mock.patch.dict("sys.modules", {"topocomm.native._native": None}):
        plain, same = turn_packing._packed(rows, durations)
    assert turns.dtype == plain.dtype and turns.tolist() == plain.tolist() and period == same


def test_wrong_arrays_are_refused():
    """Two messages of one row, two turns each."""
    given = [np.array(own, np.int64) for own in ([0, 1, 2], [0, 0], [2, 2], [1, 0], [-1, -1])]

    def pack(place=0, entry=0, value=None, *, period=4, shorter=0):
        own = [array.copy() for array in given]
        if value is not None:
            own[place][entry] = value
        own[place] = own[place][: len(own[place]) - shorter]
        return _native.pack_turns(*own, period, 99)

    assert pack() and not pack(period=3)
    wrong = [(0, 0, 1), (0, 1, 3), (0, 2, 1), (1, 0, -1), (1, 0, 2), (2, 1, 0), (3, 0, 2), (3, 0, -1), (4, 0, 0)]
    for place, entry, value in wrong:
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            pack(place, entry, value)
    for place in range(5):
        with pytest.raises(ValueError, match="its arrays do not fit each other"):
            pack(place, shorter=1)
    with pytest.raises(ValueError, match="no period has 0 turns"):
        pack(period=0)
    with pytest.raises(TypeError, match="5 arrays, the period and the steps"):
        _native.pack_turns(*given)
    with pytest.raises(TypeError, match="int"):
        _native.pack_turns(*given, "long", 9)
