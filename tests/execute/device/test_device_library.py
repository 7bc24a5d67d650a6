"""What is asked of torch.cuda, on a double of it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from topocomm.execute.device.device_library import Device


@pytest.fixture
def captures(monkeypatch):
    """How graphs were captured: (stream, options)."""
    made, streams = [], []

    @contextmanager
    def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        made.append((stream, capture_error_mode))
        yield

    def stream(index):
        streams.append(SimpleNamespace(index=index))
        return streams[-1]

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: "replayed"))
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    return made


def test_a_capture_is_of_its_own_thread(captures):
    ran = []
    device = Device(3)
    replay = device.graph(lambda: ran.append("recorded"))
    assert ran == ["recorded"] and replay() == "replayed"
    device.graph(lambda: None)
    assert [mode for _, mode in captures] == ["thread_local"] * 2
    (first, _), (second, _) = captures
    assert first.index == second.index == 3 and first is not second
