"""Counters of arrivals: shared by the calls of a stream, taken for ever by those of graphs."""

import threading

import pytest
import torch

from attention.gpu.decode import arrivals as counters
from attention.gpu.decode.arrivals import APART, COUNTERS, RESERVE, arrivals

CPU = torch.device("cpu")


@pytest.fixture
def capturing(monkeypatch):
    """Says whether a graph records; nothing was counted before."""
    for name in ("_of_streams", "_reserves"):
        monkeypatch.setattr(counters, name, {})
    monkeypatch.setattr(counters, "_kept", [])
    now = []
    monkeypatch.setattr(counters, "capturing", lambda device: bool(now))
    return now


def lines(x):
    """The lines of the cache that it lies in."""
    first = x.data_ptr() // (4 * APART)
    return set(range(first, first + -(-x.numel() // APART)))


def test_calls_of_a_stream_share(capturing):
    first = arrivals(CPU, 5)
    assert first.numel() == COUNTERS and first.dtype == torch.int32 and not first.any()
    assert arrivals(CPU, COUNTERS).data_ptr() == first.data_ptr()
    assert arrivals(CPU, COUNTERS + 1).numel() == COUNTERS + 1


def test_what_a_graph_takes_nothing_else_gets(capturing):
    shared = arrivals(CPU, 8)
    capturing.append(True)
    taken = [arrivals(CPU, count) for count in (1, 8, APART + 1, COUNTERS + 1) * 30]
    capturing.clear()
    later = [arrivals(CPU, 8), arrivals(CPU, COUNTERS + 1)]
    capturing.append(True)
    taken += [arrivals(CPU, 8) for _ in range(RESERVE // APART)]  # the last ones are the graph's own
    seen = lines(shared) | lines(later[1])
    for x in taken:
        assert not x.any() and not lines(x) & seen
        seen |= lines(x)
    assert later[0].data_ptr() == shared.data_ptr()


def test_a_reserve_that_is_used_up_is_made_anew_and_the_old_one_stays(capturing):
    arrivals(CPU, 8)
    capturing.append(True)
    taken = arrivals(CPU, RESERVE - APART)
    capturing.clear()
    arrivals(CPU, 8)
    assert len(counters._kept) == 2 and counters._kept[0].data_ptr() == taken.data_ptr()
    capturing.append(True)
    assert arrivals(CPU, RESERVE).data_ptr() == counters._kept[1].data_ptr()


def test_a_graph_before_any_call_fills_its_own(capturing):
    capturing.append(True)
    assert arrivals(CPU, 40).numel() == 40
    assert not counters._kept


def test_no_thread_waits_for_the_stream_of_another(capturing, monkeypatch):
    """A stream may wait for another rank, whose thread records a graph before it gets to what is waited for."""
    card = torch.device("cuda", 0)
    made = torch.zeros(RESERVE, dtype=torch.int32)
    monkeypatch.setattr(counters, "_zeros", lambda device, count: made[:count])
    taken, synchronised = threading.Event(), []
    recorder = threading.Thread(target=lambda: (arrivals(card, 8), taken.set()), daemon=True)

    class Stream:
        cuda_stream = 7

        def synchronize(self):
            recorder.start()
            synchronised.append(taken.wait(10))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(counters, "capturing", lambda device: threading.current_thread() is recorder)
    arrivals(card, 8)
    assert synchronised == [True]


def test_one_reserve_is_kept_of_those_that_two_threads_make(capturing, monkeypatch):
    zeros = counters._zeros

    def as_another_does(device, count):
        if count == RESERVE and not counters._kept:
            monkeypatch.setattr(counters, "_zeros", zeros)
            other = threading.Thread(target=lambda: arrivals(device, 8), daemon=True)
            other.start()
            other.join(10)
        return zeros(device, count)

    monkeypatch.setattr(counters, "_zeros", as_another_does)
    arrivals(CPU, 8)
    assert len(counters._kept) == 1
