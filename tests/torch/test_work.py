"""torch's handles of calls, of calls that are done, and of messages."""

import threading
from datetime import timedelta

import pytest

from topocomm import DeadlineError, RankFailedError, TopocommError

torch = pytest.importorskip("torch")

from topocomm.torch.issue_order import IssueOrder  # noqa: E402 - where there is torch
from topocomm.torch.work import DONE, CallWork, MessageWork  # noqa: E402


@pytest.fixture
def order():
    made = IssueOrder("calls of a test")
    yield made
    made.close()


def work_of(order, call, outputs=()):
    return CallWork(order, order.issue(call), outputs, "rank 0: all_reduce")


def test_a_call_and_its_future(order):
    x = torch.ones(1)
    work = work_of(order, lambda: x.add_(1), [x])
    future = work.get_future()
    assert future is work.get_future()
    assert future.wait()[0] is x and work.wait() and x.item() == 2
    assert work.is_completed() and work.is_success() and work.exception() is None and work.result() == [x]


def test_a_call_that_fails(order):
    def fail():
        raise TopocommError("out of paper")

    work = work_of(order, fail)
    with pytest.raises(TopocommError, match="out of paper"):
        work.get_future().wait()
    with pytest.raises(TopocommError, match="out of paper"):
        work.wait()
    assert work.is_completed() and not work.is_success() and str(work.exception()) == "out of paper"


def test_a_call_that_is_late_goes_on(order):
    gate = threading.Event()
    work = work_of(order, lambda: gate.wait(10))
    with pytest.raises(DeadlineError, match=r"rank 0: all_reduce is not through after 0.01 s; it is still under way"):
        work.wait(timedelta(milliseconds=10))
    assert not work.is_completed()
    gate.set()
    work.synchronize()
    assert work.is_success()


def test_a_call_that_was_done():
    assert DONE.wait() and DONE.is_completed() and DONE.is_success() and DONE.get_future().done()
    assert DONE.exception() is None and DONE.result() == []


class Posted:
    """A message of gloo that fails with given words, or comes."""

    def __init__(self, words=""):
        self.words = words

    def wait(self, *timeout):
        if self.words:
            raise RuntimeError(f"[pair.cc:1] {self.words}. More advice.")

    def _source_rank(self):
        return 2


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ("Timed out waiting 5ms for recv operation to complete", DeadlineError, "from rank 1: still waiting after 7 s"),
        ("Connection closed by peer [::1]:7", RankFailedError, "not take part any more .Connection closed by peer"),
    ],
)
def test_messages_that_do_not_come(words, kind, text):
    work = MessageWork(Posted(words), "rank 0: receive from rank 1", 7.0, torch.ones(1), None)
    with pytest.raises(kind, match=text):
        work.wait()
    assert isinstance(work.exception(), kind) and not work.is_success()


def test_a_message_into_memory_in_several_pieces():
    target = torch.zeros(4)[::2]
    work = MessageWork(Posted(), "rank 0: receive from any rank", 7.0, torch.ones(2), target)
    assert not work.is_completed()
    assert work.wait() and work.wait() and target.tolist() == [1, 1]
    assert work.is_success() and work.source_rank() == 2 and work.result() == [target]
