"""Engines of collectives that combine nothing, for long values: every rank reads straight from the others' values.

Shared memory holds the addresses of the values only. A rank is through when it has read what it gets, and when those
that read its own value have done so: the value is the caller's again then.

The plan says who gets whose rows. By what way they would go is of no account where all ranks are on one host.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import TopocommError
from topocomm.execute.calls.structure import Fields
from topocomm.execute.host.call_engine import CallEngine, Work
from topocomm.execute.host.compiled_engine import CompiledEngine, native_engine
from topocomm.execute.host.compiled_run import CompiledRun, Sizes
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.cross_memory import can_read_peers
from topocomm.execute.transports.shared_memory import SharedMemory, open_shared
from topocomm.execute.transports.transport import Message
from topocomm.native import _native
from topocomm.planning.collectives import CARRYING
from topocomm.planning.schedule.schedule import input_pieces

LEAST_BYTES = {
    "alltoall": 48 << 10,
    "allgather": 48 << 10,
    "gather": 192 << 10,
    "scatter": 64 << 10,
    "broadcast": 192 << 10,
}
"""From which length of the longest block, what one rank reads of another, one copy is quicker than two through memory
that stays in the caches; measured in docs/results/2026-11-28-alltoall.md."""
LEAST_BYTES_OF_TWO = {
    "alltoall": 14 << 10,
    "allgather": 10 << 10,
    "gather": 12 << 10,
    "scatter": 24 << 10,
    "broadcast": 24 << 10,
}
"""The same of two ranks, each of which copies one block only."""
WORD_BYTES = 8
ADDRESSES_BYTES = 64
"""Of every rank: a word for its process, one for the address of each field; a cache line."""


def single_copy_engines(work: Work, waiting: Waiting) -> Sequence[CallEngine] | None:
    """Return the engines of a call between ranks of one host; None, on all ranks, where it has others. Collective."""
    least_bytes = LEAST_BYTES.get(work.plan.collective.name)
    if least_bytes is None or work.plan.collective.name not in CARRYING:
        return None
    if waiting.transport.size == 2:
        least_bytes = min(least_bytes, LEAST_BYTES_OF_TWO.get(work.plan.collective.name, least_bytes))
    reads = Reads(work)
    if reads.longest_bytes < least_bytes or not can_read_peers(waiting):
        return None
    hosts = waiting.transport.hosts
    shared = open_shared(work.arena, waiting, len(hosts) * ADDRESSES_BYTES, hosts)
    return None if shared is None else [SingleCopyEngine(work, reads, shared, number) for number in range(2)]


class Reads:
    """Who reads whose rows.

    Attributes:
        sources: By rank the ranks that it reads from, in the order in which it does so: itself first, then those after
            it, so that no two ranks begin with one source.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        ranks = range(work.plan.collective.ranks)
        inputs = {rank: [chunk for _, chunk in input_pieces(work.schedule, rank)] for rank in ranks}
        self._giver = {chunk: rank for rank, chunks in inputs.items() for chunk in chunks}
        self._first = {rank: min(work.parts[c][0] for c in chunks) for rank, chunks in inputs.items() if chunks}
        self._chunks = {rank: self._chunks_of(rank) for rank in ranks}
        self.sources = {
            rank: sorted({self._giver[c] for c in chunks}, key=lambda source: (source - rank) % len(ranks))
            for rank, chunks in self._chunks.items()
        }

    def _chunks_of(self, rank: int) -> list[int]:
        """The chunks of a rank's result that have rows."""
        return sorted({chunk for _, _, chunk in self.work.schedule.outputs_of(rank) if self.work.chunk_rows(chunk)})

    @cached_property
    def longest_bytes(self) -> int:
        """Bytes of the longest block that a rank reads of another one."""
        sizes: dict[tuple[int, int], int] = {}
        for rank, chunks in self._chunks.items():
            for chunk in chunks:
                if (source := self._giver[chunk]) != rank:
                    sizes[rank, source] = sizes.get((rank, source), 0) + self.work.chunk_bytes(chunk)
        return max(sizes.values(), default=0)

    def stretches(self, source: int) -> Iterator[tuple[int, int, int]]:
        """Yield (row in the source's value, row in the result, rows) of what this rank reads of a source."""
        work, at, to, rows = self.work, 0, 0, 0
        for chunk in self._chunks[work.rank]:
            if self._giver[chunk] != source:
                continue
            first, more = work.parts[chunk]
            from_row, to_row = first - self._first[source], work.result.place(first)
            if rows and (from_row, to_row) == (at + rows, to + rows):
                rows += more
                continue
            if rows:
                yield at, to, rows
            at, to, rows = from_row, to_row, more
        if rows:
            yield at, to, rows

    @property
    def readers(self) -> dict[int, int]:
        """Other ranks that read this one's value, each with its stage in which it does so."""
        own = self.work.rank
        return {rank: some.index(own) for rank, some in self.sources.items() if own in some and rank != own}


