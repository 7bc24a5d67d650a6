"""Schedules made of schedules, for the same computation: pipelined or not, with other ranks, with other rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topocomm.planning.schedule.place_numbers import number_places
from topocomm.planning.schedule.schedule import IntTable, Repeat, Rows, Schedule, row_keys, slice_order, spans
from topocomm.planning.schedule.traffic import busiest_port


def unrolled(schedule: Schedule) -> Schedule:
    """Return the same computation without `repeat`: every slice of a chunk is a chunk of its own.

    Slice i of chunk c is chunk c * count + i, so chunks abut; its rounds are those of the schedule, i * stagger_rounds
    later. In a round the entries of earlier slices come first; entries of several slices from one source to one
    destination over one path are one message. A verified schedule without `repeat` is returned as it is.
    """
    if schedule.repeat is None:
        return schedule
    count, stagger = schedule.repeat.count, schedule.repeat.stagger_rounds
    transfers, _ = _sliced(schedule.transfers, schedule.repeat, chunk_column=5)
    combines, folds = _sliced(schedule.combines, schedule.repeat, chunk_column=3)
    starts, where = spans(schedule.operand_starts[folds].astype(np.int64), np.diff(schedule.operand_starts)[folds])
    outputs = np.repeat(schedule.outputs, count, axis=0)
    outputs[:, 2] = outputs[:, 2] * count + np.tile(np.arange(count, dtype=np.int32), len(schedule.outputs))
    return replace(
        schedule,
        rounds=schedule.rounds + (count - 1) * stagger,
        chunks=tuple(map(tuple, slice_chunks(schedule).tolist())),
        outputs=outputs,
        transfers=transfers,
        combines=combines,
        operands=schedule.operands[where],
        operand_starts=starts.astype(np.int32),
        owners=tuple(np.repeat(np.asarray(schedule.owners, dtype=np.int64), count).tolist()),
        repeat=None,
    )


def slice_chunks(schedule: Schedule) -> Rows:
    """Return int64 [chunks * slices, 2]: first row and rows of every slice of each chunk, or without `repeat` its."""
    count = 1 if schedule.repeat is None else schedule.repeat.count
    first, rows = np.asarray(schedule.chunks, dtype=np.int64).reshape(-1, 2).T[:, :, None]
    steps = np.arange(count + 1)
    edges = first + rows // count * steps + rows % count * steps // count  # as `split_rows`, and never too large
    chunks: Rows = np.stack([edges[:, :-1], np.diff(edges)], axis=2).reshape(-1, 2)
    return chunks


def _sliced(table: IntTable, repeat: Repeat, chunk_column: int) -> tuple[IntTable, Rows]:
    """The table repeated for every slice, with its rounds (column 0) and chunks, by round; and the row of each."""
    row, slices = slice_order(table, repeat)
    every = table.take(row, axis=0)
    every[:, 0] += (slices * repeat.stagger_rounds).astype(np.int32)
    every[:, chunk_column] = every[:, chunk_column] * repeat.count + slices
    return every, row


def relabelled(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Return the schedule with `order[i]` in place of rank i, for a collective in which all ranks are alike."""
    names = np.asarray(order, dtype=np.int32)

    def renamed(table: IntTable, *columns: int) -> IntTable:
        table = table.copy()
        for column in columns:
            table[:, column] = names[table[:, column]]
        return table

    inputs, outputs = renamed(schedule.inputs, 0, 2), renamed(schedule.outputs, 0)
    return replace(
        schedule,
        inputs=inputs[np.argsort(inputs[:, 0], kind="stable")],
        outputs=outputs[np.argsort(outputs[:, 0], kind="stable")],
        transfers=renamed(schedule.transfers, 1, 3),
        combines=renamed(schedule.combines, 1),
    )


