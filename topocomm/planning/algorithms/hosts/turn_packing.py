"""Turns of messages in a period, so that no port and no link that a message needs for itself has two at once.

The messages are those of one slice of a pipeline; what a message forwards may have come in an earlier period, so that
turns need no order. Each message goes to the first turn that is free; where none is, it displaces those that are
in its way, as in iterative modulo scheduling (Rau 1994), and the period grows where that does not end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.shared_results import SharedResults

MOST_MORE = 128
"""Messages placed before a period is given up, more than there are."""
NOBODY = -1
"""Holder of a turn that is free."""
GROWTH = 16
"""A period that is given up grows by this part of itself."""
_known: SharedResults[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], tuple[Ints, int]] = SharedResults(most=64)
"""By rows and durations: a program plans many payloads for hosts of one kind."""
SAME = 1e-6
"""Part by which rates and times may differ that are equal."""


def rows_of(src: Ints, dst: Ints, routes: Routes, link_gb_per_s: Floats, ranks: int) -> list[tuple[int, ...]]:
    """Return the ports that every message holds, and the links that it needs, as numbers.

    A link that carries k messages at their rates counts as k, of which each message needs one; not where fewer ranks
    send over it, or get something, at once.
    """
    rows = [[src, ranks + dst] for src, dst in zip(src.tolist(), dst.tolist(), strict=True)]
    of = np.repeat(np.arange(len(src)), routes.hops)
    for link in np.unique(routes.links).tolist():
        over = of[routes.links == link]
        at_once = int(link_gb_per_s[link] / routes.gb_per_s[over].max() + SAME)
        if at_once < min(len(np.unique(side[over])) for side in (src, dst)):
            for index, message in enumerate(over.tolist()):
                rows[message].append(2 * ranks + len(link_gb_per_s) * (index % at_once) + link)
    return [tuple(own) for own in rows]


def packed_turns(rows: Sequence[tuple[int, ...]], durations: Sequence[int]) -> tuple[Ints, int]:
    """Return (the turn in which each message begins, length of the period in turns), kept for the next who asks.

    Args:
        rows: For each message, the numbers of the ports and links that it needs for itself.
        durations: For each message, how many turns in a row, at least 1.
    """
    return _known.get((tuple(rows), tuple(durations)), lambda: _packed(rows, durations))


def least_period(rows: Sequence[tuple[int, ...]], durations: Sequence[int]) -> int:
    """Return the turns of the port or link that needs most, of `packed_turns`: no period is shorter."""
    load: dict[int, int] = {}
    for own, turns in zip(rows, durations, strict=True):
        for row in own:
            load[row] = load.get(row, 0) + turns
    return max(load.values(), default=1)


def _packed(rows: Sequence[tuple[int, ...]], durations: Sequence[int]) -> tuple[Ints, int]:
    period, number = least_period(rows, durations), dict[int, int]()
    needed = [[number.setdefault(row, len(number)) for row in own] for own in rows]
    try:
        from topocomm.native._native import pack_turns
    except ImportError:
        while (starts := _Period(needed, durations, period).packed()) is None:
            period += max(1, period // GROWTH)
        turns = np.array(starts, dtype=np.int64)
    else:
        first = np.cumsum([0, *map(len, needed)])
        every, held = np.array([row for own in needed for row in own], np.int64), np.array(durations, np.int64)
        steps, turns = len(rows) + MOST_MORE, np.full(len(rows), -1)
        while not pack_turns(first, every, held, _shortest_first(durations), turns, period, steps):
            period += max(1, period // GROWTH)
            turns[:] = -1
    turns.flags.writeable = False
    return turns, period


def _shortest_first(durations: Sequence[int]) -> Ints:
    """The messages in the order in which they are placed, from the last: the longest, of these the first."""
    return np.array(sorted(range(len(durations)), key=lambda each: (durations[each], -each)), dtype=np.int64)


class _Period:
    """The period being filled: which turns of each row are taken, as bits, and by which message."""

    def __init__(self, rows: Sequence[Sequence[int]], durations: Sequence[int], period: int) -> None:
        self.rows, self.durations, self.period = rows, durations, period
        count = 1 + max((row for own in rows for row in own), default=-1)
        self.every = (1 << period) - 1
        self.taken = [0] * count
        self.holder = np.full((count, period), NOBODY)
        self.held = np.array([*durations, 0])
        """Turns of every message, and of `NOBODY`."""
        self.starts, self.tried = [-1] * len(rows), [-1] * len(rows)

    def packed(self) -> list[int] | None:
        """Return the starts of all messages, the longest placed first; None where placing does not end."""
        left = _shortest_first(self.durations).tolist()
        for _ in range(len(left) + MOST_MORE):
            if not left:
                break
            message = left.pop()
            free = self._free(message)
            if free:
                start = (free & -free).bit_length() - 1
            else:
                start, displaced = self._least_taken(message)
                left += displaced
            self._hold(message, start)
        return None if left else self.starts

    def _free(self, message: int) -> int:
        """The turns in which it could begin, as bits."""
        taken, turns = 0, self.durations[message]
        for row in self.rows[message]:
            taken |= self.taken[row]
        free, reach = self.every & ~taken, 1
        while reach < turns:
            step = min(reach, turns - reach)
            free &= (free >> step | free << self.period - step) & self.every
            reach += step
        return free

    def _least_taken(self, message: int) -> tuple[int, list[int]]:
        """The turn in which it displaces least, of every so many turns as it lasts, another than before; and whom."""
        turns = self.durations[message]
        tried = self.tried[message] + np.arange(1, max(self.period, 2), turns)
        there = (tried[:, None] + np.arange(turns)) % self.period
        holders = np.sort(self.holder[self.rows[message]][:, there].swapaxes(0, 1).reshape(len(tried), -1), axis=1)
        others = self.held[holders]
        others[:, 1:][holders[:, 1:] == holders[:, :-1]] = 0
        least = int(others.sum(axis=1).argmin())
        displaced = sorted({*holders[least].tolist()} - {NOBODY})
        for other in displaced:
            self._mark(other, self.starts[other], NOBODY)
        return int(tried[least]) % self.period, displaced

    def _hold(self, message: int, start: int) -> None:
        self.starts[message] = self.tried[message] = start
        self._mark(message, start, message)

    def _mark(self, message: int, start: int, holder: int) -> None:
        """Take the turns of a message, or give them back."""
        over = start + self.durations[message] - self.period
        turns = (1 << self.durations[message]) - 1 << start
        bits = (turns | turns >> self.period) & self.every
        for row in self.rows[message]:
            self.taken[row] = self.taken[row] | bits if holder != NOBODY else self.taken[row] & ~bits
            self.holder[row, start : start + self.durations[message]] = holder
            if over > 0:
                self.holder[row, :over] = holder
