"""In which order members send what a mix of matchings carries: whenever ports fall free, what is worth most then.

Matchings have no barriers between them: a member that waits for nobody begins with the next one early, and takes its
share of links. So messages are followed in time as they will run, and of those whose ports are free the ones begin that
raise the worth of all under way most, by the prices of the mix; what is behind is worth more (multiplicative weights:
Plotkin, Shmoys, Tardos 1995).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.ways.block_parts import SAME, Part, next_blocks
from topocomm.planning.ways.folded_hosts import FoldedHosts
from topocomm.planning.ways.matching_program import NONE, MatchingRates, Mix

RUNS, MOST_RUNS = 1024, 32
"""Runs in which the blocks of all messages go, and most of those of one."""
TRIED = ((1.0, 0.05), (4.0, 0.3))
"""Rules of which the soonest is taken: the exponent of the worth of what is left, as a part of all of its kind, and the
least worth of a message, as a part of the mean."""


def in_order(hosts: FoldedHosts, mix: Mix, most_runs: Floats) -> list[Part]:
    """Return all parts of blocks, with their hops; of each message the blocks go in at most so many runs."""
    tried, runs = [], np.minimum(most_runs, min(MOST_RUNS, RUNS // len(hosts.ends)))
    for steep, least in TRIED:
        members = _Members(hosts, mix, np.maximum(runs, 1.0), steep, least)
        tried.append((members.send(), members.found))
    return min(tried, key=lambda each: each[0])[1]


class _Members:
    """The members of a host in time; all hosts do the same."""

    def __init__(self, hosts: FoldedHosts, mix: Mix, runs: Floats, steep: float, least: float) -> None:
        self.hosts, self.rates = hosts, MatchingRates(hosts)
        self.src, self.dst = hosts.ends.T
        self.queues: list[deque[Part]] = [deque() for _ in hosts.ends]
        self.left = np.zeros(len(hosts.ends))
        cut = [0.0] * len(hosts.ends)
        for relay in mix.relays:
            for step, blocks in next_blocks(hosts, relay.of, relay.blocks, cut):
                self.queues[relay.first].append(Part(relay.of, step, blocks, (), relay.second))
                self.left[[relay.first, relay.second]] += blocks
        for message in range(len(hosts.ends)):
            for step, blocks in next_blocks(hosts, message, np.inf, cut):
                self.queues[message].append(Part(message, step, blocks, (), NONE))
                self.left[message] += blocks
        self.all = np.maximum(self.left, SAME)
        self.waits = np.array([bool(queue) for queue in self.queues])
        self.run = self.all / runs
        self.prices, self.steep = np.maximum(mix.prices, least * float(mix.prices.mean())), steep
        self.under_way = np.full(hosts.members, NONE)
        self.remains = np.zeros(hosts.members)
        self.carries: list[list[Part]] = [[] for _ in range(hosts.members)]
        self.found: list[Part] = []
        self.turn = 0

    def send(self) -> float:
        """Send all; return when the last message ends."""
        fresh, now = np.ones((2, self.hosts.members), dtype=bool), 0.0
        while True:
            self._begin(fresh)
            busy = np.flatnonzero(self.under_way != NONE)
            if not len(busy) and not any(self.queues):
                return now
            if not len(busy):  # what was left for later, at ports that had fallen free before
                fresh[:] = True
                continue
            rates = self.rates(self.under_way[None])[0]
            time = float((self.remains[busy] / rates[busy]).min())
            now += time
            self.remains[busy] -= rates[busy] * time
            fresh = np.zeros_like(fresh)
            for member in busy[self.remains[busy] <= SAME].tolist():
                message = int(self.under_way[member])
                self._arrive(member)
                fresh[0, member] = fresh[1, self.dst[message]] = self.under_way[member] == NONE

    def _begin(self, fresh: Ints) -> None:
        """Begin messages while that raises the worth of all under way, at a port that has just fallen free."""
        worth = np.append(self.prices * np.exp2(self.steep * self.left / self.all), 0.0)
        own = (self.rates(self.under_way[None])[0] * worth[self.under_way]).sum()
        while True:
            free = np.ones((2, self.hosts.members), dtype=bool)
            sends = np.flatnonzero(self.under_way != NONE)
            free[0, sends] = free[1, self.dst[self.under_way[sends]]] = False
            able = free[0, self.src] & free[1, self.dst] & (fresh[0, self.src] | fresh[1, self.dst])
            able &= self.waits
            choices = np.flatnonzero(able)
            if not len(choices):
                return
            rows = np.repeat(self.under_way[None], len(choices), axis=0)
            rows[np.arange(len(choices)), self.src[choices]] = choices
            values = (self.rates(rows) * worth[rows]).sum(axis=1)
            best = int(values.argmax())
            if values[best] <= own:
                return
            own = values[best]
            self._send(int(choices[best]))

    def _send(self, message: int) -> None:
        """Take the next run of a message from its queue."""
        queue, taken, blocks = self.queues[message], list[Part](), 0.0
        while queue and blocks < self.run[message] * (1 - SAME):
            part = queue.popleft()
            own = min(part.blocks, self.run[message] - blocks)
            if part.blocks - own > SAME:
                queue.appendleft(part._replace(blocks=part.blocks - own))
                part = part._replace(blocks=own)
            blocks += part.blocks
            taken.append(part)
        self.waits[message] = bool(queue)
        member = int(self.src[message])
        self.under_way[member], self.carries[member] = message, taken[::-1]
        self.left[message] -= blocks
        self._next(member)

    def _next(self, member: int) -> None:
        """Begin with the next part of the run of a member: NICs serve messages in the order in which they begin."""
        part = self.carries[member][-1]
        self.carries[member][-1] = part._replace(hops=(*part.hops, (self.turn, int(self.under_way[member]))))
        self.remains[member] = part.blocks
        self.turn += 1

    def _arrive(self, member: int) -> None:
        part = self.carries[member].pop()
        if part.onward == NONE:
            self.found.append(part)
        else:
            self.queues[part.onward].append(part._replace(onward=NONE))
            self.waits[part.onward] = True
        if self.carries[member]:
            self._next(member)
        else:
            self.under_way[member] = NONE
