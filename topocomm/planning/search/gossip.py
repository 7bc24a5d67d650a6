"""Gossip, rounds of messages (source, destination), and its exact time under the `alpha` model.

A rank starts with its own contribution. A message carries contributions that its source knows by messages of earlier
rounds, that its destination lacks, and that are of use: the destination wants them or passes them on later. Empty
messages are not sent. Of two messages of one round to one rank the later leaves out what the earlier brings. Rounds
are labels: a message starts when its load is there and both its ports are free; ports serve messages in
(round, index) order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.algorithms.gossip_schedule import Gossip, Message

Distance = tuple[int, int, int]
"""(i, j, d): the round of message j is at least that of message i, plus d."""

SAME_US = 1e-9
"""Times that differ by less are equal: they are sums in another order."""


class Sent(NamedTuple):
    """A message with its times and its load."""

    round: int
    src: int
    dst: int
    carried: int
    """Bit c is set where it carries the contribution of rank c."""
    start_us: float
    arrival_us: float


class Replay(NamedTuple):
    """The run of a gossip.

    Attributes:
        time_us: When the last rank has all that it wants; infinite if some rank never has.
        sent: The messages that carry something, in (round, index) order.
        done_us: When each rank has what it wants.
        missing: Number of wanted contributions that never arrive.
    """

    time_us: float
    sent: list[Sent]
    done_us: list[float]
    missing: int


def bit_rows(table: NDArray[np.bool_]) -> list[int]:
    """Return every row of a boolean table as an integer, column c as bit c."""
    packed = np.packbits(table, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def replay(gossip: Gossip, latency_us: Sequence[Sequence[float]], wanted: Sequence[int], ports: int) -> Replay:
    """Run a gossip; bit a of `wanted[b]` is set where rank b needs the contribution of rank a."""
    loads, known = _loads(gossip, wanted)
    ranks = range(len(wanted))
    pieces: list[list[tuple[float, int]]] = [[(0.0, 1 << rank)] for rank in ranks]
    sending = [[0.0] * ports for _ in ranks]
    receiving = [[0.0] * ports for _ in ranks]
    sent: list[Sent] = []
    for label, (messages, carries) in enumerate(zip(gossip, loads, strict=True)):
        arrivals = []
        for (src, dst), carried in zip(messages, carries, strict=True):
            if not carried:
                continue
            start = max(sending[src][0], receiving[dst][0])
            for ready, mask in pieces[src]:
                if mask & carried and ready > start:
                    start = ready
            arrival = start + latency_us[src][dst]
            heapq.heapreplace(sending[src], arrival)
            heapq.heapreplace(receiving[dst], arrival)
            arrivals.append((dst, arrival, carried))
            sent.append(Sent(label, src, dst, carried, start, arrival))
        for dst, arrival, carried in arrivals:
            pieces[dst].append((arrival, carried))
    done = [max((ready for ready, mask in pieces[r] if mask & wanted[r]), default=0.0) for r in ranks]
    missing = sum((wanted[r] & ~known[r]).bit_count() for r in ranks)
    return Replay(inf if missing else max(done, default=0.0), sent, done, missing)


def _loads(gossip: Gossip, wanted: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Return what every message carries, and what every rank knows in the end."""
    known = [1 << rank for rank in range(len(wanted))]
    loads: list[list[int]] = []
    for messages in gossip:
        before = known.copy()
        loads.append([])
        for src, dst in messages:
            news = before[src] & ~known[dst]
            known[dst] |= news
            loads[-1].append(news)
    everything = (1 << len(wanted)) - 1
    if all(mask == everything for mask in wanted):
        return loads, known  # whatever is news is wanted
    needed = list(wanted)
    for messages, carries in zip(reversed(gossip), reversed(loads), strict=True):
        after = needed.copy()
        for index, (src, dst) in enumerate(messages):
            carries[index] &= after[dst]
            needed[src] |= carries[index]
    return loads, known


def trim(gossip: Gossip, latency_us: Sequence[Sequence[float]], wanted: Sequence[int], ports: int) -> Gossip:
    """Return the gossip without empty messages, each message in the earliest round that keeps all loads and times.

    A message stays after the messages that its source received, in the order of its ports, and not before messages that
    its destination sends without it. If possible a port has at most `ports` messages a round.
    """
    count = len(wanted)
    outgoing: list[list[int]] = [[] for _ in range(count)]
    incoming: list[list[int]] = [[] for _ in range(count)]
    rounds: list[list[Message]] = [[] for _ in gossip]
    sent = replay(gossip, latency_us, wanted, ports).sent
    for _, group in groupby(sent, key=lambda message: message.round):
        messages = [(message.src, message.dst) for message in group]
        levels = _levels(messages, outgoing, incoming, ports)
        rounds += [[] for _ in range(max(levels) + 1 - len(rounds))]
        for message, level in zip(messages, levels, strict=True):
            rounds[level].append(message)
            outgoing[message[0]].append(level)
            incoming[message[1]].append(level)
    return tuple(tuple(messages) for messages in rounds if messages)


