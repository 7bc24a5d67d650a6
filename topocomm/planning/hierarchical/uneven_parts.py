"""Long parts over hosts of several sizes, in an allgather such that every member receives about as much.

A part goes in pieces. Its owner sends each piece to one member of every other host, its gate there: the one on the
owner's rail while that has no more than its share, else the one that has least. Then all members of a host send what
they have to all others of it. A reduce_scatter is the same backwards in time, and an allreduce both,
first that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from topocomm.planning.algorithms.hosts.rails_parts import fits_parts
from topocomm.planning.algorithms.hosts.rank_groups import Groups
from topocomm.planning.algorithms.hosts.tree_columns import TreeEdges, TreeMessages, tree_schedule
from topocomm.planning.algorithms.hosts.wide_trees import edge_colours
from topocomm.planning.collectives import IN_PARTS
from topocomm.planning.hierarchical.long_values import is_long
from topocomm.planning.rank_patterns import RankPatterns
from topocomm.planning.request import Builds, Request
from topocomm.planning.routing.routes import Ints
from topocomm.planning.schedule.schedule import Schedule, part_chunks, split_rows

MOST_PIECES, LEAST_BYTES = 8, 8 << 10
"""Most pieces of a part, and least bytes of one."""
MOST_ACROSS, MOST_MOVED = 1 << 13, 1 << 17
"""Most messages between hosts, and most pieces that are moved."""
NEARLY = 1.03
"""The fewest pieces are taken by which a member receives at most so many times the least."""


def uneven_parts(request: Request, groups: RankPatterns) -> Builds:
    """Yield name and builder, where hosts have several numbers of members: straight inside hosts, by rings or trees.

    An allreduce, by these alone, has parts of all ranks; straight it is no sooner than parts over the rails of all.
    """
    name, hosts = request.collective.name, _hosts(groups)
    parts = request.collective.parts or tuple(n for _, n in split_rows(request.layout.rows, len(request.endpoints)))
    wanted = request.objective == "auto" and not request.cores and groups.in_order and all(parts)
    if not wanted or not (request.operator.commutative or name == "allgather") or not is_long(request):
        return
    every_on_a_rail = all(sum(member >= 0 for member in own) == hosts.members(at) for at, own in _rails(hosts))
    if hosts.count < 2 or fits_parts(hosts) or not every_on_a_rail:
        return
    ways = [way for way in _ways_inside(request, groups) if way[0] or name in IN_PARTS]
    most = max(1, min(MOST_PIECES, min(parts) * request.layout.row_bytes // LEAST_BYTES)) if ways else 0
    options = [_Gates(hosts, parts, pieces) for pieces in range(1, most + 1) if fits_across(hosts, pieces)]
    if options:
        fewest = min(each.busiest for each in options)
        made = next(each for each in options if each.busiest <= NEARLY * fewest)
        for way, tables in ways:
            yield f"uneven-parts{way}-{made.pieces}", partial(made.schedule, name, tables)


def _hosts(groups: RankPatterns) -> Groups:
    """The hosts, or where links join several to a larger group these."""
    joined, hosts = groups.hierarchy.groups, groups.hosts
    return joined if joined.starts == hosts.starts or 1 < joined.count < hosts.count else hosts


def fits_across(hosts: Groups, pieces: int) -> bool:
    """Return whether parts in so many pieces are few enough."""
    ranks = hosts.starts[-1]
    return ranks * (hosts.count - 1) * pieces <= MOST_ACROSS and ranks * ranks * pieces <= MOST_MOVED


def _rails(hosts: Groups) -> Iterator[tuple[int, tuple[int, ...]]]:
    yield from enumerate(hosts.members_on)


def _ways_inside(request: Request, groups: RankPatterns) -> Iterator[tuple[str, list[Ints]]]:
    """Yield a word and, for each sort of host, int64 [messages, 4]: round, whose pieces, from whom, to whom."""
    hosts = _hosts(groups)
    counts = [inside.members for inside in hosts.insides]
    rings, trees = groups.rings_of(hosts), groups.trees_of(hosts, request.payload_bytes)
    if rings is not None:
        yield "-rings", [_around(ring) for ring in rings]
    if trees is not None:
        yield "-trees", [np.asarray(messages) for messages in trees.messages]
    if rings is None:
        yield "", [_straight(count) for count in counts]


def _straight(count: int) -> Ints:
    """Each member to the next, to the one after that, and so on."""
    step, owner = (column.ravel() + first for column, first in zip(np.indices((count - 1, count)), (1, 0), strict=True))
    return np.stack([step - 1, owner, owner, (owner + step) % count], axis=1)


def _around(ring: Sequence[int]) -> Ints:
    """Each member to the next of a ring, first its own."""
    order, count = np.array(ring), len(ring)
    step, place = (column.ravel() for column in np.indices((count - 1, count)))
    return np.stack([step, order[place], order[(place + step) % count], order[(place + step + 1) % count]], axis=1)


class _Gates:
    """The pieces of all parts, and the member of every host that each comes to first.

    Attributes:
        gates: int64 [hosts, chunks]: ranks; in the owner's host the owner.
        busiest: Rows that a member receives from other hosts, the most of all, as part of what all of its host would
            have equally.
    """

    def __init__(self, hosts: Groups, parts: Sequence[int], pieces: int) -> None:
        self.hosts, self.pieces = hosts, pieces
        whole = part_chunks(tuple(parts))[0]
        self.chunks = [(low + at, n) for low, own in whole for at, n in split_rows(own, pieces)]
        self.owners: Ints = np.repeat(np.arange(len(parts)), pieces)
        self.host: Ints = np.repeat(np.arange(hosts.count), np.diff(hosts.starts))
        self.gates: Ints = np.tile(self.owners, (hosts.count, 1))
        self.busiest = max(self._deal(host) for host in range(hosts.count))

    def _deal(self, host: int) -> float:
        """Choose the gates of a host, and return the rows of the busiest as part of what all have equally."""
        first, count, rails = self.hosts.starts[host], self.hosts.members(host), self.hosts.members_on
        foreign = [chunk for chunk, owner in enumerate(self.owners.tolist()) if self.host[owner] != host]
        share = sum(self.chunks[chunk][1] for chunk in foreign) / count
        rail_of = {
            self.hosts.starts[other] + member: rail
            for other, own in enumerate(rails)
            for rail, member in enumerate(own)
            if member >= 0
        }
        load, left = [0] * count, list[int]()
        for chunk in foreign:
            member, rows = rails[host][rail_of[int(self.owners[chunk])]], self.chunks[chunk][1]
            if member < 0 or load[member] + rows > share:
                left.append(chunk)
                continue
            load[member] += rows
            self.gates[host, chunk] = first + member
        for chunk in left:
            member = load.index(min(load))
            load[member] += self.chunks[chunk][1]
            self.gates[host, chunk] = first + member
        return max(load) / share

    def schedule(self, name: str, inside: Sequence[Ints]) -> Schedule:
        """Return the schedule; `inside` are the messages in hosts of each sort, as of `_ways_inside`."""
        down = TreeEdges(*np.concatenate([self._across(), *self._inside(inside)], axis=1))
        last = down.round.max()
        halves = []
        if name != "allgather":
            halves.append((True, down._replace(round=last - down.round)))
        if name != "reduce_scatter":
            halves.append((False, down._replace(round=down.round + last + 1)))
        up = np.repeat([is_up for is_up, _ in halves], len(down.round))
        edges = TreeEdges(*(np.concatenate(columns) for columns in zip(*(half for _, half in halves), strict=True)))
        order = np.argsort(edges.round, kind="stable")
        return tree_schedule(name, len(self.host), self.chunks, self.owners, TreeMessages(up[order], edges.of(order)))

    def _across(self) -> Ints:
        """Messages between hosts, of one member one after the other: int64 [4, messages], as `TreeEdges`."""
        host, chunk = np.nonzero(self.gates != self.owners)
        gate, owner = self.gates[host, chunk], self.owners[chunk]
        colours = edge_colours(list(zip(gate.tolist(), owner.tolist(), strict=True)))
        return np.stack([np.array(colours, np.int64), gate, owner, chunk])

    def _inside(self, tables: Sequence[Ints]) -> Iterator[Ints]:
        """Messages inside hosts, in rounds after all those between hosts."""
        first = len(self.owners) * self.hosts.count
        for host in range(self.hosts.count):
            low, count = self.hosts.starts[host], self.hosts.members(host)
            chunks = [np.flatnonzero(self.gates[host] == low + member) for member in range(count)]
            for round_, owner, src, dst in tables[self.hosts.sorts[host]].tolist():
                own = chunks[owner]
                yield np.stack(np.broadcast_arrays(first + round_, low + dst, low + src, own))
