"""Where tensors are, and the order of streams that use one buffer."""

import torch

from attention.gpu import placement as where


def test_streams_take_turns_with_a_send_buffer(monkeypatch):
    waited = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            waited.append((self.name, other.name))

    one, two = Stream("one"), Stream("two")
    now = [one]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[0])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    turns, there = where.StreamOrder(), torch.device("cuda", 0)
    turns.acquire(there)
    turns.acquire(there)
    assert waited == []
    now[0] = two
    turns.acquire(there)
    turns.acquire(there)
    now[0] = one
    turns.acquire(there)
    assert waited == [("two", "one"), ("one", "two")]