def split_rounds(schedule: Schedule, endpoints: Sequence[str], ports: int) -> Schedule:
    """Return the schedule with rounds cut so that no endpoint has over `ports` messages in one.

    Needed where several ranks share an endpoint. A slot is read only in rounds after it was written, so cutting a
    round changes no value. Slices of a pipelined schedule that meet at a port are cut apart one by one.
    """
    if busiest_port(schedule, endpoints) <= ports:
        return schedule
    schedule = unrolled(schedule)
    used: defaultdict[tuple[str, str, int], set[tuple[int, int, int]]] = defaultdict(set)
    rounds: list[int] = []  # of the transfers
    last = np.zeros(schedule.rounds, dtype=np.int32)
    after = 0
    for round_, (moves, _) in enumerate(schedule.by_round()):
        used.clear()  # all of this round goes behind those before
        for move in moves:
            message, at = (move.src, move.dst, move.path), after
            while True:
                sides = used["send", endpoints[move.src], at], used["receive", endpoints[move.dst], at]
                if all(message in side or len(side) < ports for side in sides):
                    break
                at += 1
            for side in sides:
                side.add(message)
            rounds.append(at)
        last[round_] = max([after, *rounds[len(rounds) - len(moves) :]])
        after = int(last[round_]) + 1
    transfers, combines = schedule.transfers.copy(), schedule.combines.copy()
    transfers[:, 0], combines[:, 0] = rounds, last[combines[:, 0]]
    ends = [int(table[:, 0].max()) + 1 for table in (transfers, combines) if len(table)]
    order = np.argsort(transfers[:, 0], kind="stable")
    return replace(schedule, rounds=max(ends), transfers=transfers[order], combines=combines)


def joined_rounds(schedule: Schedule, endpoints: Sequence[str], ports: int) -> Schedule:
    """Return the schedule with successive rounds joined where none of them reads what another wrote.

    No endpoint gets over `ports` messages in a joined round, so a flat exchange in P-1 one-port rounds takes
    ceil((P-1) / ports). A pipelined schedule is returned as it is.
    """
    if schedule.repeat is not None:
        return schedule

    table, places = schedule.transfers, number_places(schedule)
    numbers: dict[str, int] = {}
    ends = np.array([numbers.setdefault(end, len(numbers)) for end in endpoints], dtype=np.int64)
    message = row_keys(table[:, 1], table[:, 3], table[:, 6])
    rounds = np.arange(schedule.rounds + 1)
    moves, folds = (np.searchsorted(each[:, 0], rounds).tolist() for each in (table, schedule.combines))
    joined, last = np.zeros(schedule.rounds, dtype=np.int32), 0
    written_in = np.full(places.count, -1)
    grouped = np.zeros(0, dtype=np.int64)  # a transfer of each message of the joined round
    for round_ in range(schedule.rounds):
        own = np.arange(moves[round_], moves[round_ + 1])
        own = own[np.unique(message[own], return_index=True)[1]]
        both = np.concatenate([grouped, own[~np.isin(message[own], message[grouped])]])
        busiest = max((int(np.bincount(ends[table[both, side]]).max()) for side in (1, 3) if len(both)), default=0)
        here, made = slice(moves[round_], moves[round_ + 1]), slice(folds[round_], folds[round_ + 1])
        too_many = len(own) and len(grouped) and busiest > ports
        if too_many or (written_in[places.sent[here]] == last).any():
            last, both = last + 1, own
        joined[round_], grouped = last, both
        written_in[places.received[here]] = written_in[places.folded[made]] = last
    transfers, combines = schedule.transfers.copy(), schedule.combines.copy()
    transfers[:, 0], combines[:, 0] = joined[transfers[:, 0]], joined[combines[:, 0]]
    return replace(schedule, rounds=last + 1 if schedule.rounds else 0, transfers=transfers, combines=combines)


def sliced(schedule: Schedule, slices: int, stagger_rounds: int) -> Schedule:
    """Return a schedule without `repeat` as a pipeline; of fewer slices where a chunk has fewer rows."""
    count = min(slices, most_slices(schedule))
    return replace(schedule, repeat=Repeat(count, stagger_rounds)) if count > 1 else schedule


def in_phases(schedule: Schedule, slices: int) -> Schedule:
    """Return a schedule without `repeat` as a pipeline whose slices all have a round before any has the next.

    No port waits then for what is on its way while it could send of another slice, and while no bytes pass links with a
    long latency the next slice passes those inside; `sliced` with a stagger of a round puts what a slice sends on
    before what the next one begins with.
    """
    count = min(slices, most_slices(schedule))
    if count == 1:
        return schedule
    transfers, combines = schedule.transfers.copy(), schedule.combines.copy()
    transfers[:, 0] *= count
    combines[:, 0] *= count
    rounds = max(0, schedule.rounds - 1) * count + 1
    return replace(schedule, rounds=rounds, transfers=transfers, combines=combines, repeat=Repeat(count, 1))


def most_slices(schedule: Schedule) -> int:
    """Return the rows of the shortest chunk that has rows, since every slice has one or more; 1 if none has any."""
    return min((rows for _, rows in schedule.chunks if rows), default=1)
