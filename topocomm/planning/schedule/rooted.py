"""Schedules for one root out of an allreduce: what it needs for the root's result, or what spreads the root's value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topocomm.planning.schedule.place_numbers import number_places
from topocomm.planning.schedule.schedule import IntTable, Schedule, spans
from topocomm.planning.schedule.schedule_builder import schedule_of_columns


def reduce_of(allreduce: Schedule, root: int) -> Schedule:
    """Return the messages and combines of an allreduce without `repeat` that the root's result depends on."""
    places = number_places(allreduce)
    needed = np.zeros(places.count, dtype=bool)
    own = allreduce.outputs[:, 0] == root
    needed[places.outputs[own]] = True
    moves, folds = (_by_round(table, allreduce.rounds) for table in (allreduce.transfers, allreduce.combines))
    for round_ in reversed(range(allreduce.rounds)):
        low, high = allreduce.operand_starts[[folds[round_], folds[round_ + 1]]]
        read, written, before = places.operands[low:high], places.folded[places.fold_of[low:high]], -1
        while before < (before := int(needed[read].sum())):  # combines of a round may read each other's results
            needed[read[needed[written]]] = True
        sent, received = (side[moves[round_] : moves[round_ + 1]] for side in (places.sent, places.received))
        needed[sent[needed[received]]] = True
    kept = np.flatnonzero(needed[places.folded])
    starts, where = spans(allreduce.operand_starts[kept].astype(np.int64), np.diff(allreduce.operand_starts)[kept])
    return replace(
        allreduce,
        outputs=allreduce.outputs[own],
        transfers=allreduce.transfers.compress(needed[places.received], axis=0),
        combines=allreduce.combines.take(kept, axis=0),
        operands=allreduce.operands[where],
        operand_starts=starts.astype(np.int32),
    )


def broadcast_of(allreduce: Schedule, root: int) -> Schedule:
    """Return the messages of an allreduce without `repeat` that first bring a rank something of the root's value."""
    count = len(allreduce.chunks)
    slot = np.full((allreduce.ranks, count), -1)
    slot[root], first = 0, np.empty(slot.size, dtype=np.int64)
    moves, kept = _by_round(allreduce.transfers, allreduce.rounds), []
    for round_ in range(allreduce.rounds):
        table = allreduce.transfers[moves[round_] : moves[round_ + 1]].astype(np.int64)
        src, dst, chunk = table[:, 1], table[:, 3], table[:, 5]
        table = table.compress((slot[src, chunk] >= 0) & (slot[dst, chunk] < 0), axis=0)
        places, numbers = table[:, 3] * count + table[:, 5], np.arange(len(table))
        first[places[::-1]] = numbers[::-1]
        table = table.compress(first[places] == numbers, axis=0)
        table[:, 2], table[:, 4] = slot[table[:, 1], table[:, 5]], 1
        slot[table[:, 3], table[:, 5]] = 1
        kept.append(table)
    ranks, chunks = np.indices(slot.shape).reshape(2, -1)
    made = schedule_of_columns(
        allreduce.ranks,
        allreduce.chunks,
        inputs=np.array([[root, 0, root]]),
        outputs=np.stack([ranks, slot.ravel(), chunks], 1),
        transfers=np.concatenate(kept),
        combines=np.zeros((0, 4), np.int64),
        operands=[],
    )
    return replace(made, paths=allreduce.paths)


def _by_round(table: IntTable, rounds: int) -> list[int]:
    """The first row of each round, and the number of rows."""
    starts: list[int] = np.searchsorted(table[:, 0], np.arange(rounds + 1)).tolist()
    return starts
