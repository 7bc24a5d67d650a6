"""Allreduce, allgather and reduce-scatter of parts down (up) a tree for each part, in slices whose messages have turns.

A rank has coordinates: its group among groups (hosts, sockets), and so on, down to its number in the innermost group. A
part goes from its owner to the ranks that differ from it in the outermost coordinate alone, from each of these to those
that differ in the next one, too, and last inside the innermost groups: it crosses the way into a group once. Reduces go
the same way back.

A slice begins a period after the one before, and all messages of a slice have turns in a period (`turn_packing.py`), so
that one message at a time is on a link that several ranks share, and the ports of the others are free for messages
inside their groups: what would be one phase after the other takes place at once, for different slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, TreeMessages, tree_schedule
from topocomm.planning.algorithms.hosts.turn_packing import SAME, packed_turns, rows_of
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule

NO_PARENT = -1
"""Parent of the owner of a part."""
GRAINS = (1, 2, 3)
"""Turns of the shortest message that are tried: more follow the durations more closely, and are harder to pack."""
WORTH = 1.05
"""How many times as long the phases must take one after the other as all at once."""


def part_parents(coordinates: Sequence[int], gate: int | None = None) -> Ints:
    """Return the parent of every rank in the tree of every part, [parts, ranks]; coordinates outermost first.

    With `gate`, parts pass from one outermost group to another between ranks of that second coordinate: those by the
    NIC, where only one socket has one. Else they pass between ranks that differ in the outermost coordinate alone.
    """
    ranks = int(np.prod(coordinates))
    owner, rank = np.indices((ranks, ranks))
    parents, stride = np.full((ranks, ranks), NO_PARENT), ranks
    if gate is not None:
        size, members = ranks // coordinates[0], ranks // coordinates[0] // coordinates[1]
        far = owner // size != rank // size
        passes = owner + (gate - owner // members % coordinates[1]) * members  # of the owner's group
        parents = np.where(far & (rank % size == passes % size), passes, parents)
        owner, stride = np.where(far, passes, owner), size
        coordinates = coordinates[1:]
    for count in coordinates:
        stride //= count
        apart = owner // stride % count - rank // stride % count
        parents = np.where(apart, rank + apart * stride, parents)
    return parents


@dataclass(frozen=True, eq=False)
class Turns:
    """When the messages of the first slice begin, in turns.

    Attributes:
        first: Turn of every message in the period.
        held: How many turns it has.
        period: Turns between slices.
        byte_us: What a turn takes, for each byte of a part.
    """

    first: Ints
    held: Ints
    period: int
    byte_us: float


class PartTrees:
    """The messages of one slice, for one of these collectives: every tree up, then every tree down.

    Attributes:
        up: Whether each goes to the parent; the first are those of a reduce.
        chunk, rank, parent: The edge that each is for.
        src, dst: The ranks it goes from and to.
    """

    def __init__(
        self,
        coordinates: Sequence[int],
        endpoints: Sequence[str],
        paths: PathFinder,
        name: str,
        gate: int | None = None,
    ) -> None:
        self.name, self.ranks = name, len(endpoints)
        self.parents = part_parents(coordinates, gate)
        part, rank = np.nonzero(self.parents != NO_PARENT)
        ways = {"allgather": [False], "reduce_scatter": [True], "allreduce": [True, False]}[name]
        self.up = np.repeat(ways, len(part))
        self.chunk, self.rank = np.tile(part, len(ways)), np.tile(rank, len(ways))
        self.parent = self.parents[self.chunk, self.rank]
        self.src = np.where(self.up, self.rank, self.parent)
        self.dst = np.where(self.up, self.parent, self.rank)
        self.routes = paths.routes(endpoints, self.src, self.dst)
        self.link_gb_per_s = paths.link_gb_per_s
        self.depth = self._depths()[self.chunk, self.rank]

    def _depths(self) -> Ints:
        depths, above = np.zeros_like(self.parents), self.parents
        chunks = np.arange(self.ranks)[:, None]
        while (above != NO_PARENT).any():
            depths += above != NO_PARENT
            above = np.where(above == NO_PARENT, NO_PARENT, self.parents[chunks, above])
        return depths

    @cached_property
    def rows(self) -> list[tuple[int, ...]]:
        """The ports that every message holds, and the links that it needs, as numbers."""
        return rows_of(self.src, self.dst, self.routes, self.link_gb_per_s, self.ranks)

    def has_routes(self) -> bool:
        """Whether all messages have routes."""
        return not np.isinf(self.routes.latency_us).any()

    def is_worth(self) -> bool:
        """Whether all have routes, and would take clearly longer in phases, by depth, than all at once."""
        if not self.has_routes():
            return False
        byte_us = 1 / self.routes.gb_per_s
        depths = range(1, int(self.depth.max()) + 1)
        phases = [np.flatnonzero((self.depth == depth) & (self.up == up)) for up in (True, False) for depth in depths]
        at_once_us = self._busiest(np.arange(len(self.src)), byte_us)
        return sum(self._busiest(phase, byte_us) for phase in phases) > WORTH * at_once_us

    def _busiest(self, messages: Ints, times: Ints | Floats) -> float:
        """The most that a port or link has to do, if each of these messages takes its time."""
        load: dict[int, float] = {}
        for message in messages.tolist():
            for row in self.rows[message]:
                load[row] = load.get(row, 0.0) + float(times[message])
        return max(load.values(), default=0.0)

    def sections(self) -> list[list[Ints]]:
        """Return the ways to give turns: what is up before what is down, and for an allreduce both at once.

        What goes up leaves the groups that what goes down enters, so that both at once share ports and links and have
        the shorter period; with one before the other the first slice is through sooner.
        """
        apart = [np.flatnonzero(self.up == up) for up in sorted(set(self.up.tolist()), reverse=True)]
        return [apart, [np.arange(len(self.up))]] if len(apart) > 1 else [apart]

    def load_us(self, sections: Sequence[Ints]) -> float:
        """Return the least period for a byte of a part, in us: what the busiest port or link of each section takes.

        Infinite where a message has no route.
        """
        if not self.has_routes():
            return inf
        return sum(self._busiest(section, 1 / (self.routes.gb_per_s * 1e3)) for section in sections)

    def turns(self, sections: Sequence[Ints]) -> Turns:
        """Return the turns of these messages, section by section, in the grain of the shortest period.

        Durations are rounded to the nearest: turns are an order, and one with gaps lets messages run into each other.
        """
        byte_us = 1 / (self.routes.gb_per_s * 1e3)
        shortest_us, best = float(byte_us.min()), None
        for grain in GRAINS:
            held, turn_us = np.rint(byte_us / shortest_us * grain).astype(np.int64), shortest_us / grain
            least_us = sum(self._busiest(section, held) for section in sections) * turn_us
            if best is None or least_us < best.period * best.byte_us * (1 - SAME):
                made = self._packed(sections, held, turn_us)
                if best is None or made.period * made.byte_us < best.period * best.byte_us * (1 - SAME):
                    best = made
        assert best is not None
        return best

    def _packed(self, sections: Sequence[Ints], held: Ints, turn_us: float) -> Turns:
        first, period = np.zeros(len(self.src), np.int64), 0
        for own in sections:
            packed, turns = packed_turns([self.rows[each] for each in own.tolist()], held[own].tolist())
            first[own], period = period + packed, period + turns
        return Turns(first, held, period, turn_us)

    def starts(self, turns: Turns, part_bytes: float) -> tuple[Ints, float]:
        """Return (turn in which each message of the first slice begins, us in which the first slice passes).

        It is the first of its turns by which what it sends has arrived.
        """
        turn_us = turns.byte_us * part_bytes
        under_way = np.ceil((self.routes.latency_us + self.routes.gap_us) / turn_us - SAME).astype(np.int64)
        starts = np.zeros(len(self.src), np.int64)
        ready = np.zeros((self.ranks, self.ranks), np.int64)  # by chunk and rank: what it sends has arrived
        deepest = int(self.depth.max())
        for up in sorted(set(self.up.tolist()), reverse=True):
            for depth in range(deepest, 0, -1) if up else range(1, deepest + 1):
                now = np.flatnonzero((self.up == up) & (self.depth == depth))
                before = ready[self.chunk[now], self.src[now]]
                starts[now] = before + (turns.first[now] - before) % turns.period
                arrives = starts[now] + turns.held[now] + under_way[now]
                np.maximum.at(ready, (self.chunk[now], self.dst[now]), arrives)
        return starts, float(ready.max()) * turn_us

    def schedule(self, chunks: Sequence[tuple[int, int]], starts: Ints) -> Schedule:
        """Return the schedule of one slice, whose rounds are turns."""
        messages = TreeMessages(self.up, TreeEdges(starts, self.rank, self.parent, self.chunk))
        return tree_schedule(self.name, self.ranks, chunks, np.arange(self.ranks), messages)
