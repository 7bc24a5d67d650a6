"""A reduce or broadcast of hosts that are alike: trees packed into each, gates of the trees joined by trees of hosts.

A share of the value goes over a few trees of hosts (`wide_trees.py`), an equal part on each. A reduce brings it up the
tree of every host to the gate, from gate to gate to the root's host, and up a tree there to the root; a broadcast goes
the other way. Every message has its turn in a period (`periodic_turns.py`), those between hosts by the colours of the
trees of hosts, the same in all hosts but the root's; it goes in the first period in which what it forwards is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, broadcast_down, reduce_up
from topocomm.planning.algorithms.hosts.wide_trees import wide_trees
from topocomm.planning.forests.tree import Tree
from topocomm.planning.host_forests.host_allreduce import DIGITS, SAME, SOON
from topocomm.planning.host_forests.host_packing import HostLoads
from topocomm.planning.host_forests.periodic_turns import periodic_turns
from topocomm.planning.host_forests.rooted_packing import RootedPacking
from topocomm.planning.host_forests.tree_kinds import PairedTrees
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule, split_rows


class _Key(NamedTuple):
    """A message of all hosts: of a tree of the root's host or of the others, on the edge to the parent of a member.

    Between hosts it is of a share from the gate, and `colour` is that of the trees of hosts; else both are -1.
    """

    own: bool
    tree: int
    child: int
    share: int
    colour: int


class _Ready(NamedTuple):
    """When a value is there, and after which round."""

    time: float
    round: int


FEWEST_PARTS = 32
"""Least parts of the value between hosts: larger ones take a slow link long, and ports inside wait for them."""
START = _Ready(0.0, 0)


@dataclass(frozen=True)
class RootedClock:
    """When messages leave.

    Attributes:
        edges: Those of the first slice, by chunk.
        period: Time from a slice to the next.
        takes: Time until the first slice is through, in the same unit.
        stagger: Rounds of a period.
    """

    edges: TreeEdges
    period: float
    takes: float
    stagger: int


class RootedHosts:
    """Pairs of trees of a host, trees of hosts, and the turns of their messages.

    Attributes:
        root: Rank, in the order of hosts.
        fastest: GB/s at which a value takes the unit of time.
        period: In that unit.
    """

    def __init__(
        self, loads: HostLoads, packing: RootedPacking, made: PairedTrees, root: int, *, radix: int, reduces: bool
    ) -> None:
        self.members, self.hosts, self.fastest, self.root = loads.members, loads.hosts, loads.fastest, root
        self.made, self.reduces, self.home = made, reduces, root // loads.members
        over, colours = wide_trees(loads.hosts, self.home, radix)
        times = -(-FEWEST_PARTS // (len(over) * made.shares))
        self.over = [tree + np.array([0, 0, colours * time]) for time in range(times) for tree in over]
        colours *= times
        self.parts = len(self.over)
        keys, held, latency_us = list[_Key](), list[Floats](), list[float]()
        for own, kind in ((False, made.others), (True, made.own)):
            for number, (shares, tree) in enumerate(kind):
                for parent, child, _ in tree.edges:
                    keys.append(_Key(own, number, child, -1, -1))
                    held.append(packing.edge(parent, child, int(own)) * (shares / made.shares))
                    ends = (child, parent) if self.reduces else (parent, child)
                    latency_us.append(float(loads.latency_us[ends]))
        for share, (_, number) in enumerate(made.pairs):
            gate = made.others[number][1].root
            keys += [_Key(False, number, gate, share, colour) for colour in range(colours)]
            held += [packing.gates[gate] / (made.shares * self.parts)] * colours
            latency_us += [float(loads.latency_us[gate, gate])] * colours
        self.keys, self.latency_us = {key: place for place, key in enumerate(keys)}, latency_us
        table = np.array(held)
        self._table, ports = table, [*range(2 * self.members), *range(packing.rows, packing.rows + 2 * self.members)]
        self.held: list[float] = table[:, ports].max(axis=1).tolist()
        self.starts: list[float] = []
        self.period = 0.0

    def in_turns(self, tries: int) -> RootedHosts:
        """Give the messages turns, the best of so many tries: as soon in a period as they can go."""
        starts, self.period = periodic_turns(self._table, tries)
        self.starts = starts.tolist()
        return self

    def as_late(self) -> RootedHosts:
        """Return the same in turns as late in a period as they can go.

        Ports do not wait for turns. Where they are idle they run ahead, over links that others need then: mostly less
        so if that is early in the period.
        """
        made = copy(self)
        made.starts = [max(0.0, self.period - start - held) for start, held in zip(self.starts, self.held, strict=True)]
        return made

    @property
    def trees(self) -> int:
        """Number of trees of the other hosts."""
        return len(self.made.others)

    @property
    def chunks(self) -> int:
        """Parts of the value that go their own way."""
        return self.made.shares * self.parts

    @property
    def messages(self) -> int:
        """Messages of a slice."""
        inside = (len(self.made.own) + self.trees * (self.hosts - 1)) * (self.members - 1)
        return inside + self.chunks * (self.hosts - 1)

    def clock(self, value_us: float) -> RootedClock:
        """Return when all leave, where a slice of the value takes so long at the fastest rate."""
        return _Walk(self, value_us).clock()

    def schedule(self, rows: int, clock: RootedClock) -> Schedule:
        """Return the schedule of one slice, whose rounds are turns."""
        shares = split_rows(rows, self.made.shares)
        chunks = [(first + low, n) for first, part in shares for low, n in split_rows(part, self.parts)]
        make = reduce_up if self.reduces else broadcast_down
        return make(clock.edges, self.members * self.hosts, self.root, chunks)


class _Walk:
    """The messages of the first slice, each in the first of its turns after what it forwards has arrived."""

    def __init__(self, plan: RootedHosts, value_us: float) -> None:
        self.plan, self.takes, self.sent = plan, 0.0, list[tuple[int, int, int, int]]()
        self.kinds: list[Ints] = []
        """Chunks that go together: `sent` has round, child, parent and number of these."""
        turns = np.unique(np.round(np.array(plan.starts) / plan.period, DIGITS), return_inverse=True)[1]
        self.turns, self.stagger = turns.tolist(), int(turns.max()) + 1
        self.lasts = [max(held + us / value_us, SOON) for held, us in zip(plan.held, plan.latency_us, strict=True)]
        self.round = 0

    def clock(self) -> RootedClock:
        if self.plan.reduces:
            self._up()
        else:
            self._down()
        round_, child, parent, kind = np.array(self.sent, dtype=np.int64).T
        counts = np.array([len(chunks) for chunks in self.kinds])
        chunk = np.concatenate([self.kinds[each] for each in kind.tolist()])
        round_, child, parent = (np.repeat(column, counts[kind]) for column in (round_, child, parent))
        return RootedClock(TreeEdges(round_, child, parent, chunk), self.plan.period, self.takes, self.stagger)

    def _up(self) -> None:
        plan = self.plan
        at_home = []
        for tree, (_, other) in enumerate(plan.made.others):
            hosts = [host for host in range(plan.hosts) if host != plan.home]
            at_gate = self._inside_up(other, hosts, _Key(False, tree, 0, -1, -1), {})[other.root]
            there = START
            for share, over, kind in self._across(tree):
                ready = {int(group): at_gate for group in over[:, 0]}
                for group, parent, colour in _leaves_first(over):
                    arrives = self._send(_Key(False, tree, other.root, share, colour), ready[group])
                    self._note([group], [parent], (other.root, other.root), kind)
                    ready[parent] = _later(ready.get(parent, START), arrives)
                there = _later(there, ready[plan.home])
            at_home.append(there)
        for tree, (_, own) in enumerate(plan.made.own):
            entries: dict[int, _Ready] = {}
            for number in {other for at, other in plan.made.pairs if at == tree}:
                gate = plan.made.others[number][1].root
                entries[gate] = _later(entries.get(gate, START), at_home[number])
            self._inside_up(own, [plan.home], _Key(True, tree, 0, -1, -1), entries)

    def _inside_up(self, which: Tree, hosts: Sequence[int], key: _Key, entries: dict[int, _Ready]) -> list[_Ready]:
        ready = [entries.get(member, START) for member in range(self.plan.members)]
        kind = self._shares(key)
        for parent, child, _ in reversed(which.edges):
            ready[parent] = _later(ready[parent], self._send(key._replace(child=child), ready[child]))
            self._note(hosts, hosts, (child, parent), kind)
        return ready

    def _down(self) -> None:
        plan = self.plan
        inside = [
            self._inside_down(own, plan.home, _Key(True, tree, 0, -1, -1), START)
            for tree, (_, own) in enumerate(plan.made.own)
        ]
        for tree, (_, other) in enumerate(plan.made.others):
            there = dict.fromkeys(range(plan.hosts), START)
            for share, over, kind in self._across(tree):
                ready = {plan.home: inside[plan.made.pairs[share][0]][other.root]}
                for group, parent, colour in reversed(_leaves_first(over)):
                    ready[group] = self._send(_Key(False, tree, other.root, share, colour), ready[parent])
                    self._note([group], [parent], (other.root, other.root), kind)
                    there[group] = _later(there[group], ready[group])
            for host in range(plan.hosts):
                if host != plan.home:
                    self._inside_down(other, host, _Key(False, tree, 0, -1, -1), there[host])

    def _inside_down(self, which: Tree, host: int, key: _Key, at_root: _Ready) -> dict[int, _Ready]:
        ready, kind = {which.root: at_root}, self._shares(key)
        for parent, child, _ in which.edges:
            ready[child] = self._send(key._replace(child=child), ready[parent])
            self._note([host], [host], (child, parent), kind)
        return ready

    def _across(self, tree: int) -> Iterator[tuple[int, Ints, int]]:
        """Yield share, tree of hosts and chunks of what passes the gate of a tree."""
        for share, (_, other) in enumerate(self.plan.made.pairs):
            for part, over in enumerate(self.plan.over if other == tree else ()):
                yield share, over, self._kind([share * self.plan.parts + part])

    def _shares(self, key: _Key) -> int:
        """Number the chunks of a tree."""
        shares = np.array([at for at, pair in enumerate(self.plan.made.pairs) if pair[not key.own] == key.tree])
        return self._kind((shares[:, None] * self.plan.parts + np.arange(self.plan.parts)).ravel().tolist())

    def _kind(self, chunks: list[int]) -> int:
        self.kinds.append(np.array(chunks, np.int64))
        return len(self.kinds) - 1

    def _send(self, key: _Key, ready: _Ready) -> _Ready:
        """Take the first turn of a message from when its value is there; return when it has arrived."""
        plan = self.plan
        place = plan.keys[key]
        start, turn = plan.starts[place], self.turns[place]
        in_time = ceil((ready.time - start) / plan.period - SAME)
        periods = max(0, in_time, -((turn - ready.round) // self.stagger))
        self.round = periods * self.stagger + turn
        arrives = start + periods * plan.period + self.lasts[place]
        self.takes = max(self.takes, arrives)
        return _Ready(arrives, self.round + 1)

    def _note(self, below: Sequence[int], above: Sequence[int], members: tuple[int, int], kind: int) -> None:
        """Note the message just sent, from or to a child in each of these hosts."""
        for child, parent in zip(below, above, strict=True):
            ends = child * self.plan.members + members[0], parent * self.plan.members + members[1]
            self.sent.append((self.round, *ends, kind))


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
