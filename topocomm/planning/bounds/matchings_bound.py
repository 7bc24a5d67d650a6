"""Bound of values that only move between few endpoints with one port: what the best set of messages carries at once.

Every pair of endpoints has a price. At any time the messages are a matching, whose rates its links limit: links have
lengths for each matching by which no message of a pair is shorter than its price. So by price a matching carries at
most its links by length, and what every pair exchanges is, by price, at least its cheapest way over other endpoints.
The prices are the dual solution of the best mix of matchings (Lawler, Labetoulle 1978), a linear program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.linear_program.simplex import Simplex
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints

MOST_MATCHED_ENDS = 4
"""Most endpoints of which all matchings are tried."""
MOST_TURNS, GAIN = 200, 1e-9
"""Most searches for matchings that carry more at the prices so far, and the least gain of one."""
LEAST_PRICE = 1e-9
"""Prices below this part of the highest are errors of rounding."""

Pair = tuple[int, int]


class PricedMatchings(NamedTuple):
    """A bound, and why.

    Attributes:
        gb_per_s: Of payload, at most.
        prices: Of each pair (source, destination) that has one, by number of the endpoint.
        lengths: Of every matching, as the pairs that send at once: the lengths of the network's links, float64 [links].
    """

    gb_per_s: float
    prices: dict[Pair, float]
    lengths: dict[tuple[Pair, ...], Floats]


def priced_matchings(network: Network, paths: PathFinder, wanted: Floats) -> PricedMatchings | None:
    """Return the bound for payloads of `wanted` from each endpoint to each, float64 [ends, ends]; None: there is none.

    All that are wanted have ways, directly or over other endpoints.
    """
    program = _Prices(network, paths, wanted)
    return program.bound() if program.routes else None


def matchings_of(ends: int) -> Iterator[tuple[Pair, ...]]:
    """Yield every set of messages that can go at once and to which none can be added."""
    for onto in permutations(range(ends)):
        sends = tuple((src, dst) for src, dst in enumerate(onto) if src != dst)
        if len(sends) >= ends - 1:  # two that do nothing could send to each other
            yield sends


class _Prices:
    """Maximises the rate of all payloads for a time of 1: rows are pairs, carried no less than sent, and the time.

    Rates are in units of the fastest message. A pair without a route has a row, of which all is relayed.
    """

    def __init__(self, network: Network, paths: PathFinder, wanted: Floats) -> None:
        ends = range(network.ends)
        self.network, self.wanted = network, wanted
        self.rows = {pair: row for row, pair in enumerate((a, b) for a in ends for b in ends if a != b)}
        number = {device: place for place, device in enumerate(network.devices)}
        devices = {(a, b): paths.between(network.devices[a], network.devices[b]) for a, b in self.rows}
        self.routes: dict[Pair, Ints] = {
            pair: np.array([network.index[number[src], number[dst]] for src, dst in pairwise(own)])
            for pair, own in devices.items()
            if own is not None
        }
        self.unit = max((float(network.gb_per_s[own].min()) for own in self.routes.values()), default=1.0)
        self.program = Simplex(np.append(np.zeros(len(self.rows)), 1.0))
        sent = [pair for pair in self.rows if wanted[pair]]
        shares = np.array([wanted[pair] for pair in sent]) / float(wanted.sum())
        self.program.add(np.array([self.rows[pair] for pair in sent]), shares, 1.0)
        for (src, dst), row in self.rows.items():
            for over in {*ends} - {src, dst}:
                relayed = np.array([row, self.rows[src, over], self.rows[over, dst]])
                self.program.add(relayed, np.array([-1.0, 1.0, 1.0]), 0.0)

    def bound(self) -> PricedMatchings | None:
        for _ in range(MOST_TURNS):
            self.program.solve()
            if not self._add_better(float(self.program.prices[-1])):
                break
        prices = self.program.prices[:-1]
        least = LEAST_PRICE * float(prices.max())
        return self._proved({pair: float(prices[row]) for pair, row in self.rows.items() if prices[row] > least})

    def _add_better(self, time: float) -> bool:
        """Add the matchings that carry more than `time` at the prices so far; return whether there are any."""
        prices = {pair: float(self.program.prices[row]) for pair, row in self.rows.items()}
        found = [self._carried(sends, prices) for sends in matchings_of(self.network.ends)]
        better = [each for each in found if each.value > time * (1 + GAIN) + GAIN]
        for each in better:
            rows = np.array([self.rows[pair] for pair in each.sends] + [len(self.rows)])
            self.program.add(rows, np.append(-each.rates, 1.0), 0.0)
        return bool(better)

    def _carried(self, matching: Sequence[Pair], prices: Mapping[Pair, float]) -> _Carried:
        """Return what its messages carry most at the prices."""
        sends = [pair for pair in matching if pair in self.routes]
        lengths = np.zeros(len(self.network.links))
        if not sends:
            return _Carried(sends, np.zeros(0), 0.0, lengths)
        used = np.unique(np.concatenate([self.routes[pair] for pair in sends]))
        program, gb_per_s = Simplex(np.ones(len(used))), self.network.gb_per_s
        for pair in sends:
            own = self.routes[pair]
            program.add(np.searchsorted(used, own), self.unit / gb_per_s[own], prices.get(pair, 0.0))
        program.solve()
        weights = program.weights()
        lengths[used] = program.prices * self.unit / gb_per_s[used]
        return _Carried(sends, np.array([weights.get(at, 0.0) for at in range(len(sends))]), program.value(), lengths)

    def _proved(self, prices: dict[Pair, float]) -> PricedMatchings | None:
        """Return the bound at these prices; lengths are raised until no message is shorter than its price."""
        prices = {pair: price for pair, price in prices.items() if pair in self.routes}
        lengths, most = dict[tuple[Pair, ...], Floats](), 0.0
        for sends in matchings_of(self.network.ends):
            own = self._carried(sends, prices).lengths
            priced = [(pair, self._shortest(own, pair)) for pair in sends if pair in prices]
            if any(not length for _, length in priced):
                return None
            raised = max([1.0, *(prices[pair] / length for pair, length in priced)])
            lengths[sends] = own * raised
            most = max(most, float((lengths[sends] * self.network.gb_per_s).sum()))
        cheapest = np.full(self.wanted.shape, np.inf)
        np.fill_diagonal(cheapest, 0.0)
        for pair in self.routes:
            cheapest[pair] = prices.get(pair, 0.0)
        for over in range(self.network.ends):
            cheapest = np.minimum(cheapest, cheapest[:, over, None] + cheapest[None, over, :])
        sent = self.wanted > 0
        needed = float((cheapest[sent] * self.wanted[sent]).sum())
        return PricedMatchings(most / needed, prices, lengths) if 0 < needed < np.inf else None

    def _shortest(self, lengths: Floats, pair: Pair) -> float:
        """Return the length of the shortest message of a pair, past no endpoint (Bellman, Ford)."""
        network, (src, dst) = self.network, pair
        least = np.full(len(network.devices), np.inf)
        least[src] = 0.0
        source, target = np.array(network.links).T
        open_ = (source >= network.ends) | (source == src)
        for _ in network.devices:
            before = least.copy()
            np.minimum.at(least, target[open_], least[source[open_]] + lengths[open_])
            if (least == before).all():
                break
        return float(least[dst])


class _Carried(NamedTuple):
    sends: list[Pair]
    rates: Floats
    value: float
    lengths: Floats
    """Of links, which prove the value where every message has one way."""
