"""Exact search for a gossip that ends by a deadline, depth first over event times.

A message need start only when its source has just received something or one of its ports has just become free; else it
could have started before. At such a time the search chooses the messages that start, and goes on at the next arrival.
Choices contained in others are left out: one more message that ends before anything else happens does no harm. A state
is given up when something wanted cannot come in time from any rank that knows it, or cannot spread in time
(`dissemination_bound`). Failed states are remembered, with times relative to now. Twins, ranks that can change places,
receive in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.search.dissemination_bound import Growth, clusters
from topocomm.planning.search.exact_rounds import OutOfNodesError
from topocomm.planning.search.gossip import SAME_US, Timed
from topocomm.planning.search.local_search import Machine

REFUSALS = 8
"""Gossips that are not accepted before the search ends."""
GROUPS = 4
"""Most groups whose growth is bounded besides that of all ranks."""


@dataclass(frozen=True)
class _State:
    now_us: float
    known: tuple[int, ...]
    flying: tuple[tuple[float, int, int, int], ...]
    """(arrival, source, destination, load) of messages."""
    woken: int
    """Bits of ranks whose knowledge or send port has just changed."""
    freed: int
    """Bits of ranks whose receive port has just become free."""


class LatencySearch:
    """One machine, the wants on it, and the nodes allowed."""

    def __init__(
        self,
        machine: Machine,
        away_us: NDArray[np.float64],
        nodes: int,
        accepted: Callable[[list[Timed]], bool] = lambda messages: True,
    ) -> None:
        self._machine = machine
        self._away = away_us.tolist()
        self._latency = machine.latency_us
        self._wanted = machine.wanted
        self._ports = machine.ports
        self._ranks = range(len(machine.wanted))
        self.nodes = nodes
        """Nodes left."""
        self._deadline_us = 0.0
        self._accepted = accepted
        self._path: list[Timed] = []
        self.refused = 0
        self._failed: dict[object, float] = {}
        self._asked = [sum(1 << b for b in self._ranks if machine.wanted[b] >> a & 1) for a in self._ranks]
        self._useful = sum(1 << a for a in self._ranks if self._asked[a] & ~(1 << a))
        self._growths = self._all_growths(away_us)
        self._twins: list[list[int]] = []
        """Classes of ranks that can change places and whose contribution no other wants."""
        for rank in self._ranks:
            alike = next((twins for twins in self._twins if self._are_twins(rank, twins[0])), None)
            if alike is None:
                self._twins.append([rank])
            else:
                alike.append(rank)
        self._nearest = [min((self._latency[a][b] for a in machine.sources[b]), default=0.0) for b in self._ranks]

    def _all_growths(self, away_us: NDArray[np.float64]) -> list[tuple[int, Growth]]:
        """Return (ranks as bits, growth) of all ranks and of what is outside each cluster of the coarsest partition."""
        groups = [np.ones(len(away_us), bool)]
        for label in clusters(away_us)[:1]:
            names = np.unique(label).tolist()
            groups += [label != name for name in names] if len(names) <= GROUPS else []
        latency_us = np.array(self._latency)
        horizon_us = float(away_us.max()) * 2
        growths = [Growth(latency_us, group, self._ports, horizon_us) for group in groups]
        bits = [sum(1 << rank for rank in np.flatnonzero(group).tolist()) for group in groups]
        return [(mask, growth) for mask, growth in zip(bits, growths, strict=True) if not growth.bounds_nothing]

    def find(self, deadline_us: float) -> list[Timed] | None:
        """Return messages that end by a deadline; None when there are none that are `accepted`.

        `refused` then counts those that were not.

        Raises:
            OutOfNodesError: The nodes allowed did not settle it.
        """
        self._deadline_us = deadline_us
        self._failed.clear()
        self._path.clear()
        self.refused = 0
        everybody = (1 << len(self._wanted)) - 1
        return self._from(_State(0.0, tuple(1 << rank for rank in self._ranks), (), everybody, everybody))

    def _from(self, state: _State) -> list[Timed] | None:
        if all(not want & ~have for want, have in zip(self._wanted, state.known, strict=True)):
            if self._accepted(ended := list(self._path)):
                return ended
            self.refused += 1
            if self.refused == REFUSALS:
                raise OutOfNodesError
            return None
        self._count_node()
        now_us, key = state.now_us, self._key(state)
        if self._failed.get(key, now_us + 1.0) <= now_us + SAME_US or self._is_hopeless(state):
            return None
        for started in self._choices(state):
            self._path += [Timed(now_us, now_us + self._latency[src][dst], src, dst) for src, dst in started]
            messages = self._from(self._next(state, started))
            if messages is not None:
                return messages
            del self._path[len(self._path) - len(started) :]
        self._failed[key] = now_us
        return None

    def _count_node(self) -> None:
        self.nodes -= 1
        if self.nodes < 0:
            raise OutOfNodesError

    def _key(self, state: _State) -> tuple[object, ...]:
        """Return a key that is equal for states with the same future; the parts of twins are sorted."""
        sending: list[list[int]] = [[] for _ in self._ranks]
        receiving: list[list[tuple[int, int]]] = [[] for _ in self._ranks]
        for arrival_us, src, dst, load in state.flying:
            left = round((arrival_us - state.now_us) * 1e6)
            sending[src].append(left)
            receiving[dst].append((left, load & self._useful))
        parts = [
            (
                state.known[rank] & self._useful,
                state.woken >> rank & 1,
                state.freed >> rank & 1,
                tuple(sending[rank]),
                tuple(receiving[rank]),
            )
            for rank in self._ranks
        ]
        return tuple(tuple(sorted(parts[rank] for rank in twins)) for twins in self._twins)

    def _are_twins(self, a: int, b: int) -> bool:
        if self._useful >> a & 1 or self._useful >> b & 1 or (self._wanted[a] ^ self._wanted[b]) & self._useful:
            return False
        latency_us = self._latency
        others = [rank for rank in self._ranks if rank not in (a, b)]
        same = all(latency_us[a][c] == latency_us[b][c] and latency_us[c][a] == latency_us[c][b] for c in others)
        return same and latency_us[a][b] == latency_us[b][a]

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
        """Yield the sets of messages that may start now, without those contained in others."""
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
        messages = [(src, dst) for dst, _, _, src in sorted(offers)]
        before = self._before(state)
        chosen: list[tuple[int, int]] = []

        def fits(src: int, dst: int) -> bool:
            """Whether both ports are free, and all twins that come before the destination receive a message."""
            twins_first = all(any(target == twin for _, target in chosen) for twin in before[dst])
            return bool(sending[src] and receiving[dst] and twins_first)

        def subsets(at: int, next_us: float) -> Iterator[list[tuple[int, int]]]:
            while at < len(messages) and not (sending[messages[at][0]] and receiving[messages[at][1]]):
                at += 1
            if at == len(messages):
                early = (m for m in messages if state.now_us + self._latency[m[0]][m[1]] <= next_us + SAME_US)
                if (chosen or next_us < inf) and not any(fits(*m) and m not in chosen for m in early):
                    yield list(chosen)
                return
            self._count_node()
            src, dst = messages[at]
            if fits(src, dst):
                sending[src] -= 1
                receiving[dst] -= 1
                chosen.append((src, dst))
                yield from subsets(at + 1, min(next_us, state.now_us + self._latency[src][dst]))
                chosen.pop()
                sending[src] += 1
                receiving[dst] += 1
            yield from subsets(at + 1, next_us)

        yield from subsets(0, state.flying[0][0] if state.flying else inf)

    def _before(self, state: _State) -> list[list[int]]:
        """Return, per rank, its twins of lower number in the same state: it receives nothing now unless they do."""
        busy = {rank for _, src, dst, _ in state.flying for rank in (src, dst)}
        before: list[list[int]] = [[] for _ in self._ranks]
        for twins in self._twins:
            lower: dict[tuple[int, int, int], list[int]] = {}
            for rank in twins:
                if len(twins) > 1 and rank not in busy:
                    mark = (state.known[rank] & self._useful, state.woken >> rank & 1, state.freed >> rank & 1)
                    before[rank] = list(lower.setdefault(mark, []))
                    lower[mark].append(rank)
        return before

    def _is_hopeless(self, state: _State) -> bool:
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
        return self._exceeds_growth(ahead, state, sending)

    def _exceeds_growth(self, ahead: list[int], state: _State, sending: list[list[float]]) -> bool:
        """Whether some contribution cannot spread to all ranks that want it in time."""
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
