"""The stages of one rank, and the memory of its slots: a first-fit assignment over the life of each value.

A stage posts all its messages at once, waits for them, then folds. Messages of later rounds join the current stage
until something reads a slot that is still arriving, so a flat exchange is one stage whatever its rounds. Every stage is
a range of whole rounds, so the message of the least incomplete round always has both its ends posted: no deadlock.

Where a stage is one group on the device (NCCL), both ends of a message must be in the same group: `common_cuts` are the
rounds before which some rank begins a stage, and with them all ranks do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import Combine, Piece, Schedule, input_pieces

MANY_TRANSFERS, PADDED_BYTES = 1 << 18, 1 << 10
"""Transfers from which on chunks whose sizes differ by no more than this take memory as the largest does: then the
memory of all ranks is counted at once (`scratch.py`), where first fit rank by rank took seconds."""
SEVERAL_TRANSFERS, PADDED_PART = 1 << 12, 16
"""The same of fewer transfers, where they differ by no more than such a part of the largest."""


@dataclass
class Stage:
    """One stage of a rank.

    Attributes:
        sends: (round, peer, path) -> pieces of one message, in the order of posting.
        receives: As `sends`.
    """

    sends: dict[tuple[int, int, int], list[Piece]] = field(default_factory=dict)
    receives: dict[tuple[int, int, int], list[Piece]] = field(default_factory=dict)
    folds: list[Combine] = field(default_factory=list)


@dataclass(frozen=True)
class RankProgram:
    """The program of one rank.

    Attributes:
        offsets: Byte offset of every piece in its arena.
        input_pieces: Its value, by chunk; empty where it has no input.
        output_pieces: Its result, by chunk; empty where it has none.
    """

    stages: tuple[Stage, ...]
    offsets: dict[Piece, int]
    arena_bytes: int
    input_pieces: tuple[Piece, ...]
    output_pieces: tuple[Piece, ...]


def rank_program(
    schedule: Schedule, rank: int, chunk_bytes: Callable[[int], int], align: int, cuts: Collection[int] = ()
) -> RankProgram:
    """Return the stages and memory of one rank of a verified schedule.

    `chunk_bytes` returns the packed bytes of a chunk by its index; offsets are multiples of `align` bytes; `cuts` are
    those of `stages_of`.
    """
    stages = stages_of(schedule, rank, cuts)
    inputs = input_pieces(schedule, rank)
    outputs = output_pieces(schedule, rank)
    packed = np.array([chunk_bytes(chunk) for chunk in range(len(schedule.chunks))], dtype=np.int64)
    sizes = dict(enumerate(slot_sizes(packed, align, len(schedule.transfers)).tolist()))
    offsets, total = _assign(stages, inputs, outputs, sizes)
    return RankProgram(tuple(stages), offsets, total, inputs, outputs)


def slot_sizes(packed_bytes: Ints, align: int, transfers: int) -> Ints:
    """Return int64 [chunks]: the bytes that a piece takes, multiples of `align`, in a schedule of so many transfers.

    `packed_bytes` are those of each chunk packed.
    """
    sizes: Ints = -(-packed_bytes // align) * align
    largest = sizes.max(initial=0)
    apart = largest - sizes[sizes > 0].min(initial=largest)
    many = transfers > MANY_TRANSFERS and apart <= PADDED_BYTES
    several = transfers > SEVERAL_TRANSFERS and apart <= min(PADDED_BYTES, largest // PADDED_PART)
    return np.where(sizes > 0, largest, 0) if many or several else sizes


def output_pieces(schedule: Schedule, rank: int) -> tuple[Piece, ...]:
    """Return the pieces of a rank's result, by chunk."""
    ordered = sorted(schedule.outputs_of(rank), key=lambda out: out[2])
    return tuple((slot, chunk) for _, slot, chunk in ordered)


def common_cuts(schedule: Schedule) -> frozenset[int]:
    """Return the rounds before which some rank begins a stage: with these, stages of all ranks are the same rounds."""
    return frozenset(
        min(round_ for round_, _, _ in (*stage.sends, *stage.receives))
        for rank in range(schedule.ranks)
        for stage in stages_of(schedule, rank)[1:]
    )


def stages_of(schedule: Schedule, rank: int, cuts: Collection[int] = ()) -> list[Stage]:
    """Return the stages of one rank of a verified schedule; a stage begins before each of the rounds in `cuts`."""
    stages = [Stage()]
    pending: set[Piece] = set()
    cut = False
    for round_, (moves, folds) in enumerate(schedule.by_round(rank)):
        cut = cut or round_ in cuts
        reads = {(move.src_slot, move.chunk) for move in moves if move.src == rank}
        if moves and (cut or stages[-1].folds or reads & pending):
            stages.append(Stage())
            pending, cut = set(), False
        for move in moves:
            if move.src == rank:
                key = (round_, move.dst, move.path)
                stages[-1].sends.setdefault(key, []).append((move.src_slot, move.chunk))
            else:
                key = (round_, move.src, move.path)
                stages[-1].receives.setdefault(key, []).append((move.dst_slot, move.chunk))
                pending.add((move.dst_slot, move.chunk))
        stages[-1].folds += folds
    return stages


