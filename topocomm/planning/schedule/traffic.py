"""Traffic of a schedule, counted from its columns and never unrolled: messages, rounds, rows, the busiest port."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.schedule.schedule import IntTable, Repeat, Rows, Schedule, row_keys


def busiest_port(schedule: Schedule, endpoints: Sequence[str] = ()) -> int:
    """Return the most messages that an endpoint sends, or receives, in one round, over all slices of a pipeline.

    Without `endpoints` every rank has its own.
    """
    if not len(schedule.transfers):
        return 0
    numbers: dict[str, int] = {}
    ends = np.asarray([numbers.setdefault(end, len(numbers)) for end in endpoints or map(str, range(schedule.ranks))])
    messages = schedule.transfers[:, [0, 1, 3, 6]].astype(np.int64)
    messages = messages[np.unique(row_keys(*messages.T), return_index=True)[1]]
    repeat = schedule.repeat
    if repeat is not None and repeat.stagger_rounds:  # this many slices are under way at once, at most
        slices = min(repeat.count, -(-schedule.rounds // repeat.stagger_rounds))
        later = np.repeat(np.arange(slices) * repeat.stagger_rounds, len(messages))
        messages = np.tile(messages, (slices, 1))
        messages[:, 0] += later
        messages = messages[np.unique(row_keys(*messages.T), return_index=True)[1]]
    ports = [row_keys(messages[:, 0], ends[messages[:, side]]) for side in (1, 2)]
    return max(int(np.unique(port, return_counts=True)[1].max()) for port in ports)


def count_messages(schedule: Schedule) -> tuple[int, int]:
    """Return (rounds that have a transfer, messages); of a pipeline those of the unrolled schedule."""
    table, repeat = schedule.transfers, schedule.repeat or Repeat(1, 0)
    return (
        _count_shifted(np.zeros(len(table), dtype=np.int64), table[:, 0], repeat),
        _count_shifted(row_keys(table[:, 1], table[:, 3], table[:, 6]), table[:, 0], repeat),
    )


def _count_shifted(keys: Rows, rounds: IntTable, repeat: Repeat) -> int:
    """Number of distinct (key, round) when each occurs `count` times, `stagger_rounds` apart."""
    stagger = repeat.stagger_rounds or max(int(rounds.max(initial=0)), 1) + 1
    count = repeat.count if repeat.stagger_rounds else 1
    trains = row_keys(keys, rounds % stagger)  # entries that can coincide when shifted
    first = np.unique(row_keys(trains, rounds // stagger), return_index=True)[1]
    gaps, together = np.diff(rounds[first] // stagger), np.diff(trains[first]) == 0
    return count * len(first) - int(np.maximum(count - gaps[together], 0).sum())


def rows_sent(schedule: Schedule) -> int:
    """Return the rows of the payload that all messages carry; the slices of a pipeline divide the rows."""
    times = np.bincount(schedule.transfers[:, 5], minlength=len(schedule.chunks)).tolist()
    return sum(count * rows for count, (_, rows) in zip(times, schedule.chunks, strict=True))