class SingleCopyEngine(CompiledEngine):
    """As `CompiledEngine`: a stage for every rank that it reads from, and a last one in which it awaits its readers."""

    def __init__(self, work: Work, reads: Reads, shared: SharedMemory, number: int) -> None:
        self.shared, self.memory, self.views = shared, shared.memories[number], None
        self.takes_value, self.gives_result = bool(input_pieces(work.schedule, work.rank)), work.gives_result
        self.in_python, self.in_one_copy = False, True
        self.native = native_engine(shared, number, _sections(work, reads), work)
        sources, row_bytes = reads.sources[work.rank], sum(f.row_bytes for f in work.layout.fields)
        sizes = {
            (stage, source): row_bytes * sum(rows for _, _, rows in reads.stretches(source))
            for stage, source in enumerate(sources)
        }
        self._keeps_value = sources == [work.rank]  # also in place
        self._run = _PullRun(shared, self.native, sizes, len(sources))
        self._shapes = {f.name: (*work.value.leading, *f.row_shape) for f in work.layout.fields}

    def begin(self, fields: Fields | None, target: Fields | None, apart: bool) -> bool:
        apart = apart or self._keeps_value
        if fields is not None and self.takes_value and not (apart and all(map(_can_be_read, fields.values()))):
            fields = {name: np.array(array, order="C") for name, array in fields.items()}
        return super().begin(fields, target, True)

    def withdraw(self) -> None:
        self.native.withdraw()


class _PullRun(CompiledRun):
    """An engine that pulls. `last` is the number of the stage in which it waits for its readers."""

    def __init__(self, shared: SharedMemory, native: _native.Engine, sizes: Sizes, last: int) -> None:
        super().__init__(shared, native, sizes)
        self._last = last

    def follow(self, state: int, timeout_s: float = 0.0) -> bool:
        through = super().follow(state, timeout_s)
        if not through and self._native.unread not in (0, errno.ESRCH):  # a rank that is gone is noticed otherwise
            _, (awaited,) = self.pending()
            why = os.strerror(self._native.unread)
            raise TopocommError(
                f"the value of rank {awaited.peer} cannot be read in its memory ({why}); give arrays in plain memory, "
                "which stays as it is until the call is through"
            )
        return through

    def pending(self) -> tuple[list[Message], list[Message]]:
        sends, receives = super().pending()
        return (receives, sends) if self._native.stage == self._last else (sends, receives)


def _sections(work: Work, reads: Reads) -> list[list[tuple[int, ...]]]:
    """Return the records of every section, as `topocomm/native/engine.h` describes them."""
    sources, fields = reads.sources[work.rank], work.layout.fields
    own_at = work.rank * ADDRESSES_BYTES
    pulls: list[list[tuple[int, ...]]] = [[] for _ in sources]
    for own, source in zip(pulls, sources, strict=True):
        process = source * ADDRESSES_BYTES
        for row, to, rows in reads.stretches(source):
            for number, size in enumerate(f.row_bytes for f in fields):
                address = process + WORD_BYTES * (1 + number)
                own.append((process, address, row * size, len(fields) + number, to * size, rows * size))
    readers: list[tuple[int, ...]] = [(reader, stage + 2) for reader, stage in reads.readers.items()]
    addresses: list[tuple[int, ...]] = [(number - 1, own_at + WORD_BYTES * number) for number in range(1 + len(fields))]
    stages = [(number + 1, 1, 0, 0, len(some), 0) for number, some in enumerate(pulls)]
    return [
        *[[] for _ in range(5)],
        addresses if input_pieces(work.schedule, work.rank) else [],
        list(chain.from_iterable(pulls)),
        *[[] for _ in range(3)],
        [*((source, 1) for source in sources), *readers],
        [*stages, (len(stages) + 1, len(readers), 0, 0, 0, 0)],
        [],
    ]


def _can_be_read(array: NDArray[Any]) -> bool:
    """Return whether the system lets other ranks read an array: memory of a device may be mapped here, for one."""
    byte, first = np.empty(1, np.uint8), array.ctypes.data
    ends = (first, first + array.nbytes - 1) if array.flags.c_contiguous and array.nbytes else ()
    return not any(_native.read_process(os.getpid(), end, byte) for end in ends)
