"""What ranks that wait tell each other, and who is blamed."""

import pytest

from topocomm.execute.recorder import Recorder
from topocomm.execute.standing import Standing, blame, difference


def standing(number, awaits, begun=None):
    return Standing(number, f"call {number}", awaits, begun or {})


def test_a_standing_survives_its_note():
    told = Standing(7, "call 7 (scan sum)", [1, 3], {6: 16, 7: 18})
    assert Standing.decode(told.encode()) == told


def test_the_first_call_that_differs_is_found():
    recorder = Recorder()
    for tag in (16, 18, 20):
        recorder.begin(tag)
    assert difference(recorder, standing(3, [], {1: 16, 2: 18, 3: 20})) is None
    assert difference(recorder, standing(4, [], {2: 22, 3: 24, 4: 26})) == 2
    assert difference(recorder, standing(9, [], {8: 1, 9: 1})) is None  # not begun here


@pytest.mark.parametrize(
    ("heard", "silent", "expected"),
    [
        ({}, (), "; behind: rank 1 (not heard of)"),
        ({1: standing(5, [])}, (), "; behind: rank 1 (last heard of in call 5)"),
        ({1: standing(5, [2]), 2: standing(5, [])}, (), "; behind: rank 2 (last heard of in call 5)"),
        ({1: standing(5, [2]), 2: standing(5, [1, 0])}, (), ""),
        ({1: standing(5, [2]), 2: standing(5, [1])}, {2}, "; behind: rank 2 (last heard of in call 5)"),
        ({1: standing(4, [3])}, (), "; behind: rank 1 (last heard of in call 4), rank 3 (not heard of)"),
    ],
)
def test_who_does_not_wait_is_behind(heard, silent, expected):
    assert blame(0, {1}, 5, heard, silent) == expected
