"""Long pipelines by their first slices and hosts: once all rounds are under way, every slice more adds one period.

Along a chain of hosts that all do the same every host more adds the delay of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.schedule.schedule import IntTable, Repeat, Schedule, number_keys, row_keys, spans
from topocomm.planning.schedule.transforms import most_slices

MOST_MESSAGES, MOST_PIPELINED, MOST_TRANSFERS = 1 << 16, 1 << 19, 1 << 20
"""Largest schedule, and of pipelines the largest head, whose events are followed; above, the time of each round's
busiest link or port is added. That says little of a pipeline, since its slices have no barriers."""
STEADY_SLICES = 6
"""Slices that start in the steady state, from whose second half the period is taken."""
CHAIN_SLICES = 24
"""Slices before the steady state of the first hosts of a chain, where all hosts together have so many under way."""
LEAST_ROWS = 64
"""Rows of the shortest slice: with fewer, slices differ by too much to be one period."""
UNLIKE_HOSTS, STEADY_HOSTS = 2, 2
"""Hosts of a chain at either end that may do other things than all others; and those before the last one followed from
which the delay of a host is taken."""
FIRST_HOSTS = UNLIKE_HOSTS + STEADY_HOSTS + 2
"""Hosts of a chain that are followed where all but the first ones are alike."""
MOST_LATE = 1.1
"""Times the rounds in which a message goes on from host to host that it may take."""


class _Chain(NamedTuple):
    """Hosts that each send to themselves and the next alone, and most of them the same as the one before.

    Attributes:
        members: Ranks of a host.
        followed: Hosts that are followed.
        later: By how many rounds messages are later from host to host, the most of all.
    """

    members: int
    followed: int
    later: int


class Head(NamedTuple):
    """The beginning of a pipeline.

    Attributes:
        schedule: For costs alone: it moves the rows of its slices only, which have the mean length, and nothing of
            the hosts that it lacks.
        slices, hosts: How many of these it lacks.
        chain: The hosts, if it lacks some.
    """

    schedule: Schedule
    slices: int = 0
    hosts: int = 0
    chain: _Chain | None = None


def head_of(schedule: Schedule, endpoints: Sequence[str] = (), paths: PathFinder | None = None) -> Head:
    """Return the pipeline of the first slices, and, with the machine, of a chain of hosts the first ones.

    A schedule that is no pipeline, has few slices more than that, or so few rows that slices differ, is returned as it
    is.
    """
    repeat = schedule.repeat
    if repeat is None or not repeat.stagger_rounds:
        return Head(schedule)
    chain = None if paths is None else _chain_of(schedule, endpoints, paths)
    head = _first_hosts(schedule, chain.members * chain.followed) if chain else schedule
    under_way, least = (-(-each.rounds // repeat.stagger_rounds) for each in (head, schedule))
    slices = max(under_way, min(least, CHAIN_SLICES)) + STEADY_SLICES
    hosts = len(endpoints) // chain.members - chain.followed if chain else 0
    if slices + STEADY_SLICES >= repeat.count or most_slices(schedule) < LEAST_ROWS * repeat.count:
        return Head(head, 0, hosts, chain)
    chunks = [(first, -(-rows * slices // repeat.count)) for first, rows in schedule.chunks]
    head = replace(head, chunks=tuple(chunks), repeat=Repeat(slices, repeat.stagger_rounds))
    return Head(head, repeat.count - slices, hosts, chain)


class Arrivals(NamedTuple):
    """When the messages of a head arrive.

    Attributes:
        rounds: int64 [n]: the round of each message.
        ranks: int64 [n]: the rank that it goes to.
        us: float64 [n]: when it arrives.
    """

    rounds: Ints
    ranks: Ints
    us: Floats


def whole_us(head: Head, total_us: float, arrivals: Arrivals) -> float:
    """Return the time of a pipeline from that of its head: a period for every slice and a delay for every host more.

    The period is the time between the last arrivals of rounds in the steady state, one stagger apart; the delay that
    between the last arrivals at hosts. `total_us` is infinite where it is not known.
    """
    if not total_us < np.inf:
        return total_us
    more_us = head.slices * _period_us(head, arrivals) if head.slices else 0.0
    return total_us + more_us + (head.hosts * _delay_us(head, arrivals) if head.hosts else 0.0)


def is_steady(head: Head, arrivals: Arrivals) -> bool:
    """Whether the hosts that a head lacks add as much as those that it has: rounds pass as messages go on.

    Where rounds are sooner, what comes from other hosts is ever later behind what ports have to send before, and at
    some host the first is in the way of the second.
    """
    repeat = head.schedule.repeat
    if head.chain is None or repeat is None or repeat.count <= STEADY_SLICES:
        return head.chain is None
    passing_us = head.chain.later / repeat.stagger_rounds * _period_us(head, arrivals)
    return _delay_us(head, arrivals) <= MOST_LATE * passing_us


def _period_us(head: Head, arrivals: Arrivals) -> float:
    repeat, half = head.schedule.repeat, STEADY_SLICES // 2
    assert repeat is not None
    last = repeat.stagger_rounds * (repeat.count - 1)  # the round in which the last slice begins
    until = (arrivals.rounds <= last - half * repeat.stagger_rounds, arrivals.rounds <= last)
    first_us, last_us = (arrivals.us[each].max(initial=0.0) for each in until)
    return float(last_us - first_us) / half


def _delay_us(head: Head, arrivals: Arrivals) -> float:
    assert head.chain is not None
    host, last = arrivals.ranks // head.chain.members, head.chain.followed - 2
    first_us, last_us = (arrivals.us[host == which].max() for which in (last - STEADY_HOSTS, last))
    return float(last_us - first_us) / STEADY_HOSTS


def _chain_of(schedule: Schedule, endpoints: Sequence[str], paths: PathFinder) -> _Chain | None:
    """Return the chain of hosts, if a schedule goes along one of so many that some need not be followed.

    Rounds are later from host to host, of each message by as much but for one. Links that serve pairs of hosts far from
    each other must have room for a message of each.
    """
    hosts = np.unique([paths.topology.by_id[end].host for end in endpoints], return_inverse=True)[1]
    members = int(np.argmax(np.append(np.diff(hosts) != 0, True))) + 1
    count, rest = divmod(len(hosts), members)
    if rest or count <= FIRST_HOSTS + UNLIKE_HOSTS or len(set(endpoints)) < len(endpoints):
        return None
    place = paths.classes.alike[[paths.classes.index[end] for end in endpoints]].reshape(count, members)
    hosts = hosts.reshape(count, members)
    if (place != place[0]).any() or (hosts != hosts[:, :1]).any() or len(np.unique(hosts[:, 0])) < count:
        return None
    made = _by_host(schedule.transfers, members, count)
    if made is None or (made[:, :, 1:] != made[0, :, 1:]).any():
        return None
    followed = followed_hosts(made[:, :, 0], UNLIKE_HOSTS)
    if count <= followed + UNLIKE_HOSTS or not _same_routes(made[0], members, count, endpoints, paths):
        return None
    return _Chain(members, followed, int((made[-1, :, 0] - made[-2, :, 0]).max()))


def followed_hosts(rounds: Ints, first: int = 0) -> int:
    """Return how many hosts of a chain are followed, so that the last ones of them are as all others.

    `rounds` has those of all hops, [hosts, hops], of the hosts from `first` on; at either end hosts may be unlike.
    """
    later = np.diff(rounds[UNLIKE_HOSTS - first : len(rounds) + first - UNLIKE_HOSTS], axis=0)
    unlike = np.flatnonzero((np.abs(later - later[-1:]) > 1).any(axis=1))
    return FIRST_HOSTS + int(unlike.max(initial=-1)) + 1


def _by_host(transfers: IntTable, members: int, hosts: int) -> Ints | None:
    """[hosts, transfers, columns] of the hosts alike, with ranks from the host's first on; None of unlike numbers."""
    host = transfers[:, 1] // members
    if ((transfers[:, 3] // members - host) >> 1).any():  # neither the same host nor the next
        return None
    inner = np.flatnonzero((host >= UNLIKE_HOSTS) & (host < hosts - UNLIKE_HOSTS))
    counts = np.bincount(host[inner] - UNLIKE_HOSTS, minlength=hosts - 2 * UNLIKE_HOSTS)
    if not counts[0] or (counts != counts[0]).any():
        return None
    made = transfers[inner].astype(np.int64)
    made[:, [1, 3]] -= host[inner, None] * members
    made = made[np.argsort(row_keys(host[inner], *(made[:, column] for column in (1, 3, 5, 2, 4, 6))))]
    return made.reshape(len(counts), -1, made.shape[1])


def _same_routes(moves: Ints, members: int, hosts: int, endpoints: Sequence[str], paths: PathFinder) -> bool:
    """Whether messages of all hosts have routes of the same figures, and none shares a link with those far away."""
    which = number_keys(row_keys(moves[:, 1], moves[:, 3]))[0]
    first = np.arange(hosts - 1)[:, None] * members
    src, dst = ((first + moves[which, end]).ravel() for end in (1, 3))
    routes = paths.routes(endpoints, src, dst)
    figures = (each.reshape(hosts - 1, -1) for each in (routes.latency_us, routes.gb_per_s, routes.gap_us, routes.hops))
    return all((own == own[0]).all() for own in figures) and _serves_all(routes, src // members, hosts, paths)


def _serves_all(routes: Routes, host: Ints, hosts: int, paths: PathFinder) -> bool:
    """Whether each link is on routes of neighbours alone, or has the rate of a message of every host."""
    links, used = np.unique(routes.links, return_inverse=True)
    of, rate = (np.repeat(column, routes.hops) for column in (host, routes.gb_per_s))
    low, high, most = np.full(len(links), hosts), np.zeros(len(links), np.int64), np.zeros(len(links))
    np.minimum.at(low, used, of)
    np.maximum.at(high, used, of)
    np.maximum.at(most, used, rate)
    return bool(((high - low <= 1) | ((hosts - 1) * most <= paths.link_gb_per_s[links])).all())


def _first_hosts(schedule: Schedule, most: int) -> Schedule:
    """Return what the first ranks do among themselves."""
    transfers = schedule.transfers[(schedule.transfers[:, [1, 3]] < most).all(axis=1)]
    folds = np.flatnonzero(schedule.combines[:, 1] < most)
    combines = schedule.combines[folds]
    starts, where = spans(schedule.operand_starts[folds].astype(np.int64), np.diff(schedule.operand_starts)[folds])
    return replace(
        schedule,
        rounds=1 + max(int(table[:, 0].max(initial=0)) for table in (transfers, combines)),
        inputs=schedule.inputs[schedule.inputs[:, 0] < most],
        outputs=schedule.outputs[schedule.outputs[:, 0] < most],
        transfers=transfers,
        combines=combines,
        operands=schedule.operands[where],
        operand_starts=starts.astype(np.int32),
    )


def moves_of(schedule: Schedule) -> int:
    """Return the number of transfers of all slices."""
    return len(schedule.transfers) * (1 if schedule.repeat is None else schedule.repeat.count)


def part_of(head: Schedule, schedule: Schedule) -> float:
    """Return the part of the transfers of a schedule that its head has."""
    return moves_of(head) / max(moves_of(schedule), 1)


def with_slices(schedule: Schedule, rounds: Ints, *ends: Ints) -> int:
    """Return how many rounds, or messages between ends, those of one slice are in all slices: those at once are one."""
    repeat = schedule.repeat
    if repeat is None or not repeat.stagger_rounds or not len(rounds):  # `rounds` are in rising order
        return len(rounds) if ends else int(np.count_nonzero(np.diff(rounds, prepend=-1)))
    later, turn = np.divmod(rounds, repeat.stagger_rounds)
    line = row_keys(*ends, turn)
    order = np.lexsort((later, line))
    after, same = np.diff(later[order]), np.diff(line[order]) == 0
    return int(np.where(same, np.minimum(after, repeat.count), repeat.count).sum()) + repeat.count


def adds_rounds(schedule: Schedule, head: Schedule, messages: int) -> bool:
    """Whether the time of a schedule is that of each round's busiest link or port, and not of events.

    `head` is the part of it that is followed, `messages` the number of all.
    """
    in_slices = schedule.repeat is not None and schedule.repeat.stagger_rounds > 0
    most = MOST_PIPELINED if in_slices else MOST_MESSAGES
    return messages * part_of(head, schedule) > most or moves_of(head) > MOST_TRANSFERS
