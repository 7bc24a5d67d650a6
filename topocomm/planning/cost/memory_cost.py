"""What a schedule costs ranks that share one memory: bytes read and written there, and turns to wait for each other.

Nothing is sent between such ranks, so the models of links say little about them. A rank writes the part of its value
that others read, folds read their operands where they lie and write their results, and what no fold of its own made is
copied out. Where ranks are more than cores they work one after the other, and each wait costs the change to another
process. The rates are assumptions: they order candidates, and no figure of a plan comes from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from topocomm.planning.program.slot_memory import output_pieces, stages_of
from topocomm.planning.schedule.schedule import Schedule, input_pieces

CACHED_BYTES = 1 << 20
CACHED_BYTES_PER_US = 16_000.0
MEMORY_BYTES_PER_US = 6_000.0
WAIT_US = 2.5
"""Of ranks with a core each: a line goes from one core to another, and back."""
SWITCH_US = 2.0
"""Of ranks that share cores: one process gives way to another."""


@dataclass(frozen=True)
class _Work:
    moved_bytes: int
    waits: int


def memory_us(schedule: Schedule, *, row_bytes: int, cores: int) -> float:
    """Time that orders candidates for ranks of one host, in us.

    Args:
        schedule: A verified schedule.
        row_bytes: Bytes of one row.
        cores: Cores that the ranks have together.
    """
    work = [_rank_work(schedule, rank, row_bytes) for rank in range(schedule.ranks)]
    turns = max(1.0, schedule.ranks / cores)
    waits = max(one.waits for one in work)
    payload_bytes = schedule.rows * row_bytes
    rate = CACHED_BYTES_PER_US if payload_bytes * schedule.ranks <= CACHED_BYTES else MEMORY_BYTES_PER_US
    busiest = max(one.moved_bytes for one in work)
    everything = sum(one.moved_bytes for one in work)
    moving_us = max(busiest, everything / cores) / rate
    return moving_us + waits * (WAIT_US if turns == 1.0 else SWITCH_US * turns)


def _rank_work(schedule: Schedule, rank: int, row_bytes: int) -> _Work:
    size = [rows * row_bytes for _, rows in schedule.chunks]
    stages = stages_of(schedule, rank)
    read = {piece for stage in stages for pieces in stage.sends.values() for piece in pieces}
    outputs = set(output_pieces(schedule, rank))
    made = {(fold.out_slot, fold.chunk) for stage in stages for fold in stage.folds}
    inputs = input_pieces(schedule, rank)
    moved = sum(2 * size[chunk] for _, chunk in {piece for piece in inputs if piece in read or piece in outputs})
    moved += sum((len(fold.operands) + 1) * size[fold.chunk] for stage in stages for fold in stage.folds)
    moved += sum(2 * size[chunk] for slot, chunk in outputs if (slot, chunk) not in made or (slot, chunk) in read)
    return _Work(moved, sum(1 for stage in stages if stage.receives))
