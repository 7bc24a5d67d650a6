"""One rank's part of a plan in the words of the peer kernel: where every piece lies, and what is done in which order.

What a rank receives is written by others, who may be a stage ahead of it. So no place of an arena is used twice in a
call: what others write comes first, where all ranks compute its places, then what the rank folds itself.

Messages are taken together in stages, which are the same rounds on all ranks: no rank sends in a stage what it receives
or folds in that stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.device.device_library import ALIGNMENT_BYTES
from topocomm.execute.host.call_engine import Work
from topocomm.planning.program.slot_memory import common_cuts, output_pieces
from topocomm.planning.schedule.schedule import Combine, Piece, Transfer, input_pieces

INPUT, ARENA, OUTPUT = range(3)
"""As the kernel has them."""
Place = tuple[int, int]
"""A space, and the row or byte there."""


class PeerProgram(NamedTuple):
    """What a rank runs.

    Attributes:
        words: int32: the number of receivers, they; of every chunk the word at which its code starts; the codes. A code
            is the chunk's rows, where its fields start when it is packed, the number of its steps, the steps. A step is
            its stage; how many pieces are sent, each as place, number of targets, (rank, byte there) of each; how many
            ranks are told, they; how many are awaited, they; how many folds, each as target, number of operands,
            operands. A place is a space and the row or byte in it.
        stages: Of the plan.
        arena_bytes: Of the rank that needs most.
        receivers: Bytes that this rank sends, by rank.
        senders: Bytes that it receives, by rank.
        operands: How many a fold of several has, if all have as many; 1 where there is none; else 0.
        rows: The first rows of all pieces in the caller's value and result.
    """

    words: NDArray[np.int32]
    stages: int
    arena_bytes: int
    receivers: Mapping[int, int]
    senders: Mapping[int, int]
    operands: int
    rows: frozenset[int]


def peer_program(work: Work) -> PeerProgram:
    """Return the program of a call's rank."""
    schedule, rank = work.schedule, work.rank
    cuts = sorted(common_cuts(schedule))
    arenas, arena_bytes = _arenas(work)
    inputs = input_pieces(schedule, rank)
    slots = work.input_slots(inputs)
    places: dict[Piece, Place] = {piece: (ARENA, at) for piece, at in arenas[rank].items()}
    for slot, chunk in inputs:
        first = work.parts[chunk][0] + slots.index(slot) * work.layout.rows - work.value.first
        places[slot, chunk] = INPUT, first
    results = {
        (slot, chunk): (OUTPUT, work.parts[chunk][0] - work.result.first)
        for slot, chunk in output_pieces(schedule, rank)
    }
    moves: list[list[Transfer]] = [[] for _ in work.parts]
    folds: list[list[Combine]] = [[] for _ in work.parts]
    for move in schedule.transfers_of(rank):
        moves[move.chunk].append(move)
    for fold in schedule.combines_of(rank):
        folds[fold.chunk].append(fold)
    codes = []
    for chunk, (_, rows) in enumerate(work.parts):
        steps = _Steps(rank, cuts, places, arenas) if rows else None
        if steps is not None:
            steps.move(moves[chunk])
            steps.fold(folds[chunk], [(piece, place) for piece, place in results.items() if piece[1] == chunk])
        codes.append([rows, *work.layout.addresses(0, rows), *([0] if steps is None else steps.words())])
    totals: tuple[dict[int, int], dict[int, int]] = {}, {}
    for move in schedule.transfers_of(rank):
        peer, total = (move.dst, totals[0]) if move.src == rank else (move.src, totals[1])
        total[peer] = total.get(peer, 0) + work.chunk_bytes(move.chunk)
    several = {len(fold.operands) for fold in schedule.combines_of(rank)} - {1}
    spaces = [*(places[piece] for piece in inputs), *results.values()]
    return PeerProgram(
        words=_words(sorted(totals[0]), codes),
        stages=len(cuts) + 1,
        arena_bytes=arena_bytes,
        receivers=totals[0],
        senders=totals[1],
        operands=1 if not several else several.pop() if len(several) == 1 else 0,
        rows=frozenset(row for _, row in spaces),
    )