def _levels(messages: list[Message], outgoing: list[list[int]], incoming: list[list[int]], ports: int) -> list[int]:
    """Return the earliest rounds of messages of one round, after the rounds already given out by port."""

    def after_port(side: int, index: int, queue: list[int]) -> int:
        beside = sum(other[side] == messages[index][side] for other in messages[:index])
        full = max(1, ports - beside)
        return max(queue[-1] if queue else 0, queue[-full] + 1 if len(queue) >= full else 0)

    levels = []
    for i, (src, dst) in enumerate(messages):
        received = max(incoming[src], default=-1) + 1
        sent = max(outgoing[dst], default=0)
        levels.append(max(received, sent, after_port(0, i, outgoing[src]), after_port(1, i, incoming[dst])))
    moved = True
    while moved:  # ends: no level rises above the highest
        moved = False
        for i, (src, dst) in enumerate(messages):
            leaving = [level for (other, _), level in zip(messages, levels, strict=True) if other == dst]
            earlier = [levels[j] for j in range(i) if messages[j][0] == src or messages[j][1] == dst]
            least = max([*leaving, *earlier], default=0)
            if least > levels[i]:
                levels[i], moved = least, True
    return levels


class Timed(NamedTuple):
    """A message with its time."""

    start_us: float
    arrival_us: float
    src: int
    dst: int


def assign_rounds(messages: Sequence[Timed]) -> Gossip:
    """Return messages in rounds, so that each carries what had arrived at its start and no more.

    A message comes after those that its source had received at its start. It does not come after those that its source
    received later and that have news for its destination, since it would wait for them; where messages cross, not all
    of these orders can be kept.
    """
    order = sorted(messages)
    knew = _known_at_start(order)
    required: list[Distance] = []
    in_order: list[Distance] = []
    crossing: list[Distance] = []
    for i, message in enumerate(order):
        for j, later in enumerate(order):
            if i == j:
                continue
            ended = message.arrival_us <= later.start_us + SAME_US
            if message.dst == later.src and ended:
                required.append((i, j, 1))
            elif message.dst == later.src and knew[i][0] & ~knew[j][1]:
                crossing.append((j, i, 0))
            if i < j and (message.src == later.src or message.dst == later.dst):
                required.append((i, j, 0))
                in_order.append((i, j, int(ended)))
    start = [0] * len(order)
    rounds = _least_rounds([*required, *in_order, *crossing], start) or _fitting_rounds(required, crossing, start)
    gossip: list[list[Message]] = [[] for _ in range(max(rounds, default=-1) + 1)]
    for message, number in zip(order, rounds, strict=True):
        gossip[number].append((message.src, message.dst))
    return tuple(tuple(messages) for messages in gossip if messages)


def _known_at_start(order: Sequence[Timed]) -> list[tuple[int, int]]:
    """Return what source and destination of each message knew at its start."""
    known: list[tuple[int, int]] = []
    for message in order:
        source, target = 1 << message.src, 1 << message.dst
        for earlier, (load, _) in zip(order, known, strict=False):
            if earlier.arrival_us <= message.start_us + SAME_US:
                source |= load * (earlier.dst == message.src)
                target |= load * (earlier.dst == message.dst)
        known.append((source, target))
    return known


def _fitting_rounds(required: list[Distance], crossing: list[Distance], start: list[int]) -> list[int]:
    """Return the least rounds that keep the first distances, and of the second all, or those that fit one by one."""
    rounds = _least_rounds([*required, *crossing], start)
    if rounds is not None:
        return rounds
    kept, rounds = required, _least_rounds(required, start) or start
    for distance in crossing:
        longer = _least_rounds([*kept, distance], rounds)
        if longer is not None:
            kept, rounds = [*kept, distance], longer
    return rounds


def _least_rounds(least: list[Distance], start: list[int]) -> list[int] | None:
    """Return the least rounds from `start` on that keep all distances; None where they form a cycle."""
    rounds, limit = list(start), max(start, default=0) + len(start)
    moved = True
    while moved:
        moved = False
        for i, j, distance in least:
            if rounds[j] < rounds[i] + distance:
                rounds[j], moved = rounds[i] + distance, True
                if rounds[j] > limit:
                    return None
    return rounds


def reversed_in_time(sent: Sequence[Sent], end_us: float) -> Gossip:
    """Return the gossip backwards in time: of a broadcast, a reduce of the same time."""
    return assign_rounds([Timed(end_us - m.arrival_us, end_us - m.start_us, m.dst, m.src) for m in sent])
