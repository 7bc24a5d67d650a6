"""Dataflow of a Schedule: the write that every read finds, traced through transfers as integer columns.

All events have a position in one order: the inputs, then round by round the transfers and the combines in the order
listed. A transfer reads the writes before its round, a combine those before its own position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.schedule.place_numbers import PlaceNumbers, number_places
from topocomm.planning.schedule.schedule import IntTable, Rows, Schedule, input_table

NOTHING = -1
"""Value number of a place that nothing wrote."""


@dataclass(frozen=True)
class Dataflow:
    """The value of every operand and output, by number: the pieces of `inputs` first, then the combines.

    Attributes:
        inputs: int32 [n, 4]: rank, slot, chunk and row of the schedule's `inputs`, as `input_table`.
        operands: int64 [m]: the value of every operand of the schedule.
        outputs: int64 [k]: the value of every output, NOTHING where nothing wrote its place.
    """

    inputs: IntTable
    operands: Rows
    outputs: Rows


def dataflow(schedule: Schedule, places: PlaceNumbers | None = None) -> Dataflow:
    """Return the values of a schedule whose columns are in range and in round order; `places` are its, where known.

    Raises:
        PlanError: A place is written twice, or read before it is written; or a combine has fewer than two operands.
            Of several faults the first in the order of events.
    """
    places = places or number_places(schedule)
    return _dataflow_compiled(schedule, places) or _dataflow_plainly(schedule, places)


def _dataflow_compiled(schedule: Schedule, places: PlaceNumbers) -> Dataflow | None:
    """As `dataflow`; None where nothing is compiled here, or the schedule has a fault."""
    try:
        from topocomm.native._native import trace_values
    except ImportError:
        return None
    rounds = np.arange(schedule.rounds + 1)
    operands, outputs = (np.empty(len(read), dtype=np.int64) for read in (places.operands, places.outputs))
    through = trace_values(
        *(np.searchsorted(table[:, 0], rounds) for table in (schedule.transfers, schedule.combines)),
        np.ascontiguousarray(schedule.operand_starts),
        *(places.inputs, places.sent, places.received, places.folded, places.operands, places.outputs),
        np.array([places.count]),
        operands,
        outputs,
    )
    return Dataflow(input_table(schedule), operands, outputs) if through else None


def _dataflow_plainly(schedule: Schedule, places: PlaceNumbers) -> Dataflow:
    """As `dataflow`, without the compiled part."""
    trace = _Trace(schedule, places)
    fault = min(trace.faults(), default=None)
    if fault is not None:
        raise PlanError(f"schedule: {fault[-1]}")
    source = np.arange(trace.events)
    source[trace.transfer_at] = trace.read_by_transfers
    while not np.array_equal(source, further := source[source]):  # a copy of a copy: chains are halved each time
        source = further
    values = np.full(trace.events + 1, NOTHING)  # the last entry is that of unwritten places
    values[: len(trace.inputs)] = np.arange(len(trace.inputs))
    values[trace.combine_at] = len(trace.inputs) + np.arange(len(schedule.combines))
    source = np.append(source, trace.events)
    return Dataflow(trace.inputs, values[source[trace.read_by_operands]], values[source[trace.read_by_outputs]])


class _Trace:
    """The positions of all `events`, and of the write that each read finds: `events` where nothing writes the place.

    The inputs come first. A transfer reads only what was written before `round_at`, the first event of its round;
    `operand_of` is the combine of every operand.
    """

    def __init__(self, schedule: Schedule, places: PlaceNumbers) -> None:
        self.schedule = schedule
        self.inputs = input_table(schedule)
        moves, folds, first = schedule.transfers, schedule.combines, len(self.inputs)
        self.events = first + len(moves) + len(folds)
        rounds = np.arange(schedule.rounds + 1)
        move_starts, fold_starts = (np.searchsorted(table[:, 0], rounds) for table in (moves, folds))
        folds_before = fold_starts[moves[:, 0]]
        self.transfer_at = first + np.arange(len(moves)) + folds_before
        self.round_at = first + (move_starts + fold_starts)[moves[:, 0]]
        self.combine_at = first + np.arange(len(folds)) + move_starts[1:][folds[:, 0]]
        self.operand_of = places.fold_of
        writes = np.empty(self.events, dtype=np.int64)
        writes[:first], writes[self.transfer_at], writes[self.combine_at] = (
            places.inputs,
            places.received,
            places.folded,
        )
        writer = np.full(places.count, self.events, dtype=np.int32)
        writer[writes[::-1]] = np.arange(self.events - 1, -1, -1)  # of several writes of one place the first stays
        self._again = np.flatnonzero(writer[writes] != np.arange(self.events))
        reads = places.sent, places.operands, places.outputs
        self.read_by_transfers, self.read_by_operands, self.read_by_outputs = (
            writer[places_read].astype(np.int64) for places_read in reads
        )

    def faults(self) -> Iterator[tuple[int, int, int, str]]:
        """Yield (position, order among the faults of one event, row, words) of the first fault of each kind."""
        moves, folds, operands = self.schedule.transfers, self.schedule.combines, self.schedule.operands
        for row in np.flatnonzero(self.read_by_transfers >= self.round_at)[:1].tolist():
            round_, rank, slot, _, _, chunk, _ = moves[row].tolist()
            yield int(self.round_at[row]), 0, row, _unwritten(round_, rank, slot, chunk)
        for row in np.flatnonzero(np.diff(self.schedule.operand_starts) < 2)[:1].tolist():
            round_, rank, _, _ = folds[row].tolist()
            what = f"round {round_}: a combine of rank {rank} has fewer than two operands"
            yield int(self.combine_at[row]), 1, row, what
        folded_at = self.combine_at[self.operand_of]
        for row in np.flatnonzero(self.read_by_operands >= folded_at)[:1].tolist():
            round_, rank, _, chunk = folds[self.operand_of[row]].tolist()
            yield int(folded_at[row]), 2, row, _unwritten(round_, rank, int(operands[row]), chunk)
        for at in self._again[:1].tolist():
            rounds = np.empty(self.events, dtype=np.int32)
            rounds[self.transfer_at], rounds[self.combine_at] = moves[:, 0], folds[:, 0]
            when = f"round {rounds[at]}" if at >= len(self.inputs) else "inputs"
            rank, slot, chunk = self._places_written()[at].tolist()
            yield at, 3, at, f"{when}: rank {rank} slot {slot} chunk {chunk} is written twice"

    def _places_written(self) -> IntTable:
        """(rank, slot, chunk) of every write, by position."""
        places = np.empty((self.events, 3), dtype=np.int32)
        places[: len(self.inputs)] = self.inputs[:, :3]
        places[self.transfer_at] = self.schedule.transfers[:, 3:6]
        places[self.combine_at] = self.schedule.combines[:, 1:]
        return places


def _unwritten(round_: int, rank: int, slot: int, chunk: int) -> str:
    return f"round {round_}: rank {rank} reads slot {slot} chunk {chunk}, which nothing wrote before"
