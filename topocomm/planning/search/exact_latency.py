"""Whether a gossip can end by a deadline, by depth-first search over event times.

A message need start only when something allowed it to: its source has just heard something, or a port of the two has
just become free; else it could have started before. At such a time the search chooses who starts now, and goes on at
the next arrival. A choice is left out that another contains: when a message more would end before anything else
happens, it does no harm. A state is given up when something wanted cannot come in time from any rank that knows it, or
cannot grow to all who want it (`growth`). States that failed are kept, their times counted from now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.exact_rounds import OutOfNodesError
from topocomm.planning.search.gossip import SAME_US, Gossip, Timed, labelled
from topocomm.planning.search.growth import Growth, clusters
from topocomm.planning.search.polish import Machine

GROUPS = 4
"""Most groups whose growth is looked at besides that of all ranks."""


@dataclass(frozen=True)
class _State:
    """A moment of a schedule.

    Attributes:
        now_us: When it is.
        known: What every rank knows.
        flying: (arrival, source, destination, load) of the messages under way.
        woken: Bit of the ranks whose knowledge or send port has just changed.
        freed: Bit of the ranks whose receive port has just become free.
    """

    now_us: float
    known: tuple[int, ...]
    flying: tuple[tuple[float, int, int, int], ...]
    woken: int
    freed: int


class LatencySearch:
    """One machine, what is wanted on it, and how many choices may be looked at."""

    def __init__(self, machine: Machine, away_us: NDArray[np.float64], nodes: int) -> None:
        self._machine = machine
        self._away = away_us.tolist()
        self._latency = machine.latency_us
        self._wanted = machine.wanted
        self._ports = machine.ports
        self._ranks = range(len(machine.wanted))
        self._nodes, self._allowed = nodes, nodes
        self._deadline_us = 0.0
        self._failed: dict[object, float] = {}
        self._asked = [sum(1 << b for b in self._ranks if machine.wanted[b] >> a & 1) for a in self._ranks]
        self._useful = sum(1 << a for a in self._ranks if self._asked[a] & ~(1 << a))
        self._growths = self._all_growths(away_us)
        self._nearest = [min((self._latency[a][b] for a in machine.sources[b]), default=0.0) for b in self._ranks]

    def improved(self, gossip: Gossip, time_us: float, bound_us: float) -> tuple[Gossip, bool, int]:
        """(the best gossip, whether nothing is faster, choices looked at), from a gossip of `time_us`."""
        proved = True
        while time_us > bound_us + SAME_US:
            try:
                messages = self._find(time_us - 1e-6)
            except OutOfNodesError:
                proved = False
                break
            if messages is None:
                break
            better = labelled(messages)
            better_us = self._machine.run(better).time_us
            if better_us >= time_us - SAME_US:  # no rounds give these messages these loads
                proved = False
                break
            gossip, time_us = better, better_us
        return gossip, proved, self._allowed - max(self._nodes, 0)

    def _all_growths(self, away_us: NDArray[np.float64]) -> list[tuple[int, Growth]]:
        """(ranks as bits, growth) of all ranks and of what is outside of the clusters of the coarsest partition."""
        everybody = np.ones(len(away_us), bool)
        groups = [everybody]
        for label in clusters(away_us)[:1]:
            names = np.unique(label).tolist()
            groups += [label != name for name in names] if len(names) <= GROUPS else []
        latency_us = np.array(self._latency)
        horizon_us = float(away_us.max()) * 2
        growths = [Growth(latency_us, group, self._ports, horizon_us) for group in groups]
        bits = [sum(1 << rank for rank in np.flatnonzero(group).tolist()) for group in groups]
        return [(mask, growth) for mask, growth in zip(bits, growths, strict=True) if not growth.bounds_nothing]

    def _find(self, deadline_us: float) -> list[Timed] | None:
        self._deadline_us = deadline_us
        self._failed.clear()
        everybody = (1 << len(self._wanted)) - 1
        return self._from(_State(0.0, tuple(1 << rank for rank in self._ranks), (), everybody, everybody))

    def _from(self, state: _State) -> list[Timed] | None:
        if all(not want & ~have for want, have in zip(self._wanted, state.known, strict=True)):
            return []
        now_us = state.now_us
        flying = tuple((round(at_us - now_us, 6), *rest) for at_us, *rest in state.flying)
        key = (state.known, flying, state.woken, state.freed)
        if self._failed.get(key, now_us + 1.0) <= now_us + SAME_US or self._hopeless(state):
            return None
        for started in self._choices(state):
            rest = self._from(self._next(state, started))
            if rest is not None:
                return [Timed(now_us, now_us + self._latency[src][dst], src, dst) for src, dst in started] + rest
        self._failed[key] = now_us
        return None

    def _next(self, state: _State, started: list[tuple[int, int]]) -> _State:
        known = list(state.known)
        flying = list(state.flying)
        flying += [(state.now_us + self._latency[s][d], s, d, known[s] & ~known[d]) for s, d in started]
        flying.sort()
        now_us = flying[0][0]
        woken = freed = 0
        while flying and flying[0][0] <= now_us + SAME_US:
            _, src, dst, load = flying.pop(0)
            known[dst] |= load
            woken |= 1 << src | 1 << dst
            freed |= 1 << dst
        return _State(now_us, tuple(known), tuple(flying), woken, freed)

    def _choices(self, state: _State) -> Iterator[list[tuple[int, int]]]:
        """Every set of messages that may start now and that no other contains without harm."""
        sending, receiving = [self._ports] * len(state.known), [self._ports] * len(state.known)
        coming = [0] * len(state.known)
        for _, src, dst, load in state.flying:
            sending[src] -= 1
            receiving[dst] -= 1
            coming[dst] |= load
        offers = []
        for dst in self._ranks:
            for src in self._machine.sources[dst] if receiving[dst] else ():
                news = state.known[src] & ~state.known[dst] & ~coming[dst] & self._useful
                fresh = state.woken >> src & 1 or state.freed >> dst & 1
                in_time = state.now_us + self._latency[src][dst] <= self._deadline_us
                if sending[src] and news and in_time and fresh:
                    offers.append((dst, -news.bit_count(), self._latency[src][dst], src))
        offers.sort()
        next_us = state.flying[0][0] if state.flying else float("inf")
        yield from self._chosen(state, [(src, dst) for dst, _, _, src in offers], 0, [], sending, receiving, next_us)

    def _chosen(
        self,
        state: _State,
        offers: list[tuple[int, int]],
        at: int,
        started: list[tuple[int, int]],
        sending: list[int],
        receiving: list[int],
        next_us: float,
    ) -> Iterator[list[tuple[int, int]]]:
        while at < len(offers) and not (sending[offers[at][0]] and receiving[offers[at][1]]):
            at += 1
        if at == len(offers):
            if (started or state.flying) and not self._room(state, offers, started, sending, receiving, next_us):
                yield list(started)
            return
        self._nodes -= 1
        if self._nodes < 0:
            raise OutOfNodesError
        src, dst = offers[at]
        arrival_us = state.now_us + self._latency[src][dst]
        sending[src] -= 1
        receiving[dst] -= 1
        started.append((src, dst))
        sooner_us = min(next_us, arrival_us)
        yield from self._chosen(state, offers, at + 1, started, sending, receiving, sooner_us)
        started.pop()
        sending[src] += 1
        receiving[dst] += 1
        yield from self._chosen(state, offers, at + 1, started, sending, receiving, next_us)

    def _room(
        self,
        state: _State,
        offers: list[tuple[int, int]],
        started: list[tuple[int, int]],
        sending: list[int],
        receiving: list[int],
        next_us: float,
    ) -> bool:
        """Whether a message more would end before anything else happens."""
        return any(
            sending[src]
            and receiving[dst]
            and state.now_us + self._latency[src][dst] <= next_us + SAME_US
            and (src, dst) not in started
            for src, dst in offers
        )

    def _hopeless(self, state: _State) -> bool:
        """Whether something wanted cannot be everywhere by the deadline."""
        end_us, known = self._deadline_us, state.known
        sending = [[state.now_us] * self._ports for _ in self._ranks]
        receiving = [[state.now_us] * self._ports for _ in self._ranks]
        ahead = list(known)
        for arrival_us, src, dst, load in state.flying:
            sending[src] = sorted([*sending[src][1:], arrival_us])
            receiving[dst] = sorted([*receiving[dst][1:], arrival_us])
            ahead[dst] |= load
        for dst in self._ranks:
            lacks = self._wanted[dst] & ~ahead[dst]
            if lacks:
                if receiving[dst][0] + self._nearest[dst] > end_us:
                    return True
                for src in self._ranks:
                    if sending[src][0] + self._away[src][dst] <= end_us:
                        lacks &= ~known[src]
                for arrival_us, _, via, load in state.flying:
                    if arrival_us + self._away[via][dst] <= end_us:
                        lacks &= ~load
                if lacks:
                    return True
        return self._too_many(ahead, state, sending)

    def _too_many(self, ahead: list[int], state: _State, sending: list[list[float]]) -> bool:
        """Whether some contribution cannot grow to all who want it."""
        end_us = self._deadline_us
        for mask, growth in self._growths:
            reach = [
                sum(float(growth.row(growth.units(end_us - free_us))[u]) for free_us in sending[u] if free_us <= end_us)
                for u in self._ranks
            ]
            for a in self._ranks:
                holders = [u for u in self._ranks if ahead[u] >> a & 1]
                asked = self._asked[a] & mask & ~sum(1 << u for u in holders)
                if asked and asked.bit_count() > sum(reach[u] for u in holders):
                    return True
        return False
