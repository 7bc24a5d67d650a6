"""Flags in shared memory: when they are complete, what they say, and whose are missing."""

import numpy as np
import pytest

from topocomm.execute.host.row_flags import LINE_WORDS, SharedFlags


def made(ranks):
    memory = np.zeros(2 * ranks * LINE_WORDS * 8, np.uint8)
    return [SharedFlags(memory, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_flags_say_whether_any_rank_has_changed(ranks):
    flags, random = made(ranks), np.random.default_rng(1)
    for _ in range(40):
        changed = random.random(ranks) < 0.2
        for rank in random.permutation(ranks):
            flags[rank].tell(bool(changed[rank]))
        assert [own.heard() for own in flags] == [bool(changed.any())] * ranks


def test_flags_of_the_next_call_do_not_hide_those_of_this_one():
    first, second = made(2)
    first.tell(False)
    second.tell(True)
    assert second.heard() is True
    second.tell(False)  # its next call; the first one has not looked yet
    assert first.heard() is True
    first.tell(False)
    assert first.heard() is False and second.heard() is False


def test_missing_flags_are_awaited():
    first, second, third = made(3)
    for own in (first, third):
        own.tell(False)
    assert first.heard() is None and not first.advance(0.01)
    assert [message.peer for message in first.awaited().receives] == [1]
    second.tell(False)
    assert first.advance(0.01) and first.awaited().receives == []
