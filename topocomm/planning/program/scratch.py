"""Scratch of a schedule: bytes beside the caller's own value, on the rank that needs most.

`slot_memory` assigns offsets rank by rank. Where all pieces have one size its first fit leaves no gaps, so the memory
of a rank is the most pieces alive at once, which is counted for all ranks together. Else first fit is followed, in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.cost.messages import messages_of
from topocomm.planning.program.slot_memory import rank_program, slot_sizes
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.place_numbers import PlaceNumbers, number_places
from topocomm.planning.schedule.schedule import Repeat, Schedule, input_table
from topocomm.planning.schedule.transforms import slice_chunks, unrolled


def scratch_bytes(
    schedule: Schedule, chunk_bytes: Callable[[int], int], align: int, places: PlaceNumbers | None = None
) -> int:
    """Return the maximum over ranks of the arena's bytes less those of the inputs, at least 0.

    `chunk_bytes` returns the packed bytes of a chunk by its rows; offsets are multiples of `align` bytes. `places` are
    those of the schedule, of a pipeline of its rounds, where they are known. Of a pipeline each slice of a chunk is
    one.
    """
    slices = 1 if schedule.repeat is None else schedule.repeat.count
    lengths, which = np.unique(slice_chunks(schedule)[:, 1], return_inverse=True)
    packed = np.array([chunk_bytes(rows) for rows in lengths.tolist()], dtype=np.int64)[which]
    sizes = slot_sizes(packed, align, slices * len(schedule.transfers))
    apart = np.unique(sizes[sizes > 0]).tolist()
    if not apart:
        return 0
    if len(apart) == 1:
        arena_bytes = _most_alive(schedule, places or number_places(schedule), sizes > 0) * apart[0]
    else:
        once = unrolled(schedule)
        arena_bytes = _arena_bytes(once, places if places and once is schedule else number_places(once), sizes)
    inputs = input_table(schedule)
    of_chunk = packed.reshape(-1, slices).sum(axis=1)
    own_bytes = np.bincount(inputs[:, 0], of_chunk[inputs[:, 2]], schedule.ranks).astype(np.int64)
    return max(0, int((arena_bytes - own_bytes).max()))


def _most_alive(schedule: Schedule, pieces: PlaceNumbers, counted: NDArray[np.bool_]) -> Ints:
    """int64 [ranks]: most pieces of the counted chunks that are alive at once, by the rules of `slot_memory`.

    A piece lives from the stage that writes it to the last that reads it, inputs and results to the end; the result of
    a fold takes the place of an operand that nothing reads later. Of a pipeline `pieces` are those of its rounds, and
    `counted` says it of every slice of each chunk: it is followed slice by slice.
    """
    repeat = schedule.repeat or Repeat(1, 0)
    try:
        from topocomm.native._native import most_alive
    except ImportError:
        once = unrolled(schedule)
        return _most_alive_plainly(once, pieces if once is schedule else number_places(once), counted)
    most = np.zeros(schedule.ranks, dtype=np.int64)
    later = np.array([repeat.count, repeat.stagger_rounds])
    most_alive(*_columns(schedule, pieces), counted.view(np.uint8), later, _NONE, _NONE, most)
    return most


def _arena_bytes(schedule: Schedule, pieces: PlaceNumbers, sizes: Ints) -> Ints:
    """int64 [ranks]: bytes of each rank's arena, whose pieces take `sizes` by chunk, of a schedule without `repeat`."""
    try:
        from topocomm.native._native import most_alive
    except ImportError:
        programs = (rank_program(schedule, rank, sizes.item, 1) for rank in range(schedule.ranks))
        return np.array([program.arena_bytes for program in programs], dtype=np.int64)
    arena_bytes = np.zeros(schedule.ranks, dtype=np.int64)
    message = messages_of(schedule, sizes).of_transfer
    counted = np.ones(len(sizes), dtype=np.uint8)
    most_alive(*_columns(schedule, pieces), counted, np.array([1, 0]), message, sizes, arena_bytes)
    return arena_bytes


def _columns(schedule: Schedule, pieces: PlaceNumbers) -> tuple[NDArray[Any], ...]:
    """What the compiled part reads of a schedule."""
    rounds = np.arange(schedule.rounds + 1)
    return (
        *(np.searchsorted(table[:, 0], rounds) for table in (schedule.transfers, schedule.combines)),
        *map(np.ascontiguousarray, (schedule.transfers, schedule.combines, schedule.operand_starts)),
        *(pieces.sent, pieces.received, pieces.folded, pieces.operands, pieces.inputs, pieces.outputs),
        *(pieces.rank, pieces.chunk),
    )


