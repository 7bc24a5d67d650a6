"""All-to-all host after host: every block straight to its rank, those inside a host over the ways of a flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from topocomm.planning.algorithms.gossip_parts import carried
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import Schedule, part_chunks
from topocomm.planning.ways.list_scheduling import Interval, list_schedule
from topocomm.planning.ways.member_ways import MemberWays
from topocomm.planning.ways.way_schedule import MOST_BETWEEN, in_rounds, with_paths

Taken = dict[int, list[Interval]]
"""When ports of the members of a host are taken, by port."""


@dataclass(frozen=True)
class HostOrder:
    """The ranks host by host.

    Attributes:
        order: The ranks.
        starts: The first place of each host in `order`, and the number of ranks.
        insides: The ways between the members of each host.
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    insides: tuple[MemberWays, ...]


@dataclass(frozen=True)
class NicTurns:
    """Which of those that share its NIC each member is, and what a byte from rank to rank takes in us."""

    turns: tuple[int, ...]
    us_per_byte: Callable[[Ints, Ints], Floats]


def hosts_alltoall(
    parts: Sequence[int], hosts: HostOrder, row_bytes: int, *, slices: int = 1, in_turn: NicTurns | None = None
) -> Schedule:
    """Every block straight to its rank, host after host; inside hosts last, in about so many pieces a block.

    In a round all ranks of a host send to one other host, each to another member, so ranks that share a NIC use it
    evenly. With `in_turn`, of hosts of equal size, those that share a NIC use it in turn, and meanwhile the others send
    inside.
    """
    return _Alltoall(parts, hosts, row_bytes, in_turn).schedule(slices)


class _Alltoall:
    """The blocks of an alltoall, and the rounds of those between hosts."""

    def __init__(self, parts: Sequence[int], hosts: HostOrder, row_bytes: int, in_turn: NicTurns | None) -> None:
        self.ranks, self.hosts, self.row_bytes, self.in_turn = len(hosts.order), hosts, row_bytes, in_turn
        chunks, pairs = part_chunks(parts)
        self.rows = np.array([rows for _, rows in chunks], dtype=np.int64)
        self.giver, self.taker = np.divmod(np.array(pairs, dtype=np.int64), self.ranks)
        self.ranked, first = np.array(hosts.order), np.array(hosts.starts)
        place = np.argsort(self.ranked)
        ends = place[self.giver], place[self.taker]
        self.home, self.away = (np.searchsorted(first, end, side="right") - 1 for end in ends)
        self.members = ends[0] - first[self.home], ends[1] - first[self.away]
        self.across = np.flatnonzero(self.home != self.away)
        self.round = self._rounds()

    def schedule(self, slices: int) -> Schedule:
        """Return the schedule, with what stays inside a host in about so many pieces a block."""
        taken, starts_us = self._taken() if self.in_turn else ({}, [0.0])
        rows_of: dict[int, list[int]] = {}
        moves, known = [], dict[tuple[object, ...], Ints]()
        for host, ways in enumerate(self.hosts.insides):
            own = np.flatnonzero((self.home == host) & (self.away == host) & (self.giver != self.taker)).tolist()
            ends = [(int(self.members[0][block]), int(self.members[1][block])) for block in own]
            sizes = [int(rows) for rows in self.rows[own]]
            cut = [ways.pieces(*each, slices, self.row_bytes) for each in zip(ends, sizes, strict=True)]
            rows_of |= {block: [rows for rows, _ in pieces] for block, pieces in zip(own, cut, strict=True)}
            busy = taken.get(host, {})
            key = ways.key, tuple(ends), tuple(sizes), tuple((port, *map(tuple, busy[port])) for port in sorted(busy))
            if key not in known:
                _, sends = list_schedule(ways.lines, [piece for pieces in cut for _, piece in pieces], busy)
                known[key] = in_rounds(ways, sends, starts_us)
            moves.append((host, own, known[key]))
        return self._written(rows_of, moves)

    def _rounds(self) -> Ints:
        """Return the round of each block between hosts."""
        hosts = len(self.hosts.starts) - 1
        most = int(np.diff(self.hosts.starts).max())
        src, dst = (side[self.across] for side in self.members)
        step = src ^ dst if most & (most - 1) == 0 else (dst - src) % most
        turn = (self.away - self.home)[self.across] % hosts * most + step
        turns = self.in_turn.turns if self.in_turn else (0,)
        turn = turn * (1 + max(turns)) + np.resize(np.array(turns), most)[src]
        return np.unique(turn, return_inverse=True)[1].astype(np.int64)

    def _taken(self) -> tuple[dict[int, Taken], list[float]]:
        """Return when ports send, or receive, between hosts, by host; and when each round starts, and the last ends."""
        assert self.in_turn is not None, "members take turns"
        ends = self.giver[self.across], self.taker[self.across]
        took_us = self.in_turn.us_per_byte(*ends) * self.rows[self.across] * self.row_bytes
        longest_us = np.zeros(int(self.round.max(initial=-1)) + 1)
        np.maximum.at(longest_us, self.round, took_us)
        starts_us = np.concatenate([[0.0], np.cumsum(longest_us)])
        taken: dict[int, Taken] = defaultdict(lambda: defaultdict(list))
        order = np.argsort(self.round, kind="stable")
        sizes = np.diff(self.hosts.starts)
        for hosts, members, receives in ((self.home, self.members[0], 0), (self.away, self.members[1], 1)):
            port = members[self.across] + receives * sizes[hosts[self.across]]
            columns = hosts[self.across][order], port[order], starts_us[self.round[order]], took_us[order]
            for host, own, start_us, us in zip(*(column.tolist() for column in columns), strict=True):
                taken[host][own].append((start_us, start_us + us))
        return taken, starts_us.tolist()

    def _written(self, rows_of: dict[int, list[int]], moves: Sequence[tuple[int, list[int], Ints]]) -> Schedule:
        """Return the schedule with these rows of the pieces of blocks, and (host, its blocks, what they send)."""
        rows = [rows_of.get(block, [own]) for block, own in enumerate(self.rows.tolist())]
        counts = np.array([len(own) for own in rows], dtype=np.int64)
        flat = [n for own in rows for n in own]
        first = np.cumsum(counts) - counts
        after = 0 if self.in_turn else int(self.round.max(initial=-1)) + 1
        tables = [[self.round * MOST_BETWEEN, self.giver[self.across], self.taker[self.across], first[self.across]]]
        named = [()] * len(self.across)
        for host, own, (round_, line, piece) in moves:
            ways = self.hosts.insides[host]
            chunk_of = np.concatenate([[0], *(first[block] + np.arange(counts[block]) for block in own)])[1:]
            ends = np.array(ways.ends, dtype=np.int64).reshape(-1, 2)[line] + self.hosts.starts[host]
            tables.append([after * MOST_BETWEEN + round_, *self.ranked[ends].T, chunk_of.astype(np.int64)[piece]])
            named += [ways.named[number] for number in line.tolist()]
        table = np.concatenate(tables, axis=1)
        order = np.argsort(table[0], kind="stable")
        table = table[:, order]
        table[0] = np.unique(table[0], return_inverse=True)[1]
        owner = np.repeat(np.arange(len(counts)), counts)
        schedule = carried(
            self.ranks,
            list(zip(accumulate(flat, initial=0), flat, strict=False)),
            table,
            givers=self.giver[owner].tolist(),
            takers=self.taker[owner].tolist(),
        )
        return with_paths(schedule, [named[number] for number in order.tolist()])
