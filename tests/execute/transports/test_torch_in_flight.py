"""Messages of torch.distributed under way, and the threads that wait for them."""

import threading
import time
from pathlib import Path

import pytest

from tests.torch_jobs import by_hand
from topocomm.execute.transports.torch_in_flight import Helpers, InFlightMessages, depart
from topocomm.execute.transports.transport import Message

torch = pytest.importorskip("torch")
PROGRAMS = Path(__file__).parents[1] / "torch_programs"
pytestmark = pytest.mark.alone


def faults(*args):
    """What each rank was told, by (rank, what it did), and the exit statuses."""
    jobs = by_hand(3, [PROGRAMS / "faults.py", *args])
    told = {}
    for rank, (stdout, stderr, _) in enumerate(jobs):
        assert "terminate called" not in stderr  # a thread that outlived the interpreter
        for line in stdout.splitlines():
            told.setdefault(rank, []).append(line.removeprefix(f"[{rank}] "))
    return told, [status for _, _, status in jobs]


@pytest.mark.long
def test_only_late_messages_are_pending():
    """One helper waits for messages in turn: those behind a late one may have come all the same."""
    told, statuses = faults("late", "messages")
    assert statuses == [0] * 3
    assert told[0] == ["pending [1] after the first slice, then all of [7, 8]"]


class Work:
    """What torch.distributed gives for a message: `wait` returns, raises, or waits for a word."""

    def __init__(self, error=None, word=None):
        self.error, self.word = error, word

    def wait(self, limit):
        if self.word is not None:
            self.word.wait(30)
        if self.error is not None:
            raise self.error


def departures(*works):
    return [depart(lambda tensors, peer, tag, w=w: w, None, Message(peer, ()), 7) for peer, w in enumerate(works)]


def test_helpers_wait_for_every_message_and_end():
    helpers, word = Helpers(), threading.Event()
    late = InFlightMessages(departures(Work(), Work(word=word)))
    helpers.send_with(late)
    assert not late.wait(0.05) and late.left() == [1]
    other = InFlightMessages(departures(Work()))
    helpers.send_with(other)  # a second thread, since the first is busy
    assert other.wait(10) and other.failed is None
    word.set()
    assert late.wait(10) and late.left() == []
    assert helpers.close(time.monotonic() + 10)


def test_the_first_message_that_breaks_is_told_and_ends_the_wait():
    word = threading.Event()
    text = "[enforce fail at pair.cc:1] Connection closed by peer [127.0.0.1]:9. Retry it"
    flight = InFlightMessages(departures(Work(error=RuntimeError(text)), Work(word=word)))
    helpers = Helpers()
    helpers.send_with(flight)
    assert flight.wait(10)
    assert flight.failed == (0, "Connection closed by peer [127.0.0.1]:9")
    word.set()
    assert helpers.close(time.monotonic() + 10)


def test_a_message_that_is_refused_fails_when_it_is_awaited():
    def refuse(tensors, peer, tag):
        raise RuntimeError("peer is gone")

    flight = InFlightMessages([depart(refuse, None, Message(3, ()), 7)])
    assert flight.await_next() and flight.failed == (3, "peer is gone")
    assert not flight.await_next()
