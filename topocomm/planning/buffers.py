"""Where the slots of one rank live in memory: a first-fit assignment over the life of each value.

The rank's program is cut in stages: a stage posts all its messages at once, waits for them, then folds. Messages
of later rounds join the current stage until something reads a slot that is still arriving, so a flat exchange is
one stage whatever its rounds. Every stage is a range of whole rounds, hence the message of the least round that is
not complete always has both its ends posted: stages cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from topocomm.planning.schedule import Combine, Schedule, Transfer, input_pieces

Piece = tuple[int, int]
"""(slot, chunk) of one rank."""


@dataclass
class Stage:
    """Messages posted together, by peer in order, then folds in order."""

    sends: dict[tuple[int, int, int], list[Piece]] = field(default_factory=dict)
    receives: dict[tuple[int, int, int], list[Piece]] = field(default_factory=dict)
    """(round, peer, path) -> pieces of one message."""
    folds: list[Combine] = field(default_factory=list)


@dataclass(frozen=True)
class RankProgram:
    """What one rank does, and at which byte offset of its arena every piece lives."""

    stages: tuple[Stage, ...]
    offsets: dict[Piece, int]
    arena_bytes: int
    input_pieces: tuple[Piece, ...]
    output_pieces: tuple[Piece, ...]
    """By chunk; empty where the rank has no input or no result."""


def rank_program(schedule: Schedule, rank: int, chunk_bytes: Callable[[int], int], align: int) -> RankProgram:
    """The stages and memory of one rank.

    Args:
        schedule: A verified schedule.
        rank: Whose program.
        chunk_bytes: Packed bytes of a chunk, by index.
        align: Every offset is a multiple of this many bytes.
    """
    stages = stages_of(schedule, rank)
    chunks = range(len(schedule.chunks))
    inputs = input_pieces(schedule, rank)
    outputs = output_pieces(schedule, rank)
    sizes = {c: -(-chunk_bytes(c) // align) * align for c in chunks}
    offsets, total = _assign(stages, inputs, outputs, sizes)
    return RankProgram(tuple(stages), offsets, total, inputs, outputs)


def output_pieces(schedule: Schedule, rank: int) -> tuple[Piece, ...]:
    """The pieces of a rank's result, by chunk."""
    ordered = sorted(schedule.outputs_of(rank), key=lambda out: out[2])
    return tuple((slot, chunk) for _, slot, chunk in ordered)


def stages_of(schedule: Schedule, rank: int) -> list[Stage]:
    """The stages of one rank."""
    moves: list[list[Transfer]] = [[] for _ in range(schedule.rounds)]
    for move in schedule.transfers_of(rank):
        moves[move.round].append(move)
    folds: list[list[Combine]] = [[] for _ in range(schedule.rounds)]
    for fold in schedule.combines_of(rank):
        folds[fold.round].append(fold)
    stages = [Stage()]
    pending: set[Piece] = set()
    for round_ in range(schedule.rounds):
        reads = {(m.src_slot, m.chunk) for m in moves[round_] if m.src == rank}
        if moves[round_] and (stages[-1].folds or reads & pending):
            stages.append(Stage())
            pending = set()
        for move in moves[round_]:
            if move.src == rank:
                key = (round_, move.dst, move.path)
                stages[-1].sends.setdefault(key, []).append((move.src_slot, move.chunk))
            else:
                key = (round_, move.src, move.path)
                stages[-1].receives.setdefault(key, []).append((move.dst_slot, move.chunk))
                pending.add((move.dst_slot, move.chunk))
        stages[-1].folds += folds[round_]
    return stages


def _assign(
    stages: list[Stage], inputs: tuple[Piece, ...], outputs: tuple[Piece, ...], sizes: dict[int, int]
) -> tuple[dict[Piece, int], int]:
    """First fit by time of birth. Inputs keep their place for the whole call, so they stay as the caller left them."""
    last_use = _last_uses(stages)
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
        for fold in stage.folds:
            out = (fold.out_slot, fold.chunk)
            operands = [(slot, fold.chunk) for slot in fold.operands]
            heirs = operands if len(operands) == 2 else operands[:1]
            dying = [p for p in heirs if last_use[p] == 2 * index + 1 and _last_reader(stage, p) is fold]
            memory.place(out, last_use.get(out, 2 * index + 1), heir_of=dying[0] if dying else None)
    return memory.offsets, memory.top


def _last_uses(stages: list[Stage]) -> dict[Piece, int]:
    """Time of each piece's last read: 2i while stage i communicates, 2i+1 while it folds."""
    last: dict[Piece, int] = {}
    for index, stage in enumerate(stages):
        for pieces in stage.sends.values():
            last.update(dict.fromkeys(pieces, 2 * index))
        for fold in stage.folds:
            last.update({(slot, fold.chunk): 2 * index + 1 for slot in fold.operands})
    return last


def _last_reader(stage: Stage, piece: Piece) -> Combine | None:
    readers = [f for f in stage.folds if piece[1] == f.chunk and piece[0] in f.operands]
    return readers[-1] if readers else None


class _Memory:
    """Byte ranges in use until a time."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes
        self.offsets: dict[Piece, int] = {}
        self.top = 0
        self.used: list[tuple[int, int, int]] = []  # (offset, end, last use), sorted by offset

    def expire(self, now: int) -> None:
        """Free what was read for the last time before `now`."""
        self.used = [entry for entry in self.used if entry[2] >= now]

    def place(self, piece: Piece, until: int, *, heir_of: Piece | None = None) -> None:
        size = self.sizes[piece[1]]
        if heir_of is not None:
            offset = self.offsets[heir_of]
            self.used = [entry for entry in self.used if not (entry[0] == offset and size)]
        else:
            offset = self._gap(size)
        self.offsets[piece] = offset
        if size:
            self.used.append((offset, offset + size, until))
            self.used.sort()
            self.top = max(self.top, offset + size)

    def _gap(self, size: int) -> int:
        start = 0
        for offset, end, _ in self.used:
            if offset - start >= size:
                return start
            start = max(start, end)
        return start
