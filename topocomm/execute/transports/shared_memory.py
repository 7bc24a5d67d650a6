"""Ranks of one host on one memory: values are read where they were written, behind progress counters.

The memory is a file of /dev/shm that all ranks map and that loses its name as soon as they have: nothing is left
behind, however a job ends. An allreduce uses two lanes in turn. When a rank begins its call n + 2 it has finished
call n + 1, which took every rank's contribution to it, so every rank has finished call n and nobody reads its lane
any more: no acknowledgement is needed.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.agreement import gather_notes
from topocomm.execute.kernels import layout as word
from topocomm.execute.transports.transport import GATHER_TAG, Batch, Message
from topocomm.execute.waiting import Waiting
from topocomm.operators.operator import Buffer

DIRECTORY = "/dev/shm"
NOTE_BYTES = 256
COUNTER_BYTES = 64
"""A counter has a cache line of its own."""
LOOKS = 2000
"""Looks at a counter, about a nanosecond each, before the core is given away after every look: another process may
need it to come to the point that is awaited. Where ranks share cores it is given away at once."""
CALLS_TO_WARM_UP = 8
"""Calls on one memory before it is tried how to write to it."""
ALL_LOOKS = 2 * LOOKS
"""Looks between two looks at the clock."""


def open_region(waiting: Waiting, size_bytes: int) -> Buffer | None:
    """Memory that all ranks map, zeroed; None, on every rank, where the host cannot give it. Collective."""
    transport = waiting.transport
    note, file = _create(size_bytes) if transport.rank == 0 else ({}, None)
    record = json.dumps(note).encode().ljust(NOTE_BYTES)
    said = json.loads(gather_notes(waiting, record, tag=GATHER_TAG, what="the set-up of shared memory")[0])
    region = _map(said["path"], size_bytes) if said["path"] else None
    mapped = gather_notes(waiting, bytes([region is not None]), tag=GATHER_TAG, what="the set-up of shared memory")
    if file is not None:
        os.unlink(file)
    return region if all(mapped_[0] for mapped_ in mapped) else None


@cache
def kernels_available() -> bool:
    """Whether compiled code can run here: it needs numba, arrays that lie in memory as it knows them, and /dev/shm."""
    try:
        from topocomm.execute.kernels.shared_memory import matches
    except ImportError:
        return False
    probe = np.empty((3, 5), np.float32)
    head = [probe.ctypes.data, id(np.ndarray), id(probe.dtype), 2, 3]
    seen = [matches(np.array([*head, size], np.int64), id(probe)) for size in (5, 6)]
    return seen == [True, False] and os.path.isdir(DIRECTORY)


class SharedMemory:
    """Two memories that all ranks of a host map, used in turn, and what coordinates them.

    Attributes:
        rank: This rank.
        counters: int64, one progress counter per rank on a cache line each.
        memories: uint8 arrays.
        epoch: Number of calls made here, the running one included.
        looks: Looks at a counter before the core is given away after every look.
    """

    def __init__(self, region: Buffer, rank: int, ranks: int) -> None:
        head = ranks * COUNTER_BYTES
        half = (region.size - head) // 2
        self.rank = rank
        self.counters = region[:head].view(np.int64)
        self.memories = (region[head : head + half], region[head + half : head + 2 * half])
        self.epoch = 0
        self.looks = 0 if len(os.sched_getaffinity(0)) < ranks else LOOKS


def open_shared(waiting: Waiting, size_bytes: int) -> SharedMemory | None:
    """Two memories of this many bytes, a multiple of a cache line; None where the host gives none. Collective."""
    rank, ranks = waiting.transport.rank, waiting.transport.size
    region = open_region(waiting, ranks * COUNTER_BYTES + 2 * size_bytes)
    return None if region is None else SharedMemory(region, rank, ranks)


class CompiledRun(Batch):
    """A lane, as `kernels.layout` describes it, that runs in compiled code; as a batch, what it waits for."""

    def __init__(self, shared: SharedMemory, lane: NDArray[np.int64], peers: Iterable[int]) -> None:
        from topocomm.execute.kernels.shared_memory import run

        self.sends: tuple[Message, ...] = ()
        self.receives = tuple(Message(peer, ()) for peer in sorted(set(peers)))
        self._run, self._shared, self._lane = run, shared, lane
        self._start = self._at = int(lane[word.PROGRAM])
        self._mode = 0
        self._objects: tuple[int, ...] = (0, 0)

    def begin(self, mode: int, objects: tuple[int, ...]) -> int:
        """Begin a new call, as `kernels.shared_memory.run` says: DONE, MISFIT, or where it waits."""
        self._mode, self._objects = mode, objects
        epoch = self._shared.epoch + 1
        at: int = self._run(self._lane, self._start, epoch, ALL_LOOKS, mode, objects)
        self._at = at
        if at != word.MISFIT:
            self._shared.epoch = epoch
        return at

    def start(self) -> None:
        self._at = self._start

    def wait(self, timeout_s: float) -> bool:
        if self._go_on():
            return True
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self._go_on():
                return True
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        if self._at == word.DONE:
            return [], []
        count = int(self._lane[self._at + 1])
        waits = self._lane[self._at + 2 : self._at + 2 + 2 * count].reshape(count, 2).tolist()
        base = self._shared.epoch * word.STRIDE
        behind = {at // COUNTER_BYTES for at, done in waits if self._shared.counters[at // 8] < base + done}
        return [], [message for message in self.receives if message.peer in behind]

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""

    def _go_on(self) -> bool:
        if self._at != word.DONE:
            self._at = self._run(self._lane, self._at, self._shared.epoch, ALL_LOOKS, self._mode, self._objects)
        return self._at == word.DONE


def stage_words(index: int, waits: Sequence[tuple[int, int]]) -> list[int]:
    """A stage of a lane up to its folds: publish that `index` stages are done, then wait for (rank, its stages)."""
    found = [index + 1, len(waits)]
    for peer, done in waits:
        found += [peer * COUNTER_BYTES, done]
    return found


def lane_head(shared: SharedMemory, function: int, edges: Sequence[int]) -> list[int]:
    """The header of a lane."""
    return [
        shared.counters.ctypes.data,
        function,
        shared.rank * COUNTER_BYTES,
        shared.looks,
        id(np.ndarray),
        1,
        CALLS_TO_WARM_UP,
        *edges,
    ]


def shared_stage(shared: SharedMemory, index: int, waits: Sequence[tuple[int, int]]) -> CompiledRun:
    """One stage apart from its folds, which run outside."""
    program = [*stage_words(index, waits), 0]
    start = word.HEADER_WORDS
    lane = [*lane_head(shared, 0, [start] * 6 + [start + len(program)]), *program]
    return CompiledRun(shared, np.array(lane, np.int64), (peer for peer, _ in waits))


def _create(size_bytes: int) -> tuple[dict[str, str], str | None]:
    """A new file of this size, its blocks reserved: a full /dev/shm is found here, not by a SIGBUS later."""
    path = ""
    try:
        handle, path = tempfile.mkstemp(prefix="topocomm-", dir=DIRECTORY)
        try:
            os.posix_fallocate(handle, 0, size_bytes)
        finally:
            os.close(handle)
    except OSError:
        if path:
            os.unlink(path)
        return {"path": ""}, None
    return {"path": path}, path


def _map(path: str, size_bytes: int) -> Buffer | None:
    try:
        with open(path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
    except OSError:
        return None
