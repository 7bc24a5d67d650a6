"""A time that orders schedules of ranks that share one memory, where nothing is sent."""

from __future__ import annotations

from topocomm.planning.program.slot_memory import output_pieces, stages_of
from topocomm.planning.schedule.schedule import Schedule, input_pieces

CACHED_BYTES = 1 << 20
"""Payload of all ranks together that stays in their caches; this and the next four are assumptions."""
CACHED_BYTES_PER_US, MEMORY_BYTES_PER_US = 16_000.0, 6_000.0
"""Copy rate of a core in its caches, and in memory."""
WAIT_US = 2.5
"""Wait of a rank with a core of its own: a cache line goes to another core and back."""
SWITCH_US = 2.0
"""Wait of a rank that shares a core: a switch between processes."""


def memory_us(schedule: Schedule, *, row_bytes: int, cores: int) -> float:
    """Return a time that orders candidates for ranks of one host, in us; no figure of a plan comes from it.

    Such ranks send nothing: each writes the part of its value that others read, folds read operands in place and write
    their results, and results that no fold of the rank made are copied out. Ranks that share one of the `cores` work
    one after the other, and each wait costs a process switch.
    """
    work = [_memory_work(schedule, rank, row_bytes) for rank in range(schedule.ranks)]
    turns = max(1.0, schedule.ranks / cores)
    waits = max(count for _, count in work)
    payload_bytes = schedule.rows * row_bytes
    rate = CACHED_BYTES_PER_US if payload_bytes * schedule.ranks <= CACHED_BYTES else MEMORY_BYTES_PER_US
    busiest_bytes, all_bytes = max(moved for moved, _ in work), sum(moved for moved, _ in work)
    moving_us = max(busiest_bytes, all_bytes / cores) / rate
    return moving_us + waits * (WAIT_US if turns == 1.0 else SWITCH_US * turns)


def _memory_work(schedule: Schedule, rank: int, row_bytes: int) -> tuple[int, int]:
    """(bytes that a rank reads and writes, stages in which it waits)."""
    size = [rows * row_bytes for _, rows in schedule.chunks]
    stages = stages_of(schedule, rank)
    folds = [fold for stage in stages for fold in stage.folds]
    read = {piece for stage in stages for pieces in stage.sends.values() for piece in pieces}
    outputs = set(output_pieces(schedule, rank))
    folded = {(fold.out_slot, fold.chunk) for fold in folds}
    moved = sum(2 * size[piece[1]] for piece in set(input_pieces(schedule, rank)) & (read | outputs))
    moved += sum((len(fold.operands) + 1) * size[fold.chunk] for fold in folds)
    moved += sum(2 * size[piece[1]] for piece in outputs if piece not in folded or piece in read)
    return moved, sum(1 for stage in stages if stage.receives)
