"""What a rank does in shared memory, run by compiled code in slices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.kernels import shared_memory as word
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, LOOKS, SharedMemory
from topocomm.execute.transports.transport import Batch, Message

CALLS_TO_WARM_UP = 8
"""Calls on one memory before it is tried how to write to it."""
ALL_LOOKS = 2 * LOOKS
"""Looks between two looks at the clock."""


class CompiledRun(Batch):
    """A lane, as `kernels.shared_memory` describes it, that runs in compiled code; as a batch, what it waits for."""

    def __init__(self, shared: SharedMemory, lane: NDArray[np.int64], peers: Iterable[int]) -> None:
        self.sends: tuple[Message, ...] = ()
        self.receives = tuple(Message(peer, ()) for peer in sorted(set(peers)))
        self.shared, self.words = shared, lane
        self._at = word.START
        self._mode = 0
        self._objects: tuple[int, ...] = (0, 0)

    def begin(self, mode: int, objects: tuple[int, ...]) -> int:
        """Begin a new call, as `kernels.shared_memory.run` says: DONE, MISFIT, or where it waits."""
        self._mode, self._objects = mode, objects
        epoch = self.shared.epoch + 1
        at: int = word.run(self.words, word.START, epoch, ALL_LOOKS, mode, objects)
        self._at = at
        if at != word.MISFIT:
            self.shared.epoch = epoch
        return at

    def stand_at(self, at: int, mode: int, objects: tuple[int, ...]) -> CompiledRun:
        """Itself, to go on with a call that others began."""
        self._at, self._mode, self._objects = at, mode, objects
        return self

    def start(self) -> None:
        """As `Batch.start`, for a lane of one stage."""
        self._at = word.START

    def wait(self, timeout_s: float) -> bool:
        """As `Batch.wait`."""
        if self._go_on():
            return True
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self._go_on():
                return True
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`."""
        if self._at < word.HEADER_WORDS:
            return [], []
        count = int(self.words[self._at + 1])
        waits = self.words[self._at + 2 : self._at + 2 + 2 * count].reshape(count, 2).tolist()
        base = self.shared.epoch * word.STRIDE
        behind = {at // COUNTER_BYTES for at, done in waits if self.shared.counters[at // 8] < base + done}
        return [], [message for message in self.receives if message.peer in behind]

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""

    def _go_on(self) -> bool:
        if self._at != word.DONE:
            self._at = word.run(self.words, self._at, self.shared.epoch, ALL_LOOKS, self._mode, self._objects)
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
