"""An allreduce of hosts that are alike: up trees packed into each, in pieces between hosts at the gates, and down.

All hosts do the same at the same time. A share goes up its tree whole; at the gate the host gives every other host one
piece of it and folds its own piece of all hosts, gives the sum to the others, and what the gate then has goes down the
tree. A slice begins a period after the one before, and every message has its turn in a period (`periodic_turns.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.periodic_turns import periodic_turns
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import NO_PATH, Schedule, split_rows
from topocomm.planning.schedule.schedule_builder import schedule_of_columns

DIGITS = 9
"""Of a time in a period by which messages have turns."""
SAME, SOON = 1e-6, 1e-9
"""Part of a period below which times are equal, and the least time of a message."""


class Hop(NamedTuple):
    """A message of every host: of a share up or down an edge of its tree, or of a piece of it to another host.

    Attributes:
        child, parent: Members of the host; of a message between hosts the gate, twice.
        apart: How many hosts further it goes; 0: inside the host.
    """

    tree: int
    up: bool
    child: int
    parent: int
    apart: int

    @property
    def ends(self) -> tuple[int, int]:
        """Members that send and receive it."""
        return (self.child, self.parent) if self.up else (self.parent, self.child)


class Clock(NamedTuple):
    """When messages leave, in any unit of time.

    Attributes:
        turns: int64 [hops]: turn of each hop in a period, below `stagger`.
        periods: int64 [hops]: in which period it goes for the first slice.
        period: Time from a slice to the next.
        takes: Time until the first slice is through.
        stagger: Rounds of a period.
    """

    turns: Ints
    periods: Ints
    period: float
    takes: float
    stagger: int


@dataclass(frozen=True, eq=False)
class HostAllreduce:
    """Trees of a host, and the turns of their messages.

    Attributes:
        own: The trees, of equal shares.
        held: float64 [hops]: how long each holds its ports.
        latency_us: float64 [hops].
        starts: float64 [hops]: in the period; as `held` in the time of a value at the fastest rate.
    """

    members: int
    hosts: int
    own: tuple[Tree, ...]
    hops: tuple[Hop, ...]
    held: Floats
    latency_us: Floats
    starts: Floats
    period: float
    fastest: float

    @property
    def trees(self) -> int:
        """Number of trees."""
        return len(self.own)

    @property
    def chunks(self) -> int:
        """Pieces of the value: of every tree one for each host."""
        return len(self.own) * self.hosts

    @property
    def messages(self) -> int:
        """Messages of a slice."""
        return self.hosts * len(self.hops)

    def clock(self, value_us: float) -> Clock:
        """Return when all leave, where a slice of the value takes so long at the fastest rate."""
        takes = np.maximum(self.held + self.latency_us / value_us, SOON)
        turns = np.unique(np.round(self.starts / self.period, DIGITS), return_inverse=True)[1].astype(np.int64)
        stagger = int(turns.max()) + 1
        periods, through = np.zeros(len(self.hops), np.int64), 0.0
        there = np.zeros((2, 2, len(self.own), self.members))
        """When, and after which round, what each member sends is there: of what goes up, and down."""
        sums = np.zeros((2, len(self.own)))
        for number, hop in enumerate(self.hops):  # in an order in which each comes after what it forwards
            tree, src, dst = hop.tree, *hop.ends
            ready, after = sums[:, tree] if hop.apart and not hop.up else there[:, int(not hop.up), tree, src]
            in_time = (ready - self.starts[number]) / self.period - SAME
            periods[number] = max(0, ceil(in_time), (after - turns[number] + stagger - 1) // stagger)
            arrives = self.starts[number] + periods[number] * self.period + takes[number]
            arrived = np.array([arrives, periods[number] * stagger + turns[number] + 1])
            through = max(through, arrives)
            at_gate = hop.up and dst == self.own[tree].root
            if not hop.apart or not hop.up:
                way = there[:, int(not hop.up), tree, dst]
                np.maximum(way, arrived, out=way)
            if at_gate:
                sums[:, tree] = np.maximum(sums[:, tree], arrived)
                there[:, 1, tree, dst] = sums[:, tree]
        return Clock(turns, periods, self.period, through, stagger)

    def schedule(self, rows: int, clock: Clock) -> Schedule:
        """Return the schedule of one slice, whose rounds are turns."""
        return _Writer(self, clock).schedule(rows)


def host_allreduce(loads: HostLoads, trees: Sequence[Tree], tries: int) -> HostAllreduce:
    """Return the messages of trees of equal shares, and their turns."""
    hops = tuple(hop for number, tree in enumerate(trees) for hop in _hops_of(number, tree, loads.hosts))
    held = np.empty((len(hops), loads.across.shape[1]))
    latency_us = np.empty(len(hops))
    for number, hop in enumerate(hops):
        src, dst = hop.ends
        held[number] = (loads.across[src] / loads.hosts if hop.apart else loads.inside[src, dst]) / len(trees)
        latency_us[number] = loads.latency_us[src, dst]
    made = periodic_turns(held, tries)
    return HostAllreduce(
        loads.members,
        loads.hosts,
        tuple(trees),
        hops,
        held[:, : 2 * loads.members].max(axis=1),
        latency_us,
        made.starts,
        made.period,
        loads.fastest,
    )


def _hops_of(number: int, tree: Tree, hosts: int) -> list[Hop]:
    """The messages of a tree, each after those whose values it forwards."""
    up = [Hop(number, True, child, parent, 0) for parent, child, _ in reversed(tree.edges)]
    across = [Hop(number, way, tree.root, tree.root, apart) for way in (True, False) for apart in range(1, hosts)]
    down = [Hop(number, False, child, parent, 0) for parent, child, _ in tree.edges]
    return [*up, *across, *down]


class _Writer:
    """Columns of the schedule. Chunks are pieces: of every tree one for each host, which folds it.

    Values of children arrive in slots from 1 on, those of other hosts after them; then come the fold, and the sum.
    """

    def __init__(self, plan: HostAllreduce, clock: Clock) -> None:
        self.plan, self.rounds = plan, clock.periods * clock.stagger + clock.turns
        self.fold, self.sum = plan.members + plan.hosts - 1, plan.members + plan.hosts
        self.children = np.zeros((len(plan.own), plan.members), np.int64)
        self.last = np.zeros((2, len(plan.own), plan.members), np.int64)
        """Round in which the last value arrives: from children; from them and from other hosts."""
        self.host = np.arange(plan.hosts)
        self.transfers: list[Ints] = []

    def schedule(self, rows: int) -> Schedule:
        plan = self.plan
        self.slot = [self._arrives(number, hop) for number, hop in enumerate(plan.hops)]
        for number, hop in enumerate(plan.hops):
            self.transfers.append(self._across(number, hop) if hop.apart else self._inside(number, hop))
        combines, operands = self._folds()
        chunks = [
            (first + low, n)
            for first, part in split_rows(rows, len(plan.own))
            for low, n in split_rows(part, plan.hosts)
        ]
        tree, owner, host, member = np.indices((len(plan.own), plan.hosts, plan.hosts, plan.members)).reshape(4, -1)
        gates = np.array([each.root for each in plan.own])
        at_sum = (owner == host) & (member == gates[tree])
        outputs = np.stack(
            [host * plan.members + member, np.where(at_sum, self.fold, self.sum), tree * plan.hosts + owner], 1
        )
        return schedule_of_columns(
            plan.members * plan.hosts,
            chunks,
            outputs=outputs[np.lexsort((outputs[:, 2], outputs[:, 0]))],
            transfers=np.concatenate(self.transfers),
            combines=combines,
            operands=operands,
        )

    def _arrives(self, number: int, hop: Hop) -> int:
        """The slot in which the value arrives, of what goes up in the order of messages."""
        if not hop.up:
            return self.sum
        own = self.last[:, hop.tree, hop.parent]
        own[int(hop.apart > 0) :] = np.maximum(own[int(hop.apart > 0) :], self.rounds[number])
        if hop.apart:
            return int(self.children[hop.tree, hop.parent]) + hop.apart
        self.children[hop.tree, hop.parent] += 1
        return int(self.children[hop.tree, hop.parent])

    def _partial(self, tree: int, member: int) -> int:
        """The slot of what a member has of its part of the tree."""
        return self.fold if self.children[tree, member] else 0

    def _inside(self, number: int, hop: Hop) -> Ints:
        """A share of every host, all pieces of it in one message."""
        owner, host = np.indices((self.plan.hosts, self.plan.hosts)).reshape(2, -1)
        src, dst = hop.ends
        held = np.full(len(host), self._partial(hop.tree, hop.child) if hop.up else self.sum)
        if not hop.up and hop.parent == self.plan.own[hop.tree].root:
            held[owner == host] = self.fold
        return self._rows(number, (host, src), held, (host, dst), hop.tree * self.plan.hosts + owner)

    def _across(self, number: int, hop: Hop) -> Ints:
        """A piece from every host to the one so many further: of that host, or the sum of the sender's own."""
        there = (self.host + hop.apart) % self.plan.hosts
        held = np.full(len(there), self._partial(hop.tree, hop.child) if hop.up else self.fold)
        owner = there if hop.up else self.host
        return self._rows(number, (self.host, hop.child), held, (there, hop.child), hop.tree * self.plan.hosts + owner)

    def _rows(self, number: int, src: tuple[Ints, int], held: Ints, dst: tuple[Ints, int], chunk: Ints) -> Ints:
        """Transfers of one hop, from and to (hosts, member)."""
        members = self.plan.members
        columns = (
            self.rounds[number],
            src[0] * members + src[1],
            held,
            dst[0] * members + dst[1],
            self.slot[number],
            chunk,
            NO_PATH,
        )
        return np.stack(np.broadcast_arrays(*columns), 1)

    def _folds(self) -> tuple[Ints, list[Ints]]:
        """(combines, operands): of every member with children, and of the gates."""
        hosts, members, made, operands = self.plan.hosts, self.plan.members, list[Ints](), list[Ints]()
        owner, host = np.indices((hosts, hosts)).reshape(2, -1)
        for tree, each in enumerate(self.plan.own):
            for member in range(members):
                count = int(self.children[tree, member])
                wholes = owner == host if member == each.root else np.zeros(len(host), bool)
                for which, width, late in ((~wholes, count, 0), (wholes, count + hosts - 1, 1)):
                    if width and which.any():
                        columns = (
                            self.last[late, tree, member],
                            host[which] * members + member,
                            self.fold,
                            tree * hosts + owner[which],
                        )
                        made.append(np.stack(np.broadcast_arrays(*columns), 1))
                        operands.append(np.tile(np.arange(width + 1), (len(made[-1]), 1)))
        return np.concatenate(made), operands
