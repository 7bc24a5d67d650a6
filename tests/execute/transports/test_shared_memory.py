"""Shared memory for many calls: segments that grow, bytes that are handed out once, and memory that goes back."""

import gc
import itertools
import os
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from topocomm.execute.transports import shared_memory
from topocomm.execute.transports.shared_memory import (
    BLOCK_BYTES,
    FIRST_SEGMENT_BYTES,
    MOST_SEGMENT_BYTES,
    SharedArena,
    open_shared,
)

HOSTS = (0, 0)


class Alone:
    """What waits for a rank whose notes are its own."""

    def __init__(self):
        self.transport = SimpleNamespace(rank=0, size=1, hosts=(0,), cores=2)


@pytest.fixture
def opened(monkeypatch):
    """Bytes of the segments that were opened; memory of a process, and none beyond `most`."""
    sizes = []

    def open_region(waiting, size_bytes, hosts):
        if size_bytes > opened_most[0]:
            return None
        sizes.append(size_bytes)
        return np.zeros(size_bytes, np.uint8)

    opened_most = [1 << 40]
    monkeypatch.setattr(shared_memory, "open_region", open_region)
    return SimpleNamespace(sizes=sizes, most=opened_most)


def place(memory):
    return memory.ctypes.data, memory.ctypes.data + memory.size


def test_calls_share_a_segment_and_no_byte(opened):
    arena = SharedArena()
    found = [arena.take(Alone(), size, HOSTS) for size in (100, BLOCK_BYTES, 1000, 1)]
    places = sorted(place(memory) for memory, _ in found)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    assert all(memory.size % BLOCK_BYTES == 0 for memory, _ in found)
    assert opened.sizes == [FIRST_SEGMENT_BYTES]
    assert {segment for _, segment in found} == {(1, FIRST_SEGMENT_BYTES)}


def test_segments_grow_to_a_limit_and_beyond_it_for_one_call(opened):
    arena = SharedArena()
    for _ in range(80):
        arena.take(Alone(), FIRST_SEGMENT_BYTES, HOSTS)
    assert opened.sizes[:5] == [FIRST_SEGMENT_BYTES * growth for growth in (1, 1, 2, 4, 8)]
    arena.take(Alone(), 3 * MOST_SEGMENT_BYTES, HOSTS)
    assert opened.sizes[-1] == 3 * MOST_SEGMENT_BYTES
    assert max(opened.sizes[:-1]) <= MOST_SEGMENT_BYTES


def test_a_host_with_little_memory_gives_what_a_call_needs_or_none(opened):
    opened.most[0] = 10 * BLOCK_BYTES
    arena = SharedArena()
    assert arena.take(Alone(), 10 * BLOCK_BYTES, HOSTS)[0].size == 10 * BLOCK_BYTES
    assert arena.take(Alone(), 11 * BLOCK_BYTES, HOSTS) is None
    assert arena.take(Alone(), BLOCK_BYTES, HOSTS)[0].size == BLOCK_BYTES


def test_a_segment_goes_with_its_last_call():
    waiting = Alone()
    arena = SharedArena()
    before = len(os.listdir("/proc/self/fd"))
    calls = [open_shared(arena, waiting, 64, (0,)) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert not any(one.counters.any() for one in calls)
    assert all(memory.ctypes.data % 64 == 0 for one in calls for memory in one.memories)
    gone = weakref.ref(calls[0].counters)
    arena.close()
    calls[:-1] = []
    gc.collect()
    assert gone() is None
    assert len(os.listdir("/proc/self/fd")) == before + 1
    calls.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
