"""Calls in the order in which they are issued, whoever makes them."""

import threading

import pytest

from topocomm import TopocommError
from topocomm.torch.issue_order import IssueOrder


@pytest.fixture
def order():
    made = IssueOrder("calls of a test")
    yield made
    made.close()


def test_a_call_alone_is_made_where_it_is_issued(order):
    threads = []
    order.run(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_call_with_a_handle_is_made_on_a_thread(order):
    threads, done = [], threading.Event()
    issued = order.issue(lambda: threads.append(threading.current_thread()))
    issued.then(done.set)
    assert done.wait(10) and threads != [threading.current_thread()]
    assert order.wait(issued) and issued.is_done and issued.error is None


def test_calls_are_made_in_turn(order):
    made, gate = [], threading.Event()
    order.issue(lambda: gate.wait(10))
    for number in range(50):
        order.issue(lambda number=number: made.append(number), is_short=bool(number % 2))
    threading.Timer(0.05, gate.set).start()
    order.run(lambda: made.append("last"))
    assert made == [*range(50), "last"]


def test_who_waits_makes_a_short_call(order):
    threads = []
    for _ in range(20):
        order.wait(order.issue(lambda: threads.append(threading.current_thread()), is_short=True))
    assert threads.count(threading.current_thread()) > 10  # the thread may wake up in some


def test_a_wait_with_a_limit_leaves_the_call_to_the_thread(order):
    gate = threading.Event()
    issued = order.issue(lambda: gate.wait(10))
    assert not order.wait(issued, 0.01)
    gate.set()
    assert order.wait(issued, 10)


def test_errors_come_where_the_program_waits(order):
    def fail():
        raise TopocommError("out of paper")

    with pytest.raises(TopocommError, match="out of paper"):
        order.run(fail)
    issued = order.issue(fail)
    assert order.wait(issued)
    assert str(issued.error) == "out of paper"
    order.issue(lambda: None)  # after one that failed
    with pytest.raises(TopocommError, match="out of paper"):
        order.run(fail)


def test_a_call_that_is_done_issues_another(order):
    made, done = [], threading.Event()
    issued = order.issue(lambda: made.append(1))
    issued.then(lambda: (order.run(lambda: made.append(2)), done.set()))
    assert done.wait(10) and made == [1, 2]


def test_calls_left_at_the_end_fail():
    order, gate = IssueOrder("calls of a test"), threading.Event()
    first = order.issue(lambda: gate.wait(10))
    while first not in order.left or not order.turn.locked():
        pass
    left = order.issue(lambda: None)
    closing = threading.Thread(target=order.close)
    closing.start()
    gate.set()
    closing.join(10)
    assert order.wait(left, 10)
    assert left.error is None or "destroyed before this call" in str(left.error)
    assert first.error is None
