"""Pipelined schedules: the rounds run for one slice of every chunk after the other."""

from __future__ import annotations

from dataclasses import replace

from topocomm.planning.schedule.schedule import Repeat, Schedule


def sliced(schedule: Schedule, slices: int, stagger_rounds: int) -> Schedule:
    """The schedule in slices that follow each other so many rounds apart; in fewer where a chunk has fewer rows.

    Args:
        schedule: One without `repeat`.
        slices: How many.
        stagger_rounds: Between the starts of two slices.
    """
    count = min(slices, most_slices(schedule))
    return replace(schedule, repeat=Repeat(count, stagger_rounds)) if count > 1 else schedule


def most_slices(schedule: Schedule) -> int:
    """Rows of the shortest chunk that has rows, since every slice of it has one or more; 1 where none has any."""
    return min((rows for _, rows in schedule.chunks if rows), default=1)