def _arenas(work: Work) -> tuple[list[dict[Piece, int]], int]:
    """Of every rank, at which byte of its arena lies what it receives and what it folds; and the most bytes."""
    schedule = work.schedule
    arenas: list[dict[Piece, int]] = [{} for _ in range(schedule.ranks)]
    tops = [0] * schedule.ranks
    written = [(move.dst, (move.dst_slot, move.chunk)) for move in schedule.transfer_list()]
    written += [(fold.rank, (fold.out_slot, fold.chunk)) for fold in schedule.combine_list()]
    for rank, piece in written:
        arenas[rank][piece] = tops[rank]
        tops[rank] += -(-work.chunk_bytes(piece[1]) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return arenas, max(tops)


def _words(receivers: Sequence[int], codes: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    head = [len(receivers), *receivers]
    starts = np.cumsum([len(head) + len(codes), *map(len, codes)])[:-1].tolist()
    return np.array([*head, *starts, *(word for code in codes for word in code)], np.int32)


class _Step:
    """What is done with a chunk in one stage."""

    def __init__(self) -> None:
        self.sends: dict[Place, list[tuple[int, int]]] = {}
        self.told: dict[int, None] = {}
        self.awaited: dict[int, None] = {}
        self.folds: list[tuple[Place, list[Place]]] = []

    def words(self) -> list[int]:
        found = [len(self.sends)]
        for source, targets in self.sends.items():
            found += [*source, len(targets), *(word for target in targets for word in target)]
        found += [len(self.told), *self.told, len(self.awaited), *self.awaited, len(self.folds)]
        for target, operands in self.folds:
            found += [*target, len(operands), *(word for operand in operands for word in operand)]
        return found


class _Steps:
    """All that is done with one chunk; `cuts` are the rounds with which a stage begins."""

    def __init__(
        self, rank: int, cuts: Sequence[int], places: Mapping[Piece, Place], arenas: Sequence[Mapping[Piece, int]]
    ) -> None:
        self._rank, self._cuts, self._places, self._arenas = rank, cuts, places, arenas
        self._steps: dict[int, _Step] = {}

    def move(self, moves: Sequence[Transfer]) -> None:
        """Add messages."""
        for move in moves:
            step = self._steps.setdefault(bisect_right(self._cuts, move.round), _Step())
            if move.src == self._rank:
                source = self._places[move.src_slot, move.chunk]
                there = self._arenas[move.dst][move.dst_slot, move.chunk]
                step.sends.setdefault(source, []).append((move.dst, there))
                step.told[move.dst] = None
            else:
                step.awaited[move.src] = None

    def fold(self, folds: Sequence[Combine], results: Sequence[tuple[Piece, Place]]) -> None:
        """Add folds, after the messages, and what becomes of the result.

        A fold that is the last of all that is done writes the result itself: nothing reads it from then on, nor the
        caller's value, which may lie there too.
        """
        told = [(fold, self._steps.setdefault(bisect_right(self._cuts, fold.round), _Step())) for fold in folds]
        last = max(self._steps, default=0)
        copies = dict(results)
        for fold, step in told:
            piece = fold.out_slot, fold.chunk
            place = self._places[piece]
            if fold is folds[-1] and step is self._steps[last]:
                place = copies.pop(piece, place)
            step.folds.append((place, [self._places[slot, fold.chunk] for slot in fold.operands]))
        if copies:
            some = [(target, [self._places[piece]]) for piece, target in copies.items()]
            self._steps.setdefault(last, _Step()).folds += some

    def words(self) -> list[int]:
        """The number of steps, then these."""
        found = [len(self._steps)]
        for stage in sorted(self._steps):
            found += [stage, *self._steps[stage].words()]
        return found
