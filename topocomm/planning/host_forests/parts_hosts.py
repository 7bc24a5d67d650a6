"""An allgather or reduce_scatter of equal parts over hosts that are alike: down trees packed into each, with gates.

All hosts do the same at the same time. A share of a part goes down a tree of its owner's host, whose gate gives it to
its like in every other host; there what came from all other hosts goes down another tree together. A slice begins a
period after the one before, and every message has its turn in a period (`periodic_turns.py`). A reduce_scatter is the
same backwards in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, TreeMessages, tree_schedule
from topocomm.planning.host_forests.host_allreduce import DIGITS, SAME, SOON
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.parts_packing import PartsPacking
from topocomm.planning.host_forests.periodic_turns import periodic_turns
from topocomm.planning.host_forests.tree_kinds import PairedTrees
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule, split_rows


class _Hop(NamedTuple):
    """A message of every host down an edge of a tree: of its own parts, of those of all others, or to another host.

    Attributes:
        tree: Number of a tree of own parts, or of those of others; between hosts of the latter.
        apart: How many hosts further it goes, from the gate to its like; 0: inside the host.
    """

    tree: int
    own: bool
    parent: int
    child: int
    apart: int


class PartsClock(NamedTuple):
    """When messages leave, in any unit of time.

    Attributes:
        rounds: int64 [hops]: of each for the first slice.
        stagger: Rounds of a period.
        period: Time from a slice to the next.
        takes: Time until the first slice is through.
    """

    rounds: Ints
    stagger: int
    period: float
    takes: float


class HostParts:
    """Trees of a host, and the turns of their messages.

    Attributes:
        made: The trees.
        fastest: GB/s at which a value takes the unit of time.
    """

    def __init__(
        self, loads: HostLoads, packing: PartsPacking, made: PairedTrees, *, reduces: bool, tries: int
    ) -> None:
        """Take loads, the packing that made the trees, and how many orders of messages are tried."""
        self.reduces = reduces
        self.members, self.hosts, self.fastest, self.made = loads.members, loads.hosts, loads.fastest, made
        self.hops = list(_hops_of(made, loads.hosts))
        table, self.latency_us = np.empty((len(self.hops), packing.limits)), np.empty(len(self.hops))
        for number, hop in enumerate(self.hops):
            shares = (made.own if hop.own else made.others)[hop.tree][0]
            pieces = shares * (1 if hop.own or hop.apart else self.hosts - 1)
            row = packing.gates[hop.parent] if hop.apart else packing.inside[hop.parent, hop.child]
            table[number] = row * (pieces / (len(made.pairs) * self.hosts))
            ends = (hop.child, hop.parent) if packing.reduces else (hop.parent, hop.child)
            self.latency_us[number] = loads.latency_us[ends]
        self.held: Floats = table[:, : 2 * self.members].max(axis=1)
        self.starts, self.period = periodic_turns(table, tries)

    @property
    def trees(self) -> int:
        """Number of trees from gates."""
        return len(self.made.others)

    @property
    def chunks(self) -> int:
        """Shares of parts that go their own way."""
        return self.hosts * len(self.made.pairs)

    @property
    def messages(self) -> int:
        """Messages of a slice."""
        return self.hosts * len(self.hops)

    def clock(self, value_us: float) -> PartsClock:
        """Return when all leave, where a slice of the value takes so long at the fastest rate."""
        held, latency = np.maximum(self.held, SOON), self.latency_us / value_us
        before, takes = (latency, held) if self.reduces else (0 * latency, held + latency)  # backwards it comes first
        ends = self.starts + self.held * self.reduces
        turns = np.unique(np.round(ends / self.period, DIGITS), return_inverse=True)[1].astype(np.int64)
        stagger = int(turns.max()) + 1
        rounds, through = np.zeros(len(self.hops), np.int64), 0.0
        own = np.zeros((2, len(self.made.own), self.members))
        """When, and after which round, a member has what it sends on: of its host's parts, and of others."""
        others = np.zeros((2, len(self.made.others), self.members))
        joined = [[at for at, other in self.made.pairs if other == tree] for tree in range(self.trees)]
        for number, hop in enumerate(self.hops):  # each after what it forwards
            way = own if hop.own else others
            ready, after = (
                own[:, joined[hop.tree], hop.parent].max(axis=1) if hop.apart else way[:, hop.tree, hop.parent]
            )
            in_time = ceil((ready + before[number] - self.starts[number]) / self.period - SAME)
            periods = max(0, in_time, int(after - turns[number] + stagger - 1) // stagger)
            arrives = self.starts[number] + periods * self.period + takes[number]
            rounds[number] = periods * stagger + turns[number]
            through = max(through, arrives)
            there = way[:, hop.tree, hop.child]
            np.maximum(there, [arrives, rounds[number] + 1], out=there)
        return PartsClock(rounds, stagger, self.period, through)

    def schedule(self, rows: int, clock: PartsClock) -> Schedule:
        """Return the schedule of one slice, whose rounds are turns."""
        ranks, count = self.members * self.hosts, self.made.shares
        chunks = [(at + low, n) for at, part in split_rows(rows, ranks) for low, n in split_rows(part, count)]
        columns = [self._edges(hop, int(round_)) for hop, round_ in zip(self.hops, clock.rounds, strict=True)]
        edges = TreeEdges(*np.concatenate(columns, axis=1))
        if self.reduces:
            edges = edges._replace(round=edges.round.max() - edges.round)
        edges = edges.of(np.argsort(edges.round, kind="stable"))
        up = np.full(len(edges.round), self.reduces)
        name = "reduce_scatter" if self.reduces else "allgather"
        return tree_schedule(name, ranks, chunks, np.arange(self.chunks) // count, TreeMessages(up, edges))

    def _edges(self, hop: _Hop, round_: int) -> Ints:
        """The messages of all hosts, int64 [4, messages]: round, child, parent and chunk."""
        host = np.arange(self.hosts)
        if hop.own or hop.apart:
            owner, here = host, (host + hop.apart) % self.hosts
        else:
            here, owner = np.nonzero(~np.eye(self.hosts, dtype=bool))
        source = owner if hop.apart else here
        which = [at for at, pair in enumerate(self.made.pairs) if pair[not hop.own] == hop.tree]
        columns = (
            round_,
            here[:, None] * self.members + hop.child,
            source[:, None] * self.members + hop.parent,
            owner[:, None] * len(self.made.pairs) + np.array(which),
        )
        return np.stack(np.broadcast_arrays(*columns)).reshape(4, -1)


def _hops_of(made: PairedTrees, hosts: int) -> Iterator[_Hop]:
    """Yield the messages, each after those whose values it forwards."""
    for number, (_, tree) in enumerate(made.own):
        yield from (_Hop(number, True, parent, child, 0) for parent, child, _ in tree.edges)
    for number, (_, tree) in enumerate(made.others):
        yield from (_Hop(number, False, tree.root, tree.root, apart) for apart in range(1, hosts))
        yield from (_Hop(number, False, parent, child, 0) for parent, child, _ in tree.edges)
