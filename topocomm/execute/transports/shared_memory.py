"""Ranks of one host on one memory: values are read where they were written, behind progress counters.

The memory is a nameless file that all ranks map: nothing is left behind, however a job ends. An allreduce uses two
lanes in turn. When a rank begins its call n + 2 it has finished call n + 1, which took every rank's contribution to it,
so every rank has finished call n and nobody reads its lane any more: no acknowledgement is needed.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

from topocomm.execute.agreement import gather_notes
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.execute.waiting import Waiting
from topocomm.operators.operator import Buffer

NOTE_BYTES = 64
COUNTER_BYTES = 64
"""A counter has a cache line of its own."""
LOOKS = 2000
"""Looks at a counter, about a nanosecond each, before the core is given away after every look: another process may
need it to come to the point that is awaited. Where ranks share cores it is given away at once."""


def open_region(waiting: Waiting, size_bytes: int, hosts: Sequence[int]) -> Buffer | None:
    """Memory that all ranks of a host map, zeroed; None, on every rank, where a host cannot give it. Collective."""
    what = "the set-up of shared memory"
    rank = waiting.transport.rank
    leader = hosts.index(hosts[rank])
    file = _create(size_bytes) if rank == leader else None
    try:
        path = "" if file is None else f"/proc/{os.getpid()}/fd/{file}"
        said = gather_notes(waiting, path.encode().ljust(NOTE_BYTES), tag=GATHER_TAG, what=what)[leader]
        path = said.decode().strip()
        region = _map(path, size_bytes) if path else None
        mapped = gather_notes(waiting, bytes([region is not None]), tag=GATHER_TAG, what=what)
    finally:
        if file is not None:
            os.close(file)
    return region if all(answer == b"\x01" for answer in mapped) else None


@cache
def kernels_available() -> bool:
    """Whether compiled code can run here: it needs numba, arrays that lie in memory as it knows them, and Linux."""
    probe = np.empty((3, 5), np.float32)
    head = [probe.ctypes.data, id(np.ndarray), id(probe.dtype), 2, 3]
    try:
        from topocomm.execute.kernels.shared_memory import matches

        seen = [matches(np.array([*head, size], np.int64), id(probe)) for size in (5, 6)]
    except (ImportError, NotImplementedError):  # no numba, or one that is told not to compile
        return False
    return seen == [True, False] and hasattr(os, "memfd_create")


class SharedMemory:
    """Two memories that ranks of a host map, used in turn, and what coordinates them.

    Attributes:
        ranks: The ranks that map it, ascending.
        position: This rank's place among them.
        counters: int64, one progress counter per rank on a cache line each, by position.
        memories: uint8 arrays.
        calls: One number, the `epoch`. Compiled code writes to it where it lies.
        looks: Looks at a counter before the core is given away after every look.
    """

    def __init__(self, region: Buffer, rank: int, ranks: Sequence[int], cores: int) -> None:
        head = len(ranks) * COUNTER_BYTES
        half = (region.size - head) // 2
        self.ranks = tuple(ranks)
        self.position = self.ranks.index(rank)
        self.counters = region[:head].view(np.int64)
        self.memories = (region[head : head + half], region[head + half : head + 2 * half])
        self.calls = array("q", [0])
        self.looks = 0 if cores < len(ranks) else LOOKS

    @property
    def epoch(self) -> int:
        """Number of calls made here, the running one included."""
        return self.calls[0]

    @epoch.setter
    def epoch(self, number: int) -> None:
        self.calls[0] = number


def open_shared(waiting: Waiting, size_bytes: int, hosts: Sequence[int]) -> SharedMemory | None:
    """Two memories of this many bytes, a multiple of a cache line, on every host.

    None, on every rank, where a host gives none. Collective over all ranks.

    Args:
        waiting: The communicator's way to wait.
        size_bytes: Of one memory on this rank's host.
        hosts: The host of every rank, by number.
    """
    rank = waiting.transport.rank
    ranks = [peer for peer, host in enumerate(hosts) if host == hosts[rank]]
    region = open_region(waiting, len(ranks) * COUNTER_BYTES + 2 * size_bytes, hosts)
    return None if region is None else SharedMemory(region, rank, ranks, waiting.transport.cores)


def _create(size_bytes: int) -> int | None:
    """A new nameless file of this size, its memory reserved: too little is found here, not by a SIGBUS later."""
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


def _map(path: str, size_bytes: int) -> Buffer | None:
    try:
        with open(path, "r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), size_bytes), np.uint8)
    except OSError:
        return None
