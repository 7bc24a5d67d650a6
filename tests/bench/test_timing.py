"""Blocks are taken in turns, as often as asked, each after its refill."""

import gc
from time import sleep

import pytest

from topocomm import run_local
from topocomm.bench.timing import FEWEST_BLOCKS, MOST_BLOCKS, MOST_CALLS, Pace, Timed, in_turns, measure


def test_blocks_are_taken_in_turns():
    log = []
    ways = [Timed(lambda: log.append("a"), lambda: log.append("-")), Timed(lambda: log.append("b"))]

    def body(comm):
        return measure(comm, ways, Pace(iterations=3, warmup=1))

    a, b = run_local(body, ranks=1)[0]
    assert a.us.shape == b.us.shape == (3,)
    assert (a.us > 0).all()
    assert "".join(log).endswith(("-" + "a" * a.calls + "b" * b.calls) * 3)
    assert a.percentile_us(25) <= a.percentile_us(50) <= a.percentile_us(99)


def test_a_given_number_of_calls_is_kept_without_any_more():
    log = []
    pace = Pace(iterations=3, warmup=0, calls=5)
    (times,) = run_local(lambda comm: measure(comm, [Timed(lambda: log.append(1))], pace), ranks=1)[0]
    assert (times.calls, len(times.us), len(log)) == (5, 3, 15)


def test_a_longer_block_has_more_calls():
    def calls(block_us):
        pace = Pace(iterations=1, block_us=block_us)
        return run_local(lambda comm: measure(comm, [Timed(lambda: sleep(1e-3))], pace), ranks=1)[0][0].calls

    assert calls(1e3) == 1
    assert calls(1e9) == MOST_CALLS


def test_rounds_by_any_clock_end_when_told():
    order = []
    us = in_turns(3, 9, lambda index: order.append(index) or 10.0 * index, lambda turn: turn < 4)
    assert us.tolist() == [[0.0] * 4, [10.0] * 4, [20.0] * 4]
    rounds = [tuple(order[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds) and len(set(rounds)) > 1
    assert in_turns(0, 2, lambda index: 1.0).shape == (0, 2)


def test_the_number_of_blocks_is_bounded():
    (times,) = run_local(lambda comm: measure(comm, [Timed(lambda: None)], Pace()), ranks=1)[0]
    assert FEWEST_BLOCKS <= times.us.size <= MOST_BLOCKS


def test_the_collector_is_switched_on_again_after_an_error():
    def fail():
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        run_local(lambda comm: measure(comm, [Timed(fail)], Pace(1)), ranks=1)
    assert gc.isenabled()
