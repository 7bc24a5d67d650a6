"""Least time of a scan or exscan by what each rank's result takes of the rank before it, around one host.

The contribution of rank r - 1 gets into the result of rank r by messages that no other result of an exscan shares: they
hold nothing of rank r, and what the others need does. So a prefix takes of links and ports what it takes to send a
payload from each rank to the next one, over whatever relays, and chains with relays take no more. Links of the host
have lengths and its ports weights, by a linear program; all beside the host is one endpoint of any rate, from which
nothing is far. Of a scan two results can share a message; what that saves at most is taken off. Why it holds:
docs/concepts/cost-models.md, section Bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.machine_columns import Flags, Floats, Ints, Machine
from topocomm.planning.bounds.time.fastest_links import ids_of
from topocomm.planning.forests.linear_program.simplex import Simplex

MOST_MEMBERS = 16
"""Endpoints of the largest host."""
MOST_TURNS, GAIN = 64, 1e-6
"""How often ways are looked for that are shorter than their price, by such a part of it."""
LEAST_PRICE, LEAST_LENGTH = 1e-7, 1e-9
"""Part of all prices below which one is none; and the length of a link in the time of a byte where ways are looked
for, so that none goes around in a circle."""
Hop = tuple[int, int]
"""Nodes that send and receive a message."""


class NeighbourFlow(NamedTuple):
    """The best lengths and weights around a host, and the rate that they allow.

    Attributes:
        gb_per_s: Payload over the time.
        first: The first endpoint of the host.
        group: All its devices.
        links: (source, destination, length) of links with a length.
        ports: (endpoint, "out" or "in", weight) of ports with a weight.
    """

    gb_per_s: float
    first: str
    group: list[str]
    links: list[tuple[str, str, float]]
    ports: list[tuple[str, str, float]]


def neighbour_flows(demand: Demand, machine: Machine, ports: int) -> Iterator[NeighbourFlow]:
    """Yield those of one host between others, and of two hosts, or one, of each."""
    if not demand.prefix:
        return
    host_of = machine.host[machine.ends]
    hosts = host_of[np.sort(np.unique(host_of, return_index=True)[1])].tolist()
    for host in hosts[1:2] if len(hosts) > 2 else hosts:
        if 1 < (host_of == host).sum() <= MOST_MEMBERS:
            found = _Around(demand, machine, machine.host == host, ports).best()
            if found is not None:
                yield found


class _Around:
    """A host and all that is beside it: its endpoints are the nodes 0..members-1, what is beside it is `members`."""

    def __init__(self, demand: Demand, machine: Machine, own: Flags, ports: int) -> None:
        self.machine, self.ports = machine, ports
        ends = np.flatnonzero(own & machine.is_end)
        self.members = len(ends)
        self.ids = [machine.ids[end] for end in ends.tolist()]
        self.group = ids_of(machine, np.flatnonzero(own))
        node = np.full(machine.devices, self.members)
        node[ends] = np.arange(self.members)
        inner = np.flatnonzero(own & ~machine.is_end)
        node[inner] = self.members + 1 + np.arange(len(inner))
        self.nodes = self.members + 1 + len(inner)
        kept = np.flatnonzero(node[machine.src] != node[machine.dst])
        self.kept = kept[np.argsort(node[machine.dst[kept]], kind="stable")]
        self.tail, self.head = node[machine.src[self.kept]], node[machine.dst[self.kept]]
        self.rate = machine.gb_per_s[self.kept]
        self.levels = np.unique(self.rate)
        self.first = np.flatnonzero(np.diff(self.head, prepend=-1))
        self.can_share = demand.name == "scan"
        self.ranks: Ints = node[machine.place]
        pairs = [pair for pair in pairwise(self.ranks.tolist()) if pair[0] != pair[1]]
        self.wanted = {pair: pairs.count(pair) for pair in dict.fromkeys(pairs)}
        self._row = {pair: row for row, pair in enumerate(self.wanted)}
        self.runs = self._runs() if self.wanted else []

    def best(self) -> NeighbourFlow | None:
        """Return the best bound by column generation: of each pair of neighbours the shortest way is added."""
        if not self.wanted or not len(self.kept):
            return None
        unit, rows = float(self.levels[-1]), len(self.wanted)
        program = Simplex(np.append(np.zeros(rows), np.ones(len(self.kept) + 2 * self.members)))
        program.add(np.arange(rows), np.array(list(self.wanted.values()), float), 1.0)
        lengths, weights = 1 / self.rate, np.ones((2, self.members)) / self.ports
        known = set[tuple[bytes, tuple[int, ...]]]()
        for _ in range(MOST_TURNS):
            search = _Search(self, np.maximum(lengths, LEAST_LENGTH / self.rate), weights)
            if not np.isfinite([search.apart[pair] for pair in self.wanted]).all():
                return None
            before, prices = len(known), program.prices[:rows] / unit
            for served, least, way in self._cheapest(search):
                key = served.tobytes(), tuple(link for _, links in way for link in links)
                if key not in known and (not before or least < float((served * prices).sum()) * (1 - GAIN)):
                    known.add(key)
                    program.add(*self._column(served, way, unit))
            if len(known) == before:
                break
            program.solve()
            lengths, weights = self._priced(np.maximum(program.prices[rows:], 0.0))
        return self._bound(lengths, weights)

    def _cheapest(self, search: _Search) -> Iterator[tuple[Floats, float, tuple[_Message, ...]]]:
        """Yield the pairs that messages serve, by number, their length, and the shortest messages for them."""
        for row, pair in enumerate(self.wanted):
            yield np.eye(len(self.wanted))[row], float(search.apart[pair]), search.way(*pair)
        for run in self.runs if self.can_share else ():
            least, ways = _least_shared(search.apart, run)
            served = np.zeros(len(self.wanted))
            np.add.at(served, [self._row[pair] for pair in pairwise(run) if pair in self._row], 1.0)
            yield served, least, tuple(message for way in ways for message in search.way(*way))

    def _column(self, served: Floats, way: Sequence[_Message], unit: float) -> tuple[Ints, Floats, float]:
        """The pairs, and the links and ports that the payload holds on a way, in the time of the fastest rate."""
        load = np.zeros(len(self.kept) + 2 * self.members)
        for (src, dst), links in way:
            load[list(links)] += unit / self.rate[list(links)]
            held = unit / float(self.rate[list(links)].min()) / self.ports
            for side, end in enumerate((src, dst)):
                if end < self.members:
                    load[len(self.kept) + side * self.members + end] += held
        column = np.append(-served, load)
        used = np.flatnonzero(column)
        return used, column[used], 0.0

    def _priced(self, prices: Floats) -> tuple[Floats, Floats]:
        """Lengths of links and weights of ports at these prices."""
        prices = np.where(prices < LEAST_PRICE * prices.sum(), 0.0, prices)
        links = len(self.kept)
        return prices[:links] / self.rate, prices[links:].reshape(2, -1) / self.ports

    def _bound(self, lengths: Floats, weights: Floats) -> NeighbourFlow | None:
        apart = _Search(self, lengths, weights).apart
        if self.can_share:
            needed = sum(_least_shared(apart, run)[0] for run in self.runs)
        else:
            needed = sum(count * float(apart[pair]) for pair, count in self.wanted.items())
        carried = float((lengths * self.rate).sum() + self.ports * weights.sum())
        if not 0 < needed < np.inf:
            return None
        names, kept = self.machine.ids, self.kept
        links = [
            (names[self.machine.src[link]], names[self.machine.dst[link]], length)
            for link, length in zip(kept.tolist(), lengths.tolist(), strict=True)
            if length
        ]
        ports = [
            (self.ids[end], way, float(weights[side, end]))
            for side, way in enumerate(("out", "in"))
            for end in np.flatnonzero(weights[side]).tolist()
        ]
        return NeighbourFlow(carried / needed, self.ids[0], self.group, links, ports)

    def _runs(self) -> list[list[int]]:
        """Nodes of the ranks between whom something is needed, one after the other."""
        moves = np.flatnonzero(np.diff(self.ranks))
        cuts = np.flatnonzero((np.diff(moves) > 1) & (self.ranks[moves[1:]] == self.members)) + 1
        return [self.ranks[own[0] : own[-1] + 2].tolist() for own in np.split(moves, cuts)]


def _least_shared(apart: Floats, run: Sequence[int]) -> tuple[float, list[Hop]]:
    """Return the least that ranks one after the other take of a scan, whose results may share messages, and the ways.

    The value of rank i meets that of the rank before it, for the result of i, at a node z: at i itself, or from z both
    go over a node v to i. What the next rank needs of i goes from i on, or from v.
    """
    known, chosen = apart[run[0]], list[tuple[Ints, Ints]]()
    for rank in run[1:-1]:
        back, out = apart[:, rank], apart[rank]
        after = (apart + back)[:, :, None] + apart[None]  # from z over v to i, and from v to the next z
        alone, together = back[:, None] + out, out[:, None] + after.min(axis=1)
        total = known[:, None] + np.minimum(alone, together)
        over = np.where(together < alone, after.argmin(axis=1), -1)
        met = total.argmin(axis=0)
        chosen.append((met, over[met, np.arange(len(met))]))
        known = total.min(axis=0)
    last = known + apart[:, run[-1]]
    to = int(last.argmin())
    ways = [(to, run[-1])]
    for rank, (met, over) in zip(run[-2:0:-1], chosen[::-1], strict=True):
        met_at, via = int(met[to]), int(over[to])
        ways += [(met_at, rank), (rank, to)] if via < 0 else [(rank, met_at), (met_at, via), (via, rank), (via, to)]
        to = met_at
    return float(last.min()), [(a, b) for a, b in [*ways, (run[0], to)] if a != b]


_Message = tuple[Hop, tuple[int, ...]]
"""Ends of a message, and its links by place among those that are kept."""


class _Search:
    """Shortest ways between nodes; endpoints, and what is beside the host, relay whole messages only.

    Attributes:
        apart: [nodes, nodes] of endpoints and what is beside them: length of the shortest way.
    """

    def __init__(self, of: _Around, lengths: Floats, weights: Floats) -> None:
        self.of, self.lengths, ends = of, lengths, of.members + 1
        slow: Flags = of.rate[None, :] < of.levels[:, None]
        self.prices = np.where(slow, np.inf, lengths[None, :])
        self.reached = self._spread()
        out, into = (np.append(each, 0.0) for each in weights)
        options = self.reached[:, :, :ends] + (out[:, None] + into) / of.levels[:, None, None]
        self.level = options.argmin(axis=0)
        self.apart = options.min(axis=0)
        np.fill_diagonal(self.apart, 0.0)
        self.via = np.full((ends, ends), -1)
        for over in range(ends):
            longer = self.apart[:, over, None] + self.apart[None, over, :]
            less = longer < self.apart
            self.via[less] = over
            self.apart = np.where(less, longer, self.apart)

    def _spread(self) -> Floats:
        """The least price of one message from each node to every device, [levels, nodes, devices]."""
        of, ends = self.of, self.of.members + 1
        reached = np.full((len(of.levels), ends, of.nodes), np.inf)
        out = np.flatnonzero(of.tail < ends)
        for own, prices in zip(reached, self.prices, strict=True):
            np.minimum.at(own, (of.tail[out], of.head[out]), prices[out])
        onward = np.where(of.tail < ends, np.inf, self.prices)[:, None, :]
        heads = of.head[of.first]
        while True:
            over = np.minimum.reduceat(reached[:, :, of.tail] + onward, of.first, axis=2)
            before = reached[:, :, heads]
            if not (over < before).any():
                return reached
            reached[:, :, heads] = np.minimum(before, over)

    def way(self, src: int, dst: int) -> tuple[_Message, ...]:
        """Return the messages of the shortest way."""
        over = int(self.via[src, dst])
        if over >= 0:
            return (*self.way(src, over), *self.way(over, dst))
        level, links, device = int(self.level[src, dst]), list[int](), dst
        while not links or device != src:
            links.append(self._before(level, src, device))
            device = int(self.of.tail[links[-1]])
        return (((src, dst), tuple(links[::-1])),)

    def _before(self, level: int, src: int, device: int) -> int:
        """The last link of the shortest message from a node to a device; of several the first."""
        of, ends = self.of, self.of.members + 1
        into = np.flatnonzero(of.head == device)
        tails = of.tail[into]
        far = np.where(tails == src, 0.0, np.where(tails < ends, np.inf, self.reached[level, src, tails]))
        return int(into[(far + self.prices[level, into]).argmin()])
