"""Time of a schedule without shared links: one pass over the messages in the order in which their ports serve them.

The rules of ports are in docs/concepts/cost-models.md: K places to send at the source endpoint, K to receive at the
destination's, and under loggp one at every NIC of the route.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from topocomm.planning.cost.messages import Messages
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.schedule.schedule import PlaceNumbers, Schedule, row_keys, spans

PortModel = Literal["alpha", "loggp"]
MOST_WAVES = 12
"""Longest row of messages of a round that wait for each other; in longer ones messages are served one by one."""


@dataclass(frozen=True)
class PortRules:
    """Messages that an endpoint sends, and receives, at once; and the port model."""

    ports: int
    port_model: PortModel

    @property
    def loggp(self) -> bool:
        """Whether the port model is loggp, else alpha."""
        return self.port_model == "loggp"


def ports_of(
    messages: Messages, routes: Routes, endpoints: Sequence[str], paths: PathFinder, rules: PortRules
) -> tuple[Ints, Ints, int]:
    """Return the ports of every message: of its source, of its destination, under loggp of the NICs on its route.

    These are (start of the ports of each message and the end, the ports of all, number of ports of endpoints, to send
    and then to receive; NICs follow).
    """
    numbers: dict[str, int] = {}
    end = np.array([numbers.setdefault(name, len(numbers)) for name in endpoints], dtype=np.int64)
    nics = paths.link_nics[routes.links] if rules.loggp else np.full(len(routes.links), -1)
    of = np.repeat(np.arange(len(messages)), routes.hops)[nics >= 0]
    behind = np.bincount(of, minlength=len(messages))
    starts, _ = spans(np.zeros_like(behind), behind + 2)
    ports = np.empty(starts[-1], dtype=np.int64)
    ports[starts[:-1]], ports[starts[:-1] + 1] = end[messages.src], len(numbers) + end[messages.dst]
    ports[starts[of] + 2 + spans(np.zeros_like(behind), behind)[1]] = 2 * len(numbers) + nics[nics >= 0]
    return starts, ports, 2 * len(numbers)


@dataclass(frozen=True, eq=False)
class TurnTimes:
    """Times of messages that start as their slots and ports allow.

    Attributes:
        total_us: Time of the last output.
        start_us: float64 [messages].
        arrival_us: float64 [messages].
    """

    total_us: float
    start_us: Floats
    arrival_us: Floats


def turn_times(
    schedule: Schedule,
    places: PlaceNumbers,
    messages: Messages,
    routes: Routes,
    endpoints: Sequence[str],
    paths: PathFinder,
    rules: PortRules,
    *,
    busy_us: Floats | None = None,
    bytes_us: Floats | None = None,
) -> TurnTimes:
    """Return the times of a verified schedule without `repeat`, without bytes.

    With `bytes_us`, what the bytes of every message take on its route alone, they are the times with bytes if no link
    were shared, the least that the events of the schedule can take. With `busy_us`, of every round the time of its
    busiest link or port, they are those of rounds with bytes, one after the other: the latency of a message passes
    while later rounds run that do not wait for it.
    """
    ready_us = np.zeros(places.count)
    combines = _Combines(schedule, places.folded, places.operands, places.fold_of)
    if busy_us is None:
        ports: _Ports | _Rounds = _Ports(messages, routes, endpoints, paths, rules, bytes_us)
    else:
        ports = _Rounds(routes, busy_us)
    rounds = np.arange(schedule.rounds + 1)
    moves, folds = (np.searchsorted(table[:, 0], rounds).tolist() for table in (schedule.transfers, schedule.combines))
    sent = np.searchsorted(messages.round, rounds).tolist()
    start_us, arrival_us = np.zeros(len(messages)), np.zeros(len(messages))
    for round_ in range(schedule.rounds):
        own = slice(moves[round_], moves[round_ + 1])
        if own.start < own.stop:
            which = slice(sent[round_], sent[round_ + 1])
            of = messages.of_transfer[own] - which.start
            slots_us = np.zeros(which.stop - which.start)
            np.maximum.at(slots_us, of, ready_us[places.sent[own]])
            start_us[which] = ports.serve(round_, which, slots_us)
            arrival_us[which] = start_us[which] + ports.takes_us[which]
            ready_us[places.received[own]] = arrival_us[which][of]
        if folds[round_] < folds[round_ + 1]:
            combines.run(ready_us, folds[round_], folds[round_ + 1])
    return TurnTimes(float(ready_us[places.outputs].max(initial=0.0)), start_us, arrival_us)


class _Combines:
    def __init__(self, schedule: Schedule, folded: Ints, operands: Ints, fold_of: Ints) -> None:
        self._folded, self._operands, self._round = folded, operands, schedule.combines[:, 0]
        self._starts = schedule.operand_starts.astype(np.int64)
        written_in = np.full(int(max(folded.max(initial=-1), operands.max(initial=-1))) + 1, -1, dtype=np.int64)
        written_in[folded] = self._round
        read_in = self._round[fold_of]
        self._chained = np.zeros(schedule.rounds, dtype=bool)
        self._chained[read_in[written_in[operands] == read_in]] = True

    def run(self, ready_us: Floats, low: int, high: int) -> None:
        """Set the times of the combines low..high-1, all of one round: a result is ready when its last operand is."""
        starts, folded = self._starts[low : high + 1], self._folded[low:high]
        operands = self._operands[starts[0] : starts[-1]]
        while True:  # combines that read each other's results take a pass for each in the chain
            folded_us = np.maximum.reduceat(ready_us[operands], starts[:-1] - starts[0])
            done = not self._chained[self._round[low]] or (folded_us == ready_us[folded]).all()
            ready_us[folded] = folded_us
            if done:
                return


class _Ports:
    """Times at which each place of each port is free: of endpoints to send, then to receive, then of NICs."""

    def __init__(
        self,
        messages: Messages,
        routes: Routes,
        endpoints: Sequence[str],
        paths: PathFinder,
        rules: PortRules,
        bytes_us: Floats | None,
    ) -> None:
        self.takes_us = routes.latency_us if bytes_us is None else routes.latency_us + bytes_us
        self._starts, self._held, ends = ports_of(messages, routes, endpoints, paths, rules)
        self._holds_us = np.repeat(routes.gap_us if rules.loggp else routes.latency_us, np.diff(self._starts))
        """Time that each message holds each of its ports: with bytes those of endpoints until the last has left."""
        if bytes_us is not None:
            first = self._starts[:-1]
            self._holds_us[first] += bytes_us
            self._holds_us[first + 1] += bytes_us
        self._free_us = np.zeros((int(self._held.max(initial=ends - 1)) + 1, rules.ports))
        self._free_us[ends:, 1:] = np.inf  # a NIC has one place
        rounds = np.repeat(messages.round, np.diff(self._starts))
        keys, counts = np.unique(row_keys(rounds, self._held), return_counts=True)
        self._crowded: frozenset[int] = frozenset()
        """The rounds in which several messages share a port."""
        if len(keys) < len(rounds):
            order = np.argsort(row_keys(rounds, self._held), kind="stable")
            first = order[np.cumsum(counts) - counts]
            self._crowded = frozenset(rounds[first[counts > 1]].tolist())

    def serve(self, round_: int, which: slice, slots_us: Floats) -> Floats:
        """Start the messages of one round as early as slots and ports allow; returns when."""
        entries = slice(int(self._starts[which.start]), int(self._starts[which.stop]))
        held, holds_us = self._held[entries], self._holds_us[entries]
        counts = np.diff(self._starts[which.start : which.stop + 1])
        if round_ not in self._crowded:
            return self._at_once(held, counts, slots_us, holds_us)
        waves = _waves(held, counts)
        if waves is None:
            return self._in_turn(held, counts, slots_us, holds_us)
        start_us = np.empty(len(counts))
        first = np.cumsum(counts) - counts
        for wave in waves:
            own = spans(first[wave], counts[wave])[1]
            start_us[wave] = self._at_once(held[own], counts[wave], slots_us[wave], holds_us[own])
        return start_us

    def _at_once(self, held: Ints, counts: Ints, slots_us: Floats, holds_us: Floats) -> Floats:
        place = self._free_us[held].argmin(axis=1)
        free_us = np.maximum.reduceat(self._free_us[held, place], np.cumsum(counts) - counts)
        start_us = np.maximum(slots_us, free_us)
        self._free_us[held, place] = np.repeat(start_us, counts) + holds_us
        return start_us

    def _in_turn(self, held: Ints, counts: Ints, slots_us: Floats, holds_us: Floats) -> Floats:
        ends = np.cumsum(counts)
        messages = zip((ends - counts).tolist(), ends.tolist(), slots_us.tolist(), strict=True)
        free_us = self._free_us.tolist()
        if self._free_us.shape[1] == 1:
            starts_us, self._free_us[:, 0] = _one_by_one(
                held.tolist(), holds_us.tolist(), messages, [first for (first,) in free_us]
            )
            return np.array(starts_us)
        for queue in free_us:
            heapq.heapify(queue)
        needed, holds = [free_us[port] for port in held.tolist()], holds_us.tolist()
        starts_us = []
        for low, high, start_us in messages:
            for queue in needed[low:high]:
                if queue[0] > start_us:
                    start_us = queue[0]
            for at in range(low, high):
                heapq.heapreplace(needed[at], start_us + holds[at])
            starts_us.append(start_us)
        self._free_us[:] = free_us
        return np.array(starts_us)


def _one_by_one(
    held: list[int], holds_us: list[float], messages: Iterable[tuple[int, int, float]], free_us: list[float]
) -> tuple[list[float], list[float]]:
    """(start of every message, when each port is free then), of ports with one place each.

    A message has (place of its first port in `held`, of the one after its last, earliest start).
    """
    starts_us = []
    for low, high, start_us in messages:
        own = held[low:high]
        for port in own:
            if free_us[port] > start_us:
                start_us = free_us[port]
        for port, hold_us in zip(own, holds_us[low:high], strict=True):
            free_us[port] = start_us + hold_us
        starts_us.append(start_us)
    return starts_us, free_us


class _Rounds:
    """All messages of a round start together, when the round before has sent its bytes, and all of theirs is there."""

    def __init__(self, routes: Routes, busy_us: Floats) -> None:
        self.takes_us, self._busy_us, self._free_us = routes.latency_us, busy_us, 0.0

    def serve(self, round_: int, which: slice, slots_us: Floats) -> Floats:
        """Return when the bytes of one round have passed, from when on its messages take their latency."""
        self._free_us = max(self._free_us, float(slots_us.max())) + float(self._busy_us[round_])
        return np.full(len(slots_us), self._free_us)


def _waves(held: Ints, counts: Ints) -> list[Ints] | None:
    """Messages in waves that share no port, each after all earlier messages of its ports; None for too many waves.

    `held` has the ports of the messages, one message after the other, `counts` the number of each message.
    """
    by_port = np.argsort(held, kind="stable")
    follows = np.flatnonzero(held[by_port][1:] == held[by_port][:-1])
    message = np.repeat(np.arange(len(counts)), counts)
    before, after = message[by_port[follows]], message[by_port[follows + 1]]
    wave = np.zeros(len(counts), dtype=np.int64)
    for _ in range(MOST_WAVES):
        later = wave.copy()
        np.maximum.at(later, after, wave[before] + (before != after))
        if (later == wave).all():
            return [np.flatnonzero(wave == number) for number in range(int(wave.max()) + 1)]
        wave = later
    return None