def _assign(
    stages: list[Stage], inputs: tuple[Piece, ...], outputs: tuple[Piece, ...], sizes: dict[int, int]
) -> tuple[dict[Piece, int], int]:
    """(byte offset of every piece, bytes of all): first fit by time of birth; inputs keep their place for good."""
    last_use: dict[Piece, int] = {}  # 2i while stage i communicates, 2i+1 while it folds
    for index, stage in enumerate(stages):
        for pieces in stage.sends.values():
            last_use.update(dict.fromkeys(pieces, 2 * index))
        for fold in stage.folds:
            last_use.update({(slot, fold.chunk): 2 * index + 1 for slot in fold.operands})
    forever = 2 * len(stages) + 1
    for piece in (*inputs, *outputs):
        last_use[piece] = forever
    memory = _Memory(sizes)
    for piece in inputs:
        memory.place(piece, forever)
    for index, stage in enumerate(stages):
        memory.expire(2 * index)
        for pieces in stage.receives.values():
            for piece in pieces:
                memory.place(piece, last_use.get(piece, 2 * index))
        readers = {(slot, fold.chunk): fold for fold in stage.folds for slot in fold.operands}  # the last of each
        for fold in stage.folds:
            out = (fold.out_slot, fold.chunk)
            operands = [(slot, fold.chunk) for slot in fold.operands]
            heirs = operands if len(operands) == 2 else operands[:1]
            dying = [piece for piece in heirs if last_use[piece] == 2 * index + 1 and readers[piece] is fold]
            memory.place(out, last_use.get(out, 2 * index + 1), heir_of=dying[0] if dying else None)
    return memory.offsets, memory.top


class _Memory:
    """Byte ranges in use until a time, and the gaps between them."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes
        self.offsets: dict[Piece, int] = {}
        self.top = 0
        self._gaps = _Gaps()
        self._until: dict[int, int] = {}  # last use of the range in use at an offset
        self._ends: list[tuple[int, int, int]] = []  # (last use, start, size) of ranges: a heap, some have an heir now

    def expire(self, now: int) -> None:
        """Free the ranges whose last read is before `now`."""
        while self._ends and self._ends[0][0] < now:
            until, start, size = heappop(self._ends)
            if self._until.get(start) == until:
                del self._until[start]
                self._gaps.add(start, size)

    def place(self, piece: Piece, until: int, *, heir_of: Piece | None = None) -> None:
        size = self.sizes[piece[1]]
        start = self._gaps.first(size) if heir_of is None else self.offsets[heir_of]
        if start is None:
            start = self._gaps.last_before(self.top)
            self.top = start + size
        self.offsets[piece] = start
        if size:
            self._until[start] = until
            heappush(self._ends, (until, start, size))


class _Gaps:
    """Free byte ranges in order of their starts, no two adjacent; in arrays, since there can be thousands."""

    def __init__(self) -> None:
        self._starts, self._sizes = (np.zeros(16, dtype=np.int64) for _ in range(2))
        self._count = 0

    def first(self, size: int) -> int | None:
        """Take `size` bytes from the first range that has them; returns its start, or None."""
        enough = self._sizes[: self._count] >= size
        index = int(enough.argmax()) if self._count else 0
        if not self._count or not enough[index]:
            return None
        start = int(self._starts[index])
        if self._sizes[index] == size:
            self._drop(index)
        else:
            self._starts[index] += size
            self._sizes[index] -= size
        return start

    def last_before(self, top: int) -> int:
        """Take the range that ends at the top; returns its start, or the top where there is none."""
        last = self._count - 1
        if last < 0 or self._starts[last] + self._sizes[last] != top:
            return top
        self._count = last
        return int(self._starts[last])

    def add(self, start: int, size: int) -> None:
        """Add a range, merged with adjacent ones."""
        starts, sizes = self._starts, self._sizes
        index = int(starts[: self._count].searchsorted(start))
        if index < self._count and starts[index] == start + size:
            starts[index] = start
            sizes[index] += size
            if index and starts[index - 1] + sizes[index - 1] == start:
                sizes[index - 1] += sizes[index]
                self._drop(index)
        elif index and starts[index - 1] + sizes[index - 1] == start:
            sizes[index - 1] += size
        else:
            if self._count == len(starts):
                self._starts, self._sizes = np.tile(starts, 2), np.tile(sizes, 2)
            for values, value in ((self._starts, start), (self._sizes, size)):
                values[index + 1 : self._count + 1] = values[index : self._count]
                values[index] = value
            self._count += 1

    def _drop(self, index: int) -> None:
        self._count -= 1
        for values in (self._starts, self._sizes):
            values[index : self._count] = values[index + 1 : self._count + 1]
