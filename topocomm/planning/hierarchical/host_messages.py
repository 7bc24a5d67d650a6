"""What one of many hosts that are alike sends so that each part of a value gets to all ranks: inside, and on its rail.

A part goes from its owner down a tree inside the host, and from the gate of the owner, a member with a fast way out, to
the member of the same number in every other host, from which it goes down a tree there. All hosts do the same at a
time, so that the ports and links of one stand for those of all.

Members that cannot send out at once, as they share a NIC, have turns, and meanwhile the others send inside. Two members
of unlike turns have less time for each other, so turns are given such that those that send to each other have the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from topocomm.planning.hierarchical.spreading_trees import Trees
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.routing.routes import Floats, Ints, Routes
from topocomm.planning.ways.list_scheduling import Interval, Lines, Piece, Send, lines_of_columns, list_schedule

SAME = 1e-9
"""Part by which times may differ that are equal."""


@dataclass(frozen=True, eq=False)
class HostMessages:
    """The messages of a host for parts of equal size, an allgather. Times are for a byte of each part.

    Attributes:
        hosts, members: Number of hosts, and of the members of each.
        owners: The members that own a part.
        table: int64 [messages, 6]: how many hosts before its own that of the owner is, number of the owner in `owners`,
            source, destination, whether it goes to another host, the message before it (-1 for none).
        lines: What messages hold, by kinds of messages.
        line: int64 [messages]: the line of each.
        turns: int64 [members]: the turn of each to send to other hosts; 0 of those that send nothing.
    """

    hosts: int
    members: int
    owners: tuple[int, ...]
    table: Ints
    lines: Lines
    line: Ints
    turns: Ints

    @cached_property
    def across(self) -> Ints:
        """The messages between hosts."""
        return np.flatnonzero(self.table[:, 4])

    @cached_property
    def inside(self) -> Ints:
        """The messages inside a host."""
        return np.flatnonzero(self.table[:, 4] == 0)

    @cached_property
    def is_direct(self) -> bool:
        """Whether every owner sends its part to other hosts itself."""
        return bool((self.table[self.across, 5] < 0).all())

    def is_worth(self, factor: float) -> bool:
        """Whether all takes so many times as long if what goes inside and what goes between hosts take turns."""
        phases_us = self._load_us(self.across) + self._load_us(self.inside)
        return phases_us > factor * self._load_us(np.arange(len(self.table)))

    def least_us(self) -> float:
        """Return about what all take, turns included."""
        if not self.is_direct:
            return self._load_us(np.arange(len(self.table)))
        inside_us = self._inside_us
        longest_us = max(float(inside_us.sum(axis=axis).max()) for axis in (0, 1))
        return (self.hosts - 1) * self._cycle_us + longest_us

    def in_turns(self) -> HostMessages:
        """Return the messages with turns for members that share links on their way out."""
        sharing: dict[int, list[int]] = {}
        taken: dict[tuple[int, int], int] = defaultdict(int)
        turns = np.zeros(self.members, dtype=np.int64)
        for message in self.across.tolist():
            member = int(self.table[message, 2])
            if member in sharing:
                continue
            links = sharing[member] = sorted(set(self.lines.held[self.line[message], 2:].tolist()))
            turn = 0
            while any(taken[link, turn] >= self.lines.places[link] for link in links):
                turn += 1
            turns[member] = turn
            for link in links:
                taken[link, turn] += 1
        pairs = [(a, b) for a in sharing for b in sharing if a < b and sharing[a] == sharing[b]]
        return replace(self, turns=self._exchanged(turns, pairs))

    def sends(self, slices: int, slice_bytes: int) -> tuple[float, list[Send]]:
        """Return (when the last ends, in us, all messages in the order of their starts) for parts in slices.

        Those of slice k are pieces from k times the number of messages on.
        """
        starts_us, taken = self._timetable(slices, slice_bytes) if self.is_direct else ({}, {})
        count, lines, after = len(self.table), self.line.tolist(), self.table[:, 5].tolist()
        numbers = [number for number in range(slices * count) if number not in starts_us]
        place = {number: at for at, number in enumerate(numbers)}
        pieces, end_us = [], 0.0
        for number in numbers:
            message = number % count
            before = number - message + after[message] if after[message] >= 0 else -1
            from_us = 0.0
            if before in starts_us:
                line = lines[after[message]]
                from_us = starts_us[before] + self._us(line, slice_bytes) + float(self.lines.latency_us[line])
                end_us = max(end_us, from_us)
            pieces.append(Piece(slice_bytes, (lines[message],), place.get(before, -1), from_us))
        last_us, sends = list_schedule(self.lines, pieces, taken, in_line_order=not self.waits_for_nics)
        every = [send._replace(piece=numbers[send.piece]) for send in sends]
        every += [Send(start_us, lines[number % count], number) for number, start_us in starts_us.items()]
        return max(last_us, end_us), sorted(every)

    def ends_us(self, sends: Sequence[Send], slice_bytes: int) -> list[float]:
        """Return when the last byte of each of these has left."""
        return [send.start_us + self._us(send.line, slice_bytes) for send in sends]

    def _us(self, line: int, size: int) -> float:
        return float(self.lines.us_per_byte[line]) * size + float(self.lines.gap_us[line])

    def _load_us(self, which: Ints) -> float:
        """What the busiest port or link takes for these messages."""
        held = self.lines.held[self.line[which]]
        us = np.repeat(self.lines.us_per_byte[self.line[which]], held.shape[1])
        load_us = np.bincount(held.ravel(), us, len(self.lines.places))
        return float((load_us / self.lines.places).max(initial=0.0))

    @cached_property
    def _inside_us(self) -> Floats:
        """What member a sends to b of the parts of one host, [a, b]."""
        own = self.inside[self.table[self.inside, 0] == 0]
        us = np.zeros((self.members, self.members))
        np.add.at(us, (self.table[own, 2], self.table[own, 3]), self.lines.us_per_byte[self.line[own]])
        return us

    def _slot_us(self, size: float) -> float:
        """What a turn takes."""
        lines = self.line[self.across]
        return float((self.lines.us_per_byte[lines] * size + self.lines.gap_us[lines]).max())

    @cached_property
    def _cycle_us(self) -> float:
        """The least time in which the parts of one host go to another, and inside.

        Members of unlike turns send to each other while neither sends out.
        """
        slot_us, turns = float(self.lines.us_per_byte[self.line[self.across]].max()), self.turns
        ports_us, apart_us, count = 0.0, 0.0, 1 + int(turns.max())
        for us in (self._inside_us, self._inside_us.T):
            ports_us = max(ports_us, float(us.sum(axis=1).max()))
            for turn in range(count):
                apart_us = max(apart_us, float(us[turns != turn][:, turns == turn].sum(axis=1).max(initial=0.0)))
        return max(slot_us * count, slot_us + ports_us, 2 * slot_us + apart_us)

    @cached_property
    def waits_for_nics(self) -> bool:
        """Whether the turns fill a cycle, so that ports have time left; also of parts that others send out."""
        if not self.is_direct:
            return True
        slots_us = (1 + int(self.turns.max())) * float(self.lines.us_per_byte[self.line[self.across]].max())
        return slots_us >= self._cycle_us * (1 - SAME)

    def _exchanged(self, turns: Ints, pairs: Sequence[tuple[int, int]]) -> Ints:
        """Exchange turns of these pairs while that leaves less to send between members of unlike turns."""

        def apart_us() -> float:
            return float(self._inside_us[turns[:, None] != turns].sum())

        least_us, is_better = apart_us(), True
        while is_better:
            is_better = False
            for a, b in pairs:
                turns[[a, b]] = turns[[b, a]]
                if apart_us() < least_us * (1 - SAME):
                    least_us, is_better = apart_us(), True
                else:
                    turns[[a, b]] = turns[[b, a]]
        return turns

    def _timetable(self, slices: int, slice_bytes: int) -> tuple[dict[int, float], dict[int, list[Interval]]]:
        """Return (when each message between hosts begins, when ports have one); turns follow each other in cycles."""
        starts_us, taken = dict[int, float](), defaultdict[int, list[Interval]](list)
        slot_us = self._slot_us(slice_bytes)
        cycle_us = max(self._cycle_us * slice_bytes, slot_us * (1 + int(self.turns.max())))
        for slice_ in range(slices):
            for message in self.across.tolist():
                behind, _, member = self.table[message, :3].tolist()
                cycle = slice_ * (self.hosts - 1) + behind - 1
                at_us = cycle * cycle_us + int(self.turns[member]) * slot_us
                starts_us[slice_ * len(self.table) + message] = at_us
                for port in self.lines.held[self.line[message], :2].tolist():
                    taken[port].append((at_us, at_us + slot_us))
        return starts_us, taken


def host_messages(
    ends: Sequence[str], hosts: int, owners: Sequence[int], gates: Sequence[int], trees: Trees, paths: PathFinder
) -> HostMessages:
    """Return the messages of a host; all have one turn.

    Args:
        ends: The endpoints of two hosts.
        hosts: The number of all.
        owners: The members that own a part.
        gates: For each of these the member by which its part leaves.
        trees: The trees inside.
        paths: The routes of the machine.

    Raises:
        NoRouteError: One of these messages has no route.
    """
    members, rows = len(ends) // 2, list[tuple[int, ...]]()
    own = [{owner: -1} for owner in owners]
    """The message that brings the part of each owner to each member of its host."""
    for behind in range(hosts):
        for number, (owner, gate) in enumerate(zip(owners, gates, strict=True)):
            there = own[number]
            if behind:
                there = {gate: len(rows)}
                rows.append((behind, number, gate, gate, 1, own[number][gate]))
            for parent, child in trees[gate if behind else owner]:
                there[child] = len(rows)
                rows.append((behind, number, parent, child, 0, there[parent]))
    table = np.array(rows, dtype=np.int64)
    kinds, line = _in_steps(members, *np.unique(table[:, 2:5], axis=0, return_inverse=True))
    pairs = [(src, dst) for src, dst, _ in kinds.tolist()]
    lines = lines_of_columns(paths, members, pairs, _routes_of(ends, members, kinds, paths), 1)
    turns = np.zeros(members, dtype=np.int64)
    return HostMessages(hosts, members, tuple(owners), table, lines, line, turns)


def _in_steps(members: int, kinds: Ints, line: Ints) -> tuple[Ints, Ints]:
    """The kinds of messages, those next to each other that share no port, and the number of each message's kind."""
    src, dst, away = kinds.T
    step = src ^ dst if members & (members - 1) == 0 else (dst - src) % members
    order = np.lexsort((src, step, -away))
    return kinds[order], np.argsort(order)[line.reshape(-1)]


def _routes_of(ends: Sequence[str], members: int, kinds: Ints, paths: PathFinder) -> Routes:
    """The routes of messages (source, destination, whether to another host); with those back, as all hosts send."""
    src, dst, away = kinds.T
    there = paths.routes(ends, src, dst + members * away)
    back = paths.routes(ends, src + members * away, dst)
    if np.isinf([there.latency_us, back.latency_us]).any():
        raise NoRouteError("no route between members of hosts that are alike")
    links = []
    for message, is_away in enumerate(away.tolist()):
        ways = (there, back) if is_away else (there,)
        links.append(np.concatenate([way.links[slice(*way.starts[message : message + 2])] for way in ways]))
    return Routes(
        np.maximum(there.latency_us, back.latency_us),
        np.minimum(there.gb_per_s, back.gb_per_s),
        np.maximum(there.gap_us, back.gap_us),
        np.cumsum([0, *map(len, links)]),
        np.concatenate(links),
    )
