"""A reduce or broadcast of hosts that are alike: trees packed into each, gates of the trees joined by trees of hosts.

A share of the value goes over a few trees of hosts (`wide_trees.py`), an equal part on each. A reduce brings it up the
tree of every host to the gate, from gate to gate to the root's host, and up a tree there to the root; a broadcast goes
the other way. Every message has its turn in a period (`periodic_turns.py`), those between hosts by the colours of the
trees of hosts, the same in all hosts but the root's; it goes in the first period in which what it forwards is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, broadcast_down, reduce_up
from topocomm.planning.algorithms.hosts.wide_trees import wide_trees
from topocomm.planning.host_forests.host_allreduce import SAME, SOON
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.periodic_turns import periodic_turns
from topocomm.planning.host_forests.rooted_packing import RootedPacking, RootedTrees
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule, split_rows


class _Key(NamedTuple):
    """A message of all hosts: of a tree of the root's host or of the others, on the edge to the parent of a member.

    Between hosts it is the gate's, and `colour` is that of the trees of hosts; else -1.
    """

    own: bool
    tree: int
    child: int
    colour: int


class _Ready(NamedTuple):
    """When a value is there, and after which round."""

    time: float
    round: int


TURNS = 64
"""Rounds of a period: what one port sends in a round goes one after the other."""
FEWEST_PARTS = 4
"""Least parts of a share between hosts: a whole one takes a slow link long, and ports inside wait for it."""
START = _Ready(0.0, 0)


@dataclass(frozen=True)
class RootedClock:
    """When messages leave.

    Attributes:
        edges: Those of the first slice.
        period: Time from a slice to the next.
        takes: Time until the first slice is through, in the same unit.
        stagger: Rounds of a period.
    """

    edges: TreeEdges
    period: float
    takes: float
    stagger: int = TURNS


class RootedHosts:
    """Pairs of trees of a host, trees of hosts, and the turns of their messages.

    Attributes:
        root: Rank, in the order of hosts.
        fastest: GB/s at which a value takes the unit of time.
        period: In that unit.
    """

    def __init__(self, loads: HostLoads, packing: RootedPacking, trees: RootedTrees, root: int, *, radix: int) -> None:
        self.members, self.hosts, self.fastest, self.root = loads.members, loads.hosts, loads.fastest, root
        self.pairs, self.reduces, self.home = trees, packing.reduces, root // loads.members
        over, colours = wide_trees(loads.hosts, self.home, radix)
        times = -(-FEWEST_PARTS // len(over))
        self.over = [tree + np.array([0, 0, colours * time]) for time in range(times) for tree in over]
        colours *= times
        self.trees, self.parts = len(trees.own), len(self.over)
        keys, held, latency_us = list[_Key](), list[Floats](), list[float]()
        for own, kind in ((False, trees.others), (True, trees.own)):
            for number, tree in enumerate(kind):
                for parent, child, _ in tree.edges:
                    row = np.zeros(2 * packing.rows)
                    row[packing.rows * own : packing.rows * (1 + own)] = packing.inside[parent, child] / self.trees
                    keys.append(_Key(own, number, child, -1))
                    held.append(row)
                    ends = (child, parent) if self.reduces else (parent, child)
                    latency_us.append(float(loads.latency_us[ends]))
        for number, tree in enumerate(trees.others):
            keys += [_Key(False, number, tree.root, colour) for colour in range(colours)]
            held += [packing.gates[tree.root] / (self.trees * self.parts)] * colours
            latency_us += [float(loads.latency_us[tree.root, tree.root])] * colours
        self.keys, self.latency_us = {key: place for place, key in enumerate(keys)}, latency_us
        table = np.array(held)
        self._table, ports = table, [*range(2 * self.members), *range(packing.rows, packing.rows + 2 * self.members)]
        self.held: list[float] = table[:, ports].max(axis=1).tolist()
        self.starts: list[float] = []
        self.period = 0.0

    def in_turns(self, tries: int) -> RootedHosts:
        """Give the messages turns, the best of so many tries."""
        starts, self.period = periodic_turns(self._table, tries)
        self.starts = starts.tolist()
        return self

    def mirrored(self) -> RootedHosts:
        """Return the broadcast with the messages of this reduce, each the other way and backwards in time."""
        made = copy(self)
        made.reduces = not self.reduces
        made.starts = [max(0.0, self.period - start - held) for start, held in zip(self.starts, self.held, strict=True)]
        return made

    @property
    def chunks(self) -> int:
        """Parts of the value that go their own way."""
        return self.trees * self.parts

    @property
    def messages(self) -> int:
        """Messages of a slice."""
        return self.trees * ((self.members - 1) * self.hosts + (self.hosts - 1) * self.parts)

    def clock(self, value_us: float) -> RootedClock:
        """Return when all leave, where a slice of the value takes so long at the fastest rate."""
        return _Walk(self, value_us).clock()

    def schedule(self, rows: int, clock: RootedClock) -> Schedule:
        """Return the schedule of one slice, whose rounds are turns."""
        chunks = [
            (first + low, n) for first, part in split_rows(rows, self.trees) for low, n in split_rows(part, self.parts)
        ]
        make = reduce_up if self.reduces else broadcast_down
        return make(clock.edges, self.members * self.hosts, self.root, chunks)


class _Walk:
    """The messages of the first slice, each in the first of its turns after what it forwards has arrived."""

    def __init__(self, plan: RootedHosts, value_us: float) -> None:
        self.plan, self.takes, self.edges = plan, 0.0, list[tuple[int, int, int, int]]()
        self.turns = [min(int(start / plan.period * TURNS), TURNS - 1) for start in plan.starts]
        self.lasts = [max(held + us / value_us, SOON) for held, us in zip(plan.held, plan.latency_us, strict=True)]

    def clock(self) -> RootedClock:
        for tree in range(self.plan.trees):
            if self.plan.reduces:
                self._up(tree)
            else:
                self._down(tree)
        columns = np.array(self.edges, dtype=np.int64).T
        return RootedClock(TreeEdges(*columns), self.plan.period, self.takes)

    def _up(self, tree: int) -> None:
        plan = self.plan
        gate = plan.pairs.others[tree].root
        at_gate = self._inside_up(tree, range(plan.hosts), own=False)[gate]
        at_home = START
        for part, over in enumerate(plan.over):
            ready = {int(group): at_gate for group in over[:, 0]}
            for group, parent, colour in _leaves_first(over):
                there = self._send(_Key(False, tree, gate, colour), ready[group])
                self._across(tree, part, group, parent, gate)
                ready[parent] = _later(ready.get(parent, START), there)
            at_home = _later(at_home, ready[plan.home])
        self._inside_up(tree, [plan.home], own=True, entry=(gate, at_home))

    def _inside_up(
        self, tree: int, hosts: Sequence[int], *, own: bool, entry: tuple[int, _Ready] | None = None
    ) -> dict[int, _Ready]:
        plan = self.plan
        which = (plan.pairs.own if own else plan.pairs.others)[tree]
        ready = dict.fromkeys(range(plan.members), START)
        if entry is not None:
            ready[entry[0]] = entry[1]
        for parent, child, _ in reversed(which.edges):
            ready[parent] = _later(ready[parent], self._send(_Key(own, tree, child, -1), ready[child]))
            self._inside(tree, [host for host in hosts if own or host != plan.home], child, parent)
        return ready

    def _down(self, tree: int) -> None:
        plan = self.plan
        gate = plan.pairs.others[tree].root
        at_gate = self._inside_down(tree, plan.home, plan.root % plan.members, START, own=True)[gate]
        there = dict.fromkeys(range(plan.hosts), START)
        for part, over in enumerate(plan.over):
            ready = {plan.home: at_gate}
            for group, parent, colour in reversed(_leaves_first(over)):
                ready[group] = self._send(_Key(False, tree, gate, colour), ready[parent])
                self._across(tree, part, group, parent, gate)
                there[group] = _later(there[group], ready[group])
        for host in range(plan.hosts):
            if host != plan.home:
                self._inside_down(tree, host, gate, there[host], own=False)

    def _inside_down(self, tree: int, host: int, root: int, at_root: _Ready, *, own: bool) -> dict[int, _Ready]:
        plan = self.plan
        ready = {root: at_root}
        for parent, child, _ in (plan.pairs.own if own else plan.pairs.others)[tree].edges:
            ready[child] = self._send(_Key(own, tree, child, -1), ready[parent])
            self._inside(tree, [host], child, parent)
        return ready

    def _send(self, key: _Key, ready: _Ready) -> _Ready:
        """Take the first turn of a message from when its value is there; return when it has arrived."""
        plan = self.plan
        place = plan.keys[key]
        start, turn = plan.starts[place], self.turns[place]
        in_time = ceil((ready.time - start) / plan.period - SAME)
        periods = max(0, in_time, -((turn - ready.round) // TURNS))
        self.round = periods * TURNS + turn
        arrives = start + periods * plan.period + self.lasts[place]
        self.takes = max(self.takes, arrives)
        return _Ready(arrives, self.round + 1)

    def _inside(self, tree: int, hosts: Sequence[int], child: int, parent: int) -> None:
        """Note the message just sent, in these hosts: all parts of the share."""
        plan = self.plan
        for host in hosts:
            first = host * plan.members
            for part in range(plan.parts):
                self.edges.append((self.round, first + child, first + parent, tree * plan.parts + part))

    def _across(self, tree: int, part: int, group: int, parent: int, gate: int) -> None:
        plan = self.plan
        ends = group * plan.members + gate, parent * plan.members + gate
        self.edges.append((self.round, *ends, tree * plan.parts + part))


def _later(a: _Ready, b: _Ready) -> _Ready:
    return _Ready(max(a.time, b.time), max(a.round, b.round))


def _leaves_first(over: Ints) -> list[tuple[int, int, int]]:
    """(group, parent, colour) of a tree of hosts, every group after those that send to it."""
    above = {int(group): (int(parent), int(colour)) for group, parent, colour in over}

    def depth(group: int) -> int:
        steps = 0
        while group in above:
            group, steps = above[group][0], steps + 1
        return steps

    return [(group, *above[group]) for group in sorted(above, key=lambda group: -depth(group))]
