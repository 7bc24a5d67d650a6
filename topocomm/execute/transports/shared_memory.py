"""Ranks of one host on one memory: values are read where they were written, behind progress counters.

The memory is a nameless file that all ranks map: nothing is left behind, however a job ends. An allreduce uses two
memories in turn. When a rank begins its call n + 2 it has finished call n + 1, which took every rank's contribution to
it, so every rank has finished call n and nobody reads its memory any more: no acknowledgement is needed.

That rule holds within one call. Memory of one call is never given to another one: a `SharedArena` hands out each byte
of a segment once. So no rank can read, as a part of an old call, what another rank writes in a new one, and progress
counters start at zero without a barrier, however far apart the ranks are and whenever each of them lets a call go. A
segment is unmapped on a rank when the last call in it is gone there; the system frees its pages when the last rank has
unmapped it. Every rank takes the same sizes in the same order, so all place a call alike; which calls are still there
plays no part in that, and may differ between ranks.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.operators.layout import ALIGNMENT_BYTES, Buffer

NOTE_BYTES = 64
COUNTER_BYTES = 64
"""Bytes between counters: a cache line each."""
BLOCK_BYTES = 256
"""Memory of calls is a multiple of this: no two calls have lines that a core fetches as one pair."""
FIRST_SEGMENT_BYTES = 256 << 10
"""Bytes of an arena's first segment: room for hundreds of small calls, reserved in 0.1 ms."""
MOST_SEGMENT_BYTES = 16 << 20
"""A larger segment is opened for a call only that needs it: what one long-lived call keeps of others is bounded."""
LOOKS = 2000
"""Looks at counters, about a nanosecond each, before the core is given away, and then slept: another process may need
it to come to the point that is awaited. Where ranks share cores it is given away at once."""


def open_region(waiting: Waiting, size_bytes: int, hosts: Sequence[int]) -> Buffer | None:
    """Memory that all ranks of a host map, zeroed; None, on every rank, where a host cannot give it. Collective."""
    what = "the set-up of shared memory"
    rank = waiting.transport.rank
    leader = hosts.index(hosts[rank])
    file = _create(size_bytes) if rank == leader else None
    try:
        path = "" if file is None else f"/proc/{os.getpid()}/fd/{file}"
        paths = gather_notes(waiting, path.encode().ljust(NOTE_BYTES), tag=GATHER_TAG, what=what)
        path = paths[leader].decode().strip()
        region: Buffer | None = None
        if path:
            with suppress(OSError), open(path, "r+b") as shared:
                region = np.frombuffer(mmap.mmap(shared.fileno(), size_bytes), np.uint8)
        mapped = gather_notes(waiting, bytes([region is not None]), tag=GATHER_TAG, what=what)
    finally:
        if file is not None:
            os.close(file)
    return region if all(answer == b"\x01" for answer in mapped) else None


@cache
def kernels_available() -> bool:
    """Return whether the compiled part can run here: built, knows NumPy's arrays, on Linux."""
    probes: list[Any] = [np.empty((3, 5), np.float32), np.empty((2, 3)).T, np.frombuffer(b"\0" * 8, np.int16)]
    try:
        from topocomm.native._native import describe

        known = all(
            describe(probe) == (probe.ctypes.data, True, probe.shape, probe.dtype, probe.flags.num) for probe in probes
        )
    except ImportError:  # not built, or NumPy has another binary interface
        return False
    return known and hasattr(os, "memfd_create")


class Segment(NamedTuple):
    """One shared memory file, by its number in the arena."""

    number: int
    size_bytes: int


class SharedMemory:
    """Two memories that ranks of a host map, used in turn, and what coordinates them.

    Attributes:
        segment: Where they lie.
        ranks: The ranks that map it, ascending.
        position: This rank's place among them.
        counters: int64, one progress counter per rank on a cache line each, by position.
        memories: uint8 arrays.
        calls: One number, the `epoch`. Compiled code writes to it where it lies.
        looks: Looks at counters before the core is given away.
        alone: Whether no other rank maps it.
    """

    def __init__(
        self, region: Buffer, rank: int, ranks: Sequence[int], cores: int, segment: Segment | None = None
    ) -> None:
        head = len(ranks) * COUNTER_BYTES
        half = (region.size - head) // 2 // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self.segment = segment or Segment(0, region.size)
        self.ranks = tuple(ranks)
        self.alone = len(ranks) == 1
        self.position = self.ranks.index(rank)
        self.counters = region[:head].view(np.int64)
        self.memories = (region[head : head + half], region[head + half : head + 2 * half])
        self.calls = array("q", [0])
        self.looks = 0 if cores < len(ranks) else LOOKS

    @property
    def epoch(self) -> int:
        """Number of calls, the running one included."""
        return self.calls[0]

    @epoch.setter
    def epoch(self, number: int) -> None:
        self.calls[0] = number


def memory_of_one(region: Buffer, rank: int, segment: Segment) -> SharedMemory:
    """The memory of a rank that shares it with none: it serves both turns, since nobody reads it after a call."""
    own = SharedMemory(region, rank, (rank,), 1, segment)
    own.memories = (region[COUNTER_BYTES:],) * 2
    return own


class SharedArena:
    """Shared memory for many calls: segments that all ranks of a host map, each byte handed out once.

    A segment has one file descriptor, and opening it is collective. So it is made larger than its first call needs: as
    large as all before it together, up to `MOST_SEGMENT_BYTES`.
    """

    def __init__(self) -> None:
        self._segment = Segment(0, 0)
        self._left: Buffer | None = None
        """Bytes of the segment that are free."""
        self._total_bytes = 0
        """Bytes of all segments."""

    def take(self, waiting: Waiting, size_bytes: int, hosts: Sequence[int]) -> tuple[Buffer, Segment] | None:
        """The next bytes of this arena, zeroed, and their segment; None, on every rank, where a host gives no memory.

        All ranks take the same sizes in turn; where the segment is full all open another one, together.
        """
        size_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if self._left is None or self._left.size < size_bytes:
            wanted = max(size_bytes, min(max(self._total_bytes, FIRST_SEGMENT_BYTES), MOST_SEGMENT_BYTES))
            self._left = open_region(waiting, wanted, hosts)
            if self._left is None and wanted > size_bytes:  # a host has no more than that
                wanted = size_bytes
                self._left = open_region(waiting, wanted, hosts)
            if self._left is None:
                return None
            self._total_bytes += wanted
            self._segment = Segment(self._segment.number + 1, wanted)
        memory, self._left = self._left[:size_bytes], self._left[size_bytes:]
        return memory, self._segment

    def close(self) -> None:
        """Release the memory; calls keep their segments."""
        self._left = None


def open_shared(arena: SharedArena, waiting: Waiting, size_bytes: int, hosts: tuple[int, ...]) -> SharedMemory | None:
    """Two memories of this many bytes, a multiple of a cache line, on every host; collective over all ranks.

    `size_bytes` is that of the host that needs most. None, on every rank, where a host gives none.
    """
    rank = waiting.transport.rank
    ranks = [peer for peer, host in enumerate(hosts) if host == hosts[rank]]
    most_ranks = max(map(hosts.count, hosts))
    taken = arena.take(waiting, most_ranks * COUNTER_BYTES + 2 * size_bytes, hosts)
    return None if taken is None else SharedMemory(taken[0], rank, ranks, waiting.transport.cores, taken[1])


def _create(size_bytes: int) -> int | None:
    """Open an anonymous file with reserved memory, so that a lack is found here and not by a SIGBUS later."""
    try:
        file = os.memfd_create("topocomm")
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError:
        os.close(file)
        return None
    return file
