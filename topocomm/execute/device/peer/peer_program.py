"""One rank's part of a plan in the words of the peer kernel: where every piece lies, and what is done in which order.

What a rank receives is written by others, who may be a stage ahead of it. So no place of an arena is used twice in a
call: what others write comes first, where all ranks compute its places, then what the rank folds itself.

Messages are taken together in stages, which are the same rounds on all ranks: no rank sends in a stage what it receives
or folds in that stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.execute.device.device_engine import message_bytes
from topocomm.execute.device.device_library import ALIGNMENT_BYTES
from topocomm.execute.host.call_engine import Work
from topocomm.planning.program.slot_memory import common_cuts, output_pieces
from topocomm.planning.schedule.schedule import Piece, input_pieces

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
        (slot, chunk): (OUTPUT, work.result.place(work.parts[chunk][0]))
        for slot, chunk in output_pieces(schedule, rank)
    }
    spaces = [*(places[piece] for piece in inputs), *results.values()]
    codes = []
    for (_, rows), steps in zip(work.parts, _steps(work, cuts, places, arenas, results), strict=True):
        code = [rows, *work.layout.addresses(0, rows), len(steps) if rows else 0]
        for stage in sorted(steps) if rows else ():
            code += [stage, *steps[stage].words()]
        codes.append(code)
    receivers, senders = message_bytes(work)
    head = [len(receivers), *sorted(receivers)]
    starts = np.cumsum([len(head) + len(codes), *map(len, codes)])[:-1].tolist()
    several = {len(fold.operands) for fold in schedule.combines_of(rank)} - {1}
    return PeerProgram(
        words=np.array([*head, *starts, *chain.from_iterable(codes)], np.int32),
        stages=len(cuts) + 1,
        arena_bytes=arena_bytes,
        receivers=receivers,
        senders=senders,
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


class _Step:
    def __init__(self) -> None:
        self.sends: dict[Place, list[tuple[int, int]]] = {}
        self.told: dict[int, None] = {}
        self.awaited: dict[int, None] = {}
        self.folds: list[tuple[Place, list[Place]]] = []

    def words(self) -> list[int]:
        words = [len(self.sends)]
        for source, targets in self.sends.items():
            words += [*source, len(targets), *chain.from_iterable(targets)]
        words += [len(self.told), *self.told, len(self.awaited), *self.awaited, len(self.folds)]
        for target, operands in self.folds:
            words += [*target, len(operands), *chain.from_iterable(operands)]
        return words


def _steps(
    work: Work,
    cuts: Sequence[int],
    places: Mapping[Piece, Place],
    arenas: Sequence[Mapping[Piece, int]],
    results: Mapping[Piece, Place],
) -> list[dict[int, _Step]]:
    """Return what is done with every chunk, by stage; `cuts` are the rounds with which a stage begins.

    The fold that is the last of all that is done with a chunk writes the result itself: nothing reads it from then on,
    nor the caller's value, which may lie there too.
    """
    rank = work.rank
    chunks: list[dict[int, _Step]] = [defaultdict(_Step) for _ in work.parts]
    for move in work.schedule.transfers_of(rank):
        step = chunks[move.chunk][bisect_right(cuts, move.round)]
        if move.src == rank:
            target = move.dst, arenas[move.dst][move.dst_slot, move.chunk]
            step.sends.setdefault(places[move.src_slot, move.chunk], []).append(target)
            step.told[move.dst] = None
        else:
            step.awaited[move.src] = None
    folds = [(fold, chunks[fold.chunk][bisect_right(cuts, fold.round)]) for fold in work.schedule.combines_of(rank)]
    last_folds = {fold.chunk: fold for fold, _ in folds}
    last_stages = [max(steps, default=0) for steps in chunks]
    copies = dict(results)
    for fold, step in folds:
        chunk = fold.chunk
        piece = fold.out_slot, chunk
        place = places[piece]
        if fold is last_folds[chunk] and step is chunks[chunk][last_stages[chunk]]:
            place = copies.pop(piece, place)
        step.folds.append((place, [places[slot, chunk] for slot in fold.operands]))
    for (slot, chunk), place in copies.items():
        chunks[chunk][last_stages[chunk]].folds.append((place, [places[slot, chunk]]))
    return chunks
