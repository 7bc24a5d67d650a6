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
from collections.abc import Sequence
from typing import Any

import numpy as np

from topocomm.execute.agreement import gather_notes
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


def kernels_available() -> bool:
    """Whether the compiled wait can be used here: it needs numba and a directory for shared memory."""
    try:
        import topocomm.execute.kernels.spin  # noqa: F401
    except ImportError:
        return False
    return os.path.isdir(DIRECTORY)


class SharedStage(Batch):
    """A stage of one rank: publish what is done so far, then wait for the ranks whose values it reads."""

    def __init__(self, counters: Any, state: Any, rank: int, waits: Sequence[tuple[int, int]], index: int) -> None:
        from topocomm.execute.kernels.spin import STRIDE, publish_and_wait

        words = COUNTER_BYTES // 8
        crowded = len(os.sched_getaffinity(0)) < counters.size // words
        plan = [rank * words, index + 1, 0 if crowded else LOOKS]
        for peer, done in waits:
            plan += [peer * words, done]
        self.sends: tuple[Message, ...] = ()
        self.receives = tuple(Message(peer, ()) for peer, _ in waits)
        self._run = publish_and_wait
        self._plan = np.array(plan, np.int64)
        self._counters, self._state, self._stride = counters, state, STRIDE

    def start(self) -> None:
        """Nothing: `wait` publishes, so that both take one call."""

    def wait(self, timeout_s: float) -> bool:
        if self._run(self._counters, self._state, self._plan, ALL_LOOKS):
            return True
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self._run(self._counters, self._state, self._plan, ALL_LOOKS):
                return True
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        base = int(self._state[0]) * self._stride
        behind = [
            message
            for message, at, done in zip(self.receives, self._plan[3::2], self._plan[4::2], strict=True)
            if self._counters[at] < base + done
        ]
        return [], behind

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""


def counters_of(region: Buffer, ranks: int) -> Any:
    """The progress counters at the head of a region."""
    return region[: ranks * COUNTER_BYTES].view(np.int64)


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
