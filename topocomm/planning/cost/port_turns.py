"""When the messages of a schedule start and arrive if ports serve them in turn: one pass, compiled where it can be."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints


class TurnColumns(NamedTuple):
    """A schedule by columns that lie in memory as C reads them; the last four are written.

    Attributes:
        moves, folds, sent: int64 [rounds + 1]: the first transfer, combine and message of every round, and the number.
        of_transfer, read, written: int64 [transfers]: the message, the place that it reads, the place that it writes.
        port_starts: int64 [messages + 1]: message i holds ports[port_starts[i]:port_starts[i + 1]].
        ports: int64: numbers of ports.
        folded: int64 [combines]: the place that each writes.
        operand_starts: int64 [combines + 1]: combine i reads operands[operand_starts[i]:operand_starts[i + 1]].
        operands: int64: places.
        holds_us: float64: how long a message holds each of its ports.
        takes_us: float64 [messages]: from the start to the arrival.
        busy_us: float64 [rounds], or []: the messages of a round start together, when these of all rounds so far are
            over and all of theirs is there; no port counts.
        free_us: float64 [ports, places at once]: when each place of a port is free.
        ready_us: float64 [places]: when each value is there.
        start_us, arrival_us: float64 [messages]: zeros at first.
    """

    moves: Ints
    folds: Ints
    sent: Ints
    of_transfer: Ints
    read: Ints
    written: Ints
    port_starts: Ints
    ports: Ints
    folded: Ints
    operand_starts: Ints
    operands: Ints
    holds_us: Floats
    takes_us: Floats
    busy_us: Floats
    free_us: Floats
    ready_us: Floats
    start_us: Floats
    arrival_us: Floats


def follow(columns: TurnColumns) -> None:
    """Set the times of a schedule; those of a round in the order of its messages, then of its combines."""
    try:
        from topocomm.native._native import follow_turns
    except ImportError:  # nothing is compiled here: the same, several hundred times slower
        follow_plainly(columns)
    else:
        follow_turns(*columns, columns.free_us.shape[1])


def follow_plainly(columns: TurnColumns) -> None:
    """As `follow`, without the compiled part."""
    plain = TurnColumns(*(column.tolist() for column in columns))
    now_us = 0.0
    for round_, ((move, last), (low, high), (fold, end)) in enumerate(
        zip(pairwise(plain.moves), pairwise(plain.sent), pairwise(plain.folds), strict=True)
    ):
        for each in range(move, last):
            message = plain.of_transfer[each]
            plain.start_us[message] = max(plain.start_us[message], plain.ready_us[plain.read[each]])
        if not plain.busy_us:
            for message in range(low, high):
                _serve(plain, message)
        elif low < high:
            now_us = max(now_us, *plain.start_us[low:high]) + plain.busy_us[round_]
            plain.start_us[low:high] = [now_us] * (high - low)
        for message in range(low, high):
            plain.arrival_us[message] = plain.start_us[message] + plain.takes_us[message]
        for each in range(move, last):
            plain.ready_us[plain.written[each]] = plain.arrival_us[plain.of_transfer[each]]
        for combine in range(fold, end):
            places = plain.operands[slice(*plain.operand_starts[combine : combine + 2])]
            plain.ready_us[plain.folded[combine]] = max((plain.ready_us[place] for place in places), default=0.0)
    for name in ("free_us", "ready_us", "start_us", "arrival_us"):
        getattr(columns, name)[...] = getattr(plain, name)


def _serve(plain: TurnColumns, message: int) -> None:
    """Start a message as soon as each of its ports has a free place."""
    held = range(*plain.port_starts[message : message + 2])
    start_us = max([plain.start_us[message], *(min(plain.free_us[plain.ports[at]]) for at in held)])
    for at in held:
        free_us = plain.free_us[plain.ports[at]]
        free_us[free_us.index(min(free_us))] = start_us + plain.holds_us[at]
    plain.start_us[message] = start_us


def busiest_by_round(sent: Ints, starts: Ints, places: Ints, held: Floats, rate: Floats, busy_us: Floats) -> None:
    """Raise the time of every round to that of the place (link or port) that its messages hold longest.

    Args:
        sent: int64 [rounds + 1]: the first message of every round, and the number of messages.
        starts: int64 [messages + 1]: message i holds places[starts[i]:starts[i + 1]].
        places: int64: numbers of places.
        held: float64 [messages]: what each message needs of its places.
        rate: float64 [places]: what a place serves in a microsecond.
        busy_us: float64 [rounds]: raised.
    """
    try:
        from topocomm.native._native import busiest_by_round as busiest
    except ImportError:
        _busiest_plainly(sent, starts, places, held, rate, busy_us)
    else:
        busiest(sent, starts, places, held, rate, np.zeros(len(rate)), busy_us)


def _busiest_plainly(sent: Ints, starts: Ints, places: Ints, held: Floats, rate: Floats, busy_us: Floats) -> None:
    hops = np.diff(starts)
    for round_, (low, high) in enumerate(pairwise(sent.tolist())):
        own = places[starts[low] : starts[high]]
        us = np.bincount(own, np.repeat(held[low:high], hops[low:high]), len(rate))[own] / rate[own]
        busy_us[round_] = us.max(initial=busy_us[round_])


def load_places(starts: Ints, places: Ints, held: Floats, latency_us: Floats, count: int) -> tuple[Floats, Floats]:
    """Return (what each place, link or port, is held for by all messages; the least latency of those, or infinity).

    Args:
        starts: int64 [messages + 1]: message i holds places[starts[i]:starts[i + 1]].
        places: int64: numbers of places, below `count`.
        held: float64 [messages]: what each message needs of its places.
        latency_us: float64 [messages].
        count: Number of places.
    """
    sums, least_us = np.zeros(count), np.full(count, np.inf)
    try:
        from topocomm.native._native import load_places as load
    except ImportError:
        of = np.repeat(np.arange(len(held)), np.diff(starts))
        np.minimum.at(least_us, places, latency_us[of])
        return np.bincount(places, held[of], count).astype(float), least_us
    load(starts, places, held, latency_us, sums, least_us)
    return sums, least_us
