"""What ranks that wait tell each other, and who is blamed."""

import pytest

from topocomm.execute.liveness.recorder import Recorder
from topocomm.execute.liveness.wait_report import (
    MOST_PASSED_ON,
    ReportTable,
    WaitEntry,
    WaitReport,
    apart,
    blame,
    difference,
    passed_on,
)


def standing(number, awaits, begun=None):
    return WaitReport(number, f"call {number}", awaits, begun or {})


def test_a_standing_survives_its_note():
    others = {3: WaitEntry(7, "call 7 (scan sum)", [4], 0.25, 1)}
    told = WaitReport(7, "call 7 (scan sum)", [1, 3], {6: 16, 7: 18}, others, {"collective": "scan"})
    assert WaitReport.decode(told.encode()) == told


def test_the_first_call_that_differs_is_found():
    recorder = Recorder()
    for tag in (16, 18, 20):
        recorder.begin(tag)
    assert difference(recorder, standing(3, [], {1: 16, 2: 18, 3: 20})) is None
    assert difference(recorder, standing(4, [], {2: 22, 3: 24, 4: 26})) == 2
    assert difference(recorder, standing(9, [], {8: 1, 9: 1})) is None  # not begun here


def test_claims_of_one_operator_are_told_apart_by_one_field():
    own = {"collective": "scan", "operator": "sum", "field 'a'": "int64 [4]", "field 'b'": "int64 [4]", "root": "0"}
    assert apart(0, own, 1, own) is None
    assert apart(0, own, 1, {**own, "operator": "max", "root": "1"}) is None and apart(0, own, 1, {}) is None
    shift = {"call": "shift 1 of 2 messages"}
    assert apart(0, shift, 1, own) is None and apart(0, own, 1, shift) is None
    assert apart(4, own, 2, {**own, "root": "1"}) == "root (rank 4: 0; rank 2: 1)"
    other = {**own, "field 'a'": "int64 [5]", "field 'b'": "int64 [5]"}
    assert apart(0, own, 1, other) == "field 'a' (rank 0: int64 [4]; rank 1: int64 [5]), likewise 1 more field"


def word(number, awaits, age_s=0.0, hops=0):
    return WaitEntry(number, f"call {number}", awaits, age_s, hops)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, "; behind: rank 1 (silent since call 3)"),
        ({1: word(5, [])}, "; behind: rank 1 (last heard of 0.0 s ago, in call 5)"),
        ({1: word(5, [2]), 2: word(5, [])}, "; behind: rank 2 (last heard of 0.0 s ago, in call 5)"),
        ({1: word(5, [2]), 2: word(5, [1, 0])}, ""),
        ({1: word(5, [2]), 2: word(5, [1], age_s=2.6)}, "; behind: rank 2 (last heard of 2.6 s ago, in call 5)"),
        ({1: word(5, [2]), 2: word(5, [1], age_s=2.6, hops=1)}, ""),
        (
            {1: word(5, [2]), 2: word(5, [1], age_s=3.6, hops=1)},
            "; behind: rank 2 (last heard of 3.6 s ago, in call 5)",
        ),
        ({1: word(4, [3])}, "; behind: rank 1 (last heard of 0.0 s ago, in call 4), rank 3 (silent since call 3)"),
    ],
)
def test_who_does_not_wait_is_behind(words, expected):
    assert blame(0, {1}, 5, words, 1.0, "silent since call 3") == expected


def test_word_of_a_chain_comes_to_its_end_turn_by_turn():
    """Rank r waits for r + 1 and hears r + 1 only; the last one waits for a rank that says nothing."""
    ranks, turn_s = 6, 0.25
    heard = [ReportTable() for _ in range(ranks)]
    for turn in range(ranks):
        now_s = turn * turn_s
        notes = [
            WaitReport(5, "call 5", [rank + 1], {}, passed_on(rank, [rank + 1], heard[rank].words(now_s)))
            for rank in range(ranks)
        ]
        for rank, note in enumerate(notes[1:]):
            heard[rank].take(rank + 1, WaitReport.decode(note.encode()), now_s)
    for rank in range(ranks):
        words = heard[rank].words(now_s + 0.1)
        assert blame(rank, [rank + 1], 5, words, turn_s, "silent") == f"; behind: rank {ranks} (silent)"
    assert words == {}
    assert heard[0].words(now_s)[3] == word(5, [4], age_s=2 * turn_s, hops=2)


def test_the_newest_word_counts():
    heard = ReportTable()
    heard.take(1, WaitReport(5, "call 5", [2], {}), 10.0)
    heard.take(3, WaitReport(6, "call 6", [1], {}, {1: word(6, [2], age_s=0.5)}), 11.0)
    assert heard.words(12.0)[1] == word(6, [2], age_s=1.5, hops=1)
    heard.take(1, WaitReport(6, "call 6", [4], {}), 11.5)
    assert heard.words(12.0)[1] == word(6, [4], age_s=0.5)


def test_a_note_tells_of_the_nearest_ranks():
    words = {rank: word(5, [rank + 1]) for rank in range(1, 200)}
    assert list(passed_on(0, [1], words)) == list(range(1, MOST_PASSED_ON + 1))
    assert list(passed_on(3, [2], words)) == [2]


def test_who_waits_for_a_rank_is_told_whatever_call_either_is_in():
    heard = ReportTable()
    heard.take(1, WaitReport(5, "call 5", [0, 2], {}), 10.0)
    heard.take(2, WaitReport(7, "call 7", [0], {}), 10.5)
    heard.take(3, WaitReport(6, "call 6", [2], {}), 10.5)
    assert heard.waiting_for(0, 10.6, 0.25) == {1, 2}
    assert heard.waiting_for(0, 10.7, 0.25) == {2}