def _most_alive_plainly(schedule: Schedule, pieces: PlaceNumbers, counted: NDArray[np.bool_]) -> Ints:
    """As `_most_alive`, without the compiled part, of a schedule without `repeat`."""
    of_move, of_arrival, of_fold = _stages(schedule, pieces)
    forever = int(of_move.max(initial=0)) + int(of_fold.max(initial=0)) + 1
    born = np.zeros(pieces.count, dtype=np.int64)
    born[pieces.received], born[pieces.folded] = of_arrival, of_fold
    last_fold = np.full(pieces.count, -1, dtype=np.int64)
    last_fold[pieces.operands] = pieces.fold_of  # in rising order: of several the last stays, as below
    folded_in = np.where(last_fold >= 0, of_fold[last_fold] if len(of_fold) else 0, -1)
    sent_in = np.full(pieces.count, -1, dtype=np.int64)
    sent_in[pieces.sent] = of_move
    sent_in[pieces.inputs] = sent_in[pieces.outputs] = forever
    dies = np.maximum(born, np.maximum(sent_in, folded_in))
    width = forever + 2
    at = pieces.rank * width
    born += at
    dies += at + 1
    if not counted.all():
        born, dies = (stages[counted[pieces.chunk]] for stages in (born, dies))
    alive = _counts(born, schedule.ranks, width) - _counts(dies, schedule.ranks, width)
    pair = np.diff(schedule.operand_starts) == 2
    leads = np.arange(len(pieces.operands)) == schedule.operand_starts[pieces.fold_of]
    may = leads | pair[pieces.fold_of]
    yields = may & (last_fold[pieces.operands] == pieces.fold_of) & (sent_in <= folded_in)[pieces.operands]
    inherits = np.zeros(len(pair), dtype=bool)
    inherits[pieces.fold_of[yields & counted[pieces.chunk[pieces.operands]]]] = True
    ranks = schedule.combines[inherits, 1].astype(np.int64)
    heirs = _counts(ranks * width + of_fold[inherits], schedule.ranks, width)
    most: Ints = (np.cumsum(alive, axis=1) - heirs).max(axis=1)
    return most


def _counts(places: Ints, ranks: int, width: int) -> Ints:
    """int64 [ranks, width]: occurrences of each place."""
    counts: Ints = np.bincount(places, minlength=ranks * width).reshape(ranks, width)
    return counts


def _stages(schedule: Schedule, pieces: PlaceNumbers) -> tuple[Ints, Ints, Ints]:
    """The stage of its rank in which each transfer is sent and arrives, and each combine is made (`slot_memory`)."""
    rounds = np.arange(schedule.rounds + 1)
    src, dst, fold_rank = schedule.transfers[:, 1], schedule.transfers[:, 3], schedule.combines[:, 1]
    moves, folds = (np.searchsorted(table[:, 0], rounds) for table in (schedule.transfers, schedule.combines))
    of_move, of_arrival = (np.zeros(len(src), dtype=np.int64) for _ in range(2))
    of_fold = np.zeros(len(fold_rank), dtype=np.int64)
    now = np.zeros(schedule.ranks, dtype=np.int64)
    folding = np.zeros(schedule.ranks, dtype=bool)
    arrived_in = np.full(pieces.count, -1, dtype=np.int64)
    for round_ in range(schedule.rounds):
        own = slice(moves[round_], moves[round_ + 1])
        begins = np.zeros(schedule.ranks, dtype=bool)
        begins[src[own]] = begins[dst[own]] = True
        begins &= folding
        begins[src[own][arrived_in[pieces.sent[own]] == now[src[own]]]] = True
        now[begins] += 1
        folding[begins] = False
        of_move[own], of_arrival[own] = now[src[own]], now[dst[own]]
        arrived_in[pieces.received[own]] = now[dst[own]]
        combined = slice(folds[round_], folds[round_ + 1])
        of_fold[combined] = now[fold_rank[combined]]
        folding[fold_rank[combined]] = True
    return of_move, of_arrival, of_fold


_NONE: Ints = np.zeros(0, dtype=np.int64)
