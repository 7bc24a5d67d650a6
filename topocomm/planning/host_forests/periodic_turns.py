"""When messages begin in a period that repeats, so that no port or link that several need has more than it carries.

What a message forwards may have come in an earlier period, so they have no order: an open shop. Whenever all that it
needs is free, the message goes whose ports and links have most to do (Gonzalez, Sahni 1976); of several rules for what
counts most, and a few orders of messages that are nearly alike, the shortest period is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints

SAME = 1e-9
"""Part of a period below which times are equal."""
NEAR = 1.02
"""A period that is longer than what the busiest has to do by this factor at most is good enough."""
SPREAD, GOLDEN = 0.5, 0.6180339887498949
"""How much the weights of messages differ after the first try."""


class Turns(NamedTuple):
    """The start of each message, from 0, and the period."""

    starts: Floats
    period: float


def periodic_turns(loads: Floats, tries: int) -> Turns:
    """Return the best of so many tries.

    Args:
        loads: float64 [messages, rows]: how long each message needs each port and link; 0: not at all.
        tries: At least 1.
    """
    shop = _Shop(loads)
    best = Turns(np.zeros(0), np.inf)
    for weights, power in _rules(len(loads), tries):
        made = shop.listed(weights, power)
        if made.period < best.period * (1 - SAME):
            best = made
        if best.period <= shop.least * NEAR:
            break
    return best


def _rules(count: int, tries: int) -> Iterator[tuple[Floats, int]]:
    for number in range(tries):
        weights: Floats = 1 + SPREAD * (np.arange(1.0, count + 1) * (number // 2 * GOLDEN) % 1.0)
        yield weights, (1, 3)[number % 2]


class _Shop:
    """The messages, by what they need: rows are numbers, and every message is padded with one that is always free."""

    def __init__(self, loads: Floats) -> None:
        needs = loads > 0
        width = max(1, int(needs.sum(axis=1).max(initial=0)))
        self.rows: Ints = np.argsort(~needs, axis=1, kind="stable")[:, :width]
        self.times: Floats = np.take_along_axis(loads, self.rows, axis=1)
        free = loads.shape[1]
        self.rows[self.times == 0] = free
        self.total: Floats = np.append(loads.sum(axis=0), 0.0)
        self.least = float(self.total.max(initial=0.0))

    def listed(self, weights: Floats, power: int) -> Turns:
        """Start the messages one after the other, the soonest first; of these that of most left to do."""
        most, same = self.least or 1.0, SAME * self.least
        free, left, starts = np.zeros(len(self.total)), self.total / most, np.zeros(len(self.rows))
        columns = self.rows, self.times, self.times / most, weights
        try:
            from topocomm.native._native import list_messages
        except ImportError:  # nothing is compiled here: the same, thirty times slower
            _list_plainly(*columns, free, left, starts, same, cubed=power == 3)
        else:
            list_messages(*map(np.ascontiguousarray, columns), free, left, starts, same, power == 3)
        return Turns(starts, float(free.max()))


def _list_plainly(
    rows: Ints,
    times: Floats,
    shares: Floats,
    weights: Floats,
    free: Floats,
    left: Floats,
    starts: Floats,
    same: float,
    *,
    cubed: bool,
) -> None:
    """As `list_messages`, without the compiled part."""
    waiting, soon = np.arange(len(rows)), np.zeros(len(rows))
    while len(waiting):
        at = soon[waiting]
        ready = np.flatnonzero(at <= at.min() + same)
        busy = left[rows[waiting[ready]]]
        merit = np.zeros(len(ready))
        for own in busy.T:
            merit = merit + own * own * own if cubed else np.maximum(merit, own)
        place = ready[int((merit * weights[waiting[ready]]).argmax())]
        message = waiting[place]
        needs = rows[message]
        starts[message] = soon[message]
        free[needs] = starts[message] + times[message]
        left[needs] -= shares[message]
        free[-1] = left[-1] = 0.0
        waiting = np.delete(waiting, place)
        soon[waiting] = free[rows[waiting]].max(axis=1)
