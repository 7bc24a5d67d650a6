"""Long pipelines by their first slices: once all rounds of a slice are under way, every slice more adds one period."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Repeat, Schedule
from topocomm.planning.schedule.transforms import most_slices

STEADY_SLICES = 6
"""Slices that start in the steady state, from whose second half the period is taken."""
LEAST_ROWS = 64
"""Rows of the shortest slice: with fewer, slices differ by too much to be one period."""


def head_of(schedule: Schedule) -> Schedule:
    """Return the pipeline of the first slices, from which `whole_us` knows the time of all.

    A schedule that is no pipeline, has few slices more than that, or so few rows that slices differ, is returned as it
    is. The head is for costs alone: it moves the rows of its slices only, which have the mean length.
    """
    repeat = schedule.repeat
    if repeat is None or not repeat.stagger_rounds:
        return schedule
    slices = -(-schedule.rounds // repeat.stagger_rounds) + STEADY_SLICES
    if slices + STEADY_SLICES >= repeat.count or most_slices(schedule) < LEAST_ROWS * repeat.count:
        return schedule
    chunks = [(first, -(-rows * slices // repeat.count)) for first, rows in schedule.chunks]
    return replace(schedule, chunks=tuple(chunks), repeat=Repeat(slices, repeat.stagger_rounds))


def whole_us(schedule: Schedule, head: Schedule, total_us: float, rounds: Ints, arrival_us: Floats) -> float:
    """Return the time of a pipeline from that of its head: a period for every slice that the head lacks.

    The period is the time between the last arrivals of rounds in the steady state, one stagger apart.

    Args:
        schedule: The pipeline.
        head: Its `head_of`.
        total_us: The time of the head; infinite where it is not known.
        rounds: int64 [n]: the round of each message of the head.
        arrival_us: float64 [n]: when it arrives.
    """
    if head is schedule or schedule.repeat is None or head.repeat is None or not total_us < np.inf:
        return total_us
    stagger, lacking = head.repeat.stagger_rounds, schedule.repeat.count - head.repeat.count
    last = stagger * (head.repeat.count - 1)  # the round in which the last slice begins
    half = STEADY_SLICES // 2
    until_us = [arrival_us[rounds <= round_].max() for round_ in (last - half * stagger, last)]
    return total_us + lacking * float(until_us[1] - until_us[0]) / half
