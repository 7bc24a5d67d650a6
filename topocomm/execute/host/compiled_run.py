"""What a rank does in shared memory, run by compiled code in slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.host.kernels import shared_memory_call as word
from topocomm.execute.transports.shared_memory import COUNTER_BYTES, LOOKS, SharedMemory
from topocomm.execute.transports.transport import Batch, Message

LANES = 2
"""Memories of a prepared call, used in turn."""
Sizes = Mapping[tuple[int, int], int]
"""Bytes awaited in a stage, by number, from a rank, by position."""
CALLS_TO_WARM_UP = 8
"""Calls on one memory before it is tried how to write to it: past the caches at first."""
ALL_LOOKS = 2 * LOOKS
"""Looks between two looks at the clock."""


class CompiledRun(Batch):
    """A lane, as `kernels.shared_memory` describes it, that runs in compiled code; as a batch, what it waits for."""

    def __init__(
        self, shared: SharedMemory, lane: NDArray[np.int64], sizes: Sizes, fold: Callable[[int], None] | None = None
    ) -> None:
        self.sends: tuple[Message, ...] = ()
        self.shared, self.words, self._sizes = shared, lane, sizes
        self.receives = tuple(self._message(*key) for key in sorted(sizes))
        self._fold = fold
        self._at = word.START
        self._mode = 0
        self._objects: tuple[int, ...] = (0, 0)

    def begin(self, mode: int, objects: tuple[int, ...]) -> int:
        """Begin a new call, as `kernels.shared_memory.run` says: DONE, MISFIT, or where it waits."""
        self._mode, self._objects = mode, objects
        epoch = self.shared.epoch + 1
        self._at = word.run(self.words, word.START, epoch, ALL_LOOKS, mode, objects)
        if self._at != word.MISFIT:
            self.shared.epoch = epoch
        if self._at >= word.TO_FOLD:
            self._go_on()
        return self._at

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
        if timeout_s <= 0:
            return False
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if self._go_on():
                return True
        return False

    def pending(self) -> tuple[list[Message], list[Message]]:
        """As `Batch.pending`."""
        waits = self._waits()
        base = self.shared.epoch * word.STRIDE
        behind = {at // COUNTER_BYTES for at, done in waits if self.shared.counters[at // 8] < base + done}
        return [], [self._message(self.stage, position) for position in sorted(behind)]

    @property
    def stage(self) -> int:
        """Number of the stage in which it waits; -1 before the first."""
        return int(self.words[self._at]) - 1 if self.words[word.PROGRAM] <= self._at < word.TO_FOLD else -1

    def free(self) -> None:
        """Nothing: the mapping goes with its last array."""

    def _message(self, stage: int, position: int) -> Message:
        size_bytes = self._sizes.get((stage, position), 0)
        return Message(self.shared.ranks[position], ((0, size_bytes),) if size_bytes else ())

    def _waits(self) -> list[list[int]]:
        """[byte offset of a counter, progress awaited] of what it waits for now."""
        at = self._at
        if at < word.HEADER_WORDS or at >= word.TO_FOLD:
            return []
        if at < self.words[word.PROGRAM]:
            first, end = at, int(self.words[word.PROGRAM])
        else:
            first, end = at + 2, at + 2 + 2 * int(self.words[at + 1])
        found: list[list[int]] = self.words[first:end].reshape(-1, 2).tolist()
        return found

    def _go_on(self) -> bool:
        """Go on until it waits or is through; whether it is through."""
        while self._at != word.DONE:
            if self._at >= word.TO_FOLD:
                assert self._fold is not None, "a lane without a compiled fold has another"
                self._fold(self._at - word.TO_FOLD)
            self._at = word.run(self.words, self._at, self.shared.epoch, ALL_LOOKS, self._mode, self._objects)
            if self._at < word.TO_FOLD:
                break
        return self._at == word.DONE


def stage_words(progress: int, waits: Sequence[tuple[int, int]]) -> list[int]:
    """A stage of a lane up to its folds: publish this progress, then wait for (rank, its progress)."""
    return [progress, len(waits), *wait_words(waits)]


def wait_words(waits: Sequence[tuple[int, int]]) -> list[int]:
    """Byte offset of every rank's counter, and the progress awaited."""
    return [number for peer, done in waits for number in (peer * COUNTER_BYTES, done)]


def free_memory(readers: Sequence[int]) -> list[tuple[int, int]]:
    """What a rank waits for before it writes: its readers have finished the call that used this memory before."""
    return [(peer, word.FINISHED - LANES * word.STRIDE) for peer in readers]


def lane_head(
    shared: SharedMemory, function: int, final: int, edges: Sequence[int], sizes: Sequence[int] = ()
) -> list[int]:
    """The header of a lane."""
    memories = [(memory.ctypes.data, memory.ctypes.data + memory.nbytes) for memory in shared.memories]
    return [
        shared.counters.ctypes.data,
        function,
        shared.position * COUNTER_BYTES,
        shared.looks,
        id(np.ndarray),
        1,
        CALLS_TO_WARM_UP + 2 * word.CALLS_A_WAY,
        final,
        *(edge for memory in memories for edge in memory),
        0,
        word.NO_TIME,
        word.NO_TIME,
        *sizes,
        *[0] * (2 * word.MOST_FIELDS - len(sizes)),
        *edges,
    ]


def shared_stage(
    shared: SharedMemory, progress: int, waits: Sequence[tuple[int, int]], sizes: Sizes | None = None
) -> CompiledRun:
    """One stage apart from its folds, which run outside: publish this progress, wait for (position, its progress)."""
    program = [*stage_words(progress, waits), 0, 0]
    start = word.HEADER_WORDS
    lane = [*lane_head(shared, 0, 0, [start] * 8 + [start + len(program)]), *program]
    return CompiledRun(shared, np.array(lane, np.int64), sizes or {})
