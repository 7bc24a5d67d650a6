"""The flow of an alltoall: how much of what each pair of ranks exchanges takes which way, and what no way can beat.

A multicommodity flow of least time: links carry bytes, and a message holds a port at either end for its bytes at the
rate of its slowest link. A column of the program routes all pairs over their shortest ways at some prices of links and
ports; its dual solution, lengths of links and weights of ports, bounds every flow (Shahrokhi, Matula 1990).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Network
from topocomm.planning.forests.linear_program.packing import Column, Pair, Pricer, pack
from topocomm.planning.forests.linear_program.shared_borders import SharedBorders
from topocomm.planning.forests.linear_program.shortest_ways import Hop, Pairing, Way, Ways, WaySearch
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.forests.linear_program.symmetry import Symmetry

ACCURACY, MOST_TURNS = 2e-4, 240
"""Relative distance of flow and bound at which the search ends, and its most columns."""
FEWEST_TURNS, MOST_PRICED = 8, 100_000
"""Turns of a bound for many pairs that no symmetry maps onto each other: so many, or as price so many pairs in all."""
LEAST_PRICE = 1e-5
"""Shares of all prices below it are none, so that few links have a length."""
LEAST_SHARE = 1e-3
"""Shares of a pair below it are none: they are errors of rounding."""


Shares = dict[Pairing, tuple[tuple[float, Way], ...]]
"""Per pair (source, destination) with demand the shares of its ways, which sum to 1."""


@dataclass(frozen=True)
class Lengths:
    """The dual of a flow.

    Attributes:
        gb_per_s: Payload over the time that no flow is below.
        lengths: float64 [links]: length of each link.
        weights: float64 [2, ends]: of the ports to send and to receive.
        prices: float64 [borders]: of the borders, by what crosses them while no fast rank sends. With the lengths times
            the rates, and the weights times the number of ports, they sum to no more than 1.
    """

    gb_per_s: float
    lengths: Floats
    weights: Floats
    prices: Floats


def least_lengths(
    network: Network, demand: Floats, ports: int, symmetry: Symmetry, borders: SharedBorders | None = None
) -> Lengths | None:
    """Return the best bound found with equal lengths and weights where the machine is symmetric.

    Arguments as those of `pair_ways`, and borders with prices; None where a way is missing.
    """
    router = _Router(network, demand, ports, symmetry, borders)
    turns = min(MOST_TURNS, max(FEWEST_TURNS, MOST_PRICED // len(router.orbits.demand)))
    packing = pack(router, ACCURACY, turns, first_turns=0)
    if not packing.parts:
        return None
    shares = np.where(packing.prices < LEAST_PRICE, 0.0, packing.prices)
    lengths, weights, prices = router.lengths(shares / float(shares.sum()) / router.capacity)
    carried = float((lengths * network.gb_per_s).sum() + ports * weights.sum())
    carried += float((prices * router.borders.slow_gb_per_s).sum()) if router.borders else 0.0
    return Lengths(carried / router.cost(lengths, weights, prices), lengths, weights, prices)


def pair_ways(network: Network, demand: Floats, ports: int, symmetry: Symmetry) -> Shares | None:
    """Return the ways of the best flow found, and their shares; None where a way is missing.

    Args:
        network: The machine; rank r is its device r.
        demand: float64 [ends, ends]: part of a unit of payload from each rank to each.
        ports: Messages that a rank sends, and receives, at once; 0: any number, links alone bound the flow.
        symmetry: Of the machine and the demand; pairs that it maps onto each other have equal shares.
    """
    router = _Router(network, demand, ports, symmetry)
    packing = pack(router, ACCURACY, MOST_TURNS, first_turns=0)
    if not packing.parts:
        return None
    straight = router.straight()
    if straight is not None and router.gb_per_s(straight) >= packing.bound_gb_per_s * (1 - ACCURACY):
        return router.orbits.images({pair: ((1.0, way),) for pair, way in straight.items()})
    shares = router.best_shares([router.routing(column) for _, column in packing.parts])
    return router.orbits.images({pair: _rounded(own) for pair, own in shares.items()})


def _rounded(ways: dict[Way, float]) -> tuple[tuple[float, Way], ...]:
    """Return the shares of a pair without tiny ones, the largest first."""
    total = sum(ways.values())
    kept = {way: share for way, share in ways.items() if share >= LEAST_SHARE * total}
    total = sum(kept.values())
    return tuple(sorted(((share / total, way) for way, share in kept.items()), key=lambda each: (-each[0], each[1])))


class _PairOrbits:
    """Pairs of ranks that a symmetry maps onto each other.

    Attributes:
        of: The lowest pair of the orbit of each pair.
        lowest: The lowest pairs.
        demand: By lowest pair what all pairs of its orbit exchange.
    """

    def __init__(self, symmetry: Symmetry, demand: Floats) -> None:
        ends = symmetry.network.ends
        elements = symmetry.elements[:, :ends]
        lowest, onto = elements.min(axis=0), elements.argmin(axis=0)
        self._symmetry = symmetry
        self._onto: dict[Pairing, tuple[int, int]] = {}
        """Numbers of two elements that map each pair onto the lowest, one after the other."""
        self.of: dict[Pairing, Pairing] = {}
        fixing = {source: np.flatnonzero(elements[:, source] == source) for source in np.unique(lowest).tolist()}
        for src, source in enumerate(lowest.tolist()):
            to = np.flatnonzero(demand[src] > 0)
            to = to[to != src]
            images = elements[fixing[source]][:, elements[onto[src]][to]]
            then = fixing[source][images.argmin(axis=0)].tolist()
            for dst, end, after in zip(to.tolist(), images.min(axis=0).tolist(), then, strict=True):
                self.of[src, dst] = source, end
                self._onto[src, dst] = int(onto[src]), after
        self.demand: dict[Pairing, float] = defaultdict(float)
        for pair, lowest in self.of.items():
            self.demand[lowest] += float(demand[pair])
        self.lowest = sorted(self.demand)

    def images(self, shares: Mapping[Pairing, Sequence[tuple[float, Way]]]) -> Shares:
        """Return the ways of all pairs from those of the lowest."""
        of_all: Shares = {}
        for pair, lowest in self.of.items():
            first, then = (self._symmetry.elements[number] for number in self._onto[pair])
            back = np.argsort(then[first]).tolist()
            of_all[pair] = tuple((share, _mapped(way, back)) for share, way in shares[lowest])
        return of_all


def _mapped(way: Way, image: Sequence[int]) -> Way:
    return tuple(Hop(image[hop.src], image[hop.dst], tuple(image[device] for device in hop.devices)) for hop in way)


class _Router(Pricer):
    """Routes all pairs over their shortest ways: the lowest of each orbit, for all of it.

    Rows are links, then ports to send, and ports to receive, then borders; those that a symmetry maps onto each other
    are one row.
    """

    def __init__(
        self,
        network: Network,
        demand: Floats,
        ports: int,
        symmetry: Symmetry,
        borders: SharedBorders | None = None,
    ) -> None:
        rows = symmetry.orbit_of_link
        ends = np.unique(symmetry.elements[:, : network.ends].min(axis=0), return_inverse=True)[1].astype(np.int64)
        capacity = np.bincount(rows, network.gb_per_s).astype(float)
        if ports:
            rows = np.concatenate([rows, len(capacity) + ends, len(capacity) + int(ends.max()) + 1 + ends])
            of_ports = float(ports) * np.bincount(ends)
            capacity = np.concatenate([capacity, of_ports, of_ports])
        orbits = borders.orbits(symmetry.elements) if borders and ports else None
        self.borders = borders if orbits is not None else None
        if borders is not None and orbits is not None:
            rows = np.concatenate([rows, len(capacity) + orbits])
            capacity = np.append(capacity, np.bincount(orbits, borders.slow_gb_per_s))
        super().__init__(network, rows, np.asarray(capacity, float))
        self.ports, self.orbits = ports, _PairOrbits(symmetry, demand)
        self._wanted = np.array([self.orbits.demand[pair] for pair in self.orbits.lowest])
        self._routings: dict[tuple[bytes, bytes], dict[Pairing, Way]] = {}
        rates = np.unique(network.gb_per_s) if ports else network.gb_per_s.min(keepdims=True)
        self._search = WaySearch(network, rates, symmetry, self.borders)
        self._rate: list[float] = network.gb_per_s.tolist()

    def start(self) -> list[Column]:
        """Return a column for each port of a fast rank: held for longer, it lets as much more cross the border."""
        if self.borders is None:
            return []
        border, port = self.borders.ports
        ports = self.row[len(self.network.links) + port]
        own = self.row[len(self.network.links) + 2 * self.network.ends + border]
        more = -self.borders.more_gb_per_s[border]
        known = dict.fromkeys(zip(ports.tolist(), own.tolist(), more.tolist(), strict=True))
        return [Column(np.array(each[:2]), np.array([1.0, each[2]]), gain=0.0) for each in known]

    def lengths(self, prices: Floats) -> tuple[Floats, Floats, Floats]:
        """Return lengths of links, weights of ports, [2, ends], and prices of borders, at these prices of rows."""
        each, links, ends = prices[self.row], len(self.network.links), self.network.ends
        weights = each[links : links + 2 * ends].reshape(2, -1) if self.ports else np.zeros((2, ends))
        own = each[links + 2 * ends :] if self.ports else each[:0]
        return each[:links], weights, self.borders.held(own, weights) if self.borders else own

    def price(self, prices: Floats, turn: int) -> tuple[float, Iterable[Iterable[Column]]]:
        """Return the least cost of the demand, and the column of the ways of that cost."""
        ways = self._search.ways(*self.lengths(prices))
        cost = self._cost(ways)
        if not np.isfinite(cost):
            return 0.0, []
        routing = {pair: ways.way(*pair) for pair in self.orbits.lowest}
        column = self._column(routing)
        self._routings[column.key] = routing
        return cost, [[column]]

    def cost(self, lengths: Floats, weights: Floats, prices: Floats) -> float:
        """Return the least cost of the demand at these lengths, weights and prices of borders."""
        return self._cost(self._search.ways(lengths, weights, prices))

    def _cost(self, ways: Ways) -> float:
        src, dst = np.array(self.orbits.lowest).T
        return float(sum((self._wanted * ways.cost[self._search.source[src], dst]).tolist()))

    def routing(self, column: Column) -> dict[Pairing, Way]:
        """Return the way of each pair in a column."""
        return self._routings[column.key]

    def straight(self) -> dict[Pairing, Way] | None:
        """Return one message for each pair, over links of the least time in all; None where some pair has none."""
        ways = self._search.ways(1 / self.network.gb_per_s, np.ones((2, self.network.ends)), relays=False)
        some = np.isfinite(self._cost(ways))
        return {pair: ways.way(*pair) for pair in self.orbits.lowest} if some else None

    def gb_per_s(self, routing: dict[Pairing, Way]) -> float:
        """Return the payload over the time of the busiest row."""
        column = self._column(routing)
        return float((self.capacity[column.rows] / column.loads).min())

    def best_shares(self, routings: Sequence[dict[Pairing, Way]]) -> dict[Pairing, dict[Way, float]]:
        """Return the best shares of these ways, of the lowest pair of every orbit: a vertex of the program.

        Few pairs have more than one way in it.
        """
        rows, unit, orbits = len(self.capacity), float(self.capacity.max()), self.orbits
        number = {pair: rows + index for index, pair in enumerate(orbits.lowest)}
        ways = [(pair, way) for pair in orbits.lowest for way in sorted({routing[pair] for routing in routings})]
        program = Simplex(np.append(np.ones(rows), np.zeros(len(orbits.lowest))))
        for pair, way in ways:
            loads = self._loads(Counter(way)) / self.capacity
            used = np.flatnonzero(loads)
            program.add(np.append(used, number[pair]), np.append(loads[used] * unit, -1.0), 0.0)
        program.add(np.array([number[pair] for pair in orbits.lowest]), self._wanted, 1.0)
        program.solve()
        shares: dict[Pairing, dict[Way, float]] = defaultdict(dict)
        for index, weight in sorted(program.weights().items()):
            if index < len(ways):
                pair, way = ways[index]
                shares[pair][way] = weight
        return shares

    def _column(self, routing: dict[Pairing, Way]) -> Column:
        carried: dict[Hop, float] = defaultdict(float)
        for pair, way in routing.items():
            for hop in way:
                carried[hop] += self.orbits.demand[pair]
        load = self._loads(carried)
        held = np.flatnonzero(load)
        return Column(held, load[held], Pair(None, None))  # what carries it are no trees

    def _loads(self, carried: Mapping[Hop, float]) -> Floats:
        """Return what messages of these units take of every row."""
        network, load = self.network, np.zeros(len(self.row))
        for (src, dst, devices), units in carried.items():
            links = [network.index[edge] for edge in pairwise(devices)]
            load[links] += units
            if self.ports:
                held = units / min(self._rate[link] for link in links)
                load[len(network.links) + src] += held
                load[len(network.links) + network.ends + dst] += held
                if self.borders:
                    own = load[len(network.links) + 2 * network.ends :]
                    own += units * self.borders.crossing[:, src, dst]
                    own -= held * self.borders.more_gb_per_s * self.borders.of_fast[:, src, dst]
        return np.asarray(np.bincount(self.row, load, len(self.capacity)))
