"""Messages and notes over torch process groups, the threads that wait for them, and deaths that all are told."""

import threading
import time

import pytest

from tests.torch_jobs import faults
from topocomm.execute.transports.torch_group import TorchGroupTransport
from topocomm.execute.transports.torch_messages import Helpers, InFlightMessages, depart
from topocomm.execute.transports.transport import FAILURE_TAG, Message

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.alone


def test_a_flight_of_no_messages_has_arrived():
    """Of a rank alone: it would wait for ever."""
    flight = InFlightMessages([])
    assert flight.wait(0) and flight.left() == []


@pytest.mark.parametrize(("how", "lost"), [("shared", 1), pytest.param("messages", 0, marks=pytest.mark.long)])
def test_a_killed_rank_is_named_whatever_a_rank_waits_for(how, lost):
    """Also if it was the host of the key-value store (rank 0)."""
    told, statuses = faults("kill", how, lost)
    assert statuses[lost] == -9
    for rank in {0, 1, 2} - {lost}:
        assert statuses[rank] == 0
        for line, what in zip(told[rank], ("call", "notes", "idle"), strict=False):
            by_word = f"{what} RankFailedError: rank {rank}: stopped, since rank {lost}: it ended"
            by_watch = f"{what} RankFailedError: rank {rank}: rank {lost} has ended"
            assert line.startswith((by_word, by_watch)), line
            assert "Connection closed by peer" in line or line.startswith(by_watch)
        assert float(told[rank][3].split()[1]) < 15  # the deadline is 20 s for each


@pytest.mark.parametrize("size", [1, 2, 3])
def test_closed_groups_leave_no_thread(size):
    """One that torch gives back to Python while the interpreter ends would abort the process."""
    before = set(threading.enumerate())

    def work(rank, store):
        transport = TorchGroupTransport(store, rank, size, 20.0)
        if size > 1:
            transport.post((rank + 1) % size, 7, b"note")
        transport.close(20.0)
        assert transport.take(rank, FAILURE_TAG) is None  # nobody is missed in a group of one

    for _ in range(5):
        store = torch.distributed.HashStore()
        threads = [threading.Thread(target=work, args=(rank, store)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(threading.enumerate()) <= before


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
