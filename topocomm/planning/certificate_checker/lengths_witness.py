"""The bound of a lengths witness by plain searches: what `bounds/lengths_bound.py` proves, computed apart."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.rederive_bounds import SAME, Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.plan import Plan

Lengths = dict[tuple[str, str], float]


class _Border(NamedTuple):
    """What crosses the border of a group has a price; a fast member's port then weighs less by `taken`.

    While no fast member sends over it, at most the border of the part without them carries: `slow_gb_per_s`.
    """

    group: set[str]
    fast: set[str]
    way: str
    price: float
    slow_gb_per_s: float
    taken: float


class LengthsWitness:
    """Derives the GB/s of payload that links with lengths, and ports with weights, can carry at most."""

    def __init__(self, graph: WitnessGraph, needs: Needs, plan: Plan) -> None:
        self.graph, self.needs, self.plan = graph, needs, plan

    def gb_per_s(
        self, links: Iterable[list[Any]], ports: Iterable[list[Any]] = (), borders: Iterable[list[Any]] = ()
    ) -> float:
        """Return what all carry by length, over what the pairs need by the lengths of their shortest ways.

        Args:
            links: (source, destination, length).
            ports: (endpoint, "out" or "in", weight); none where only links bound it.
            borders: (devices of a group, devices of a part of it, "out" or "in", price).
        """
        lengths = {(src, dst): float(length) for src, dst, length in links}
        weights = {(end, way): float(weight) for end, way, weight in ports}
        if not lengths.keys() <= self.graph.links.keys() or min([*lengths.values(), *weights.values()], default=0) < 0:
            raise PlanError("certificate: lengths witness: expected links of the machine, and lengths of at least 0")
        if {way for _, way in weights} - {"in", "out"} or not {end for end, _ in weights} <= self.graph.ends:
            raise PlanError("certificate: lengths witness: expected ports of endpoints with ranks, in or out")
        carried = sum(length * self.graph.links[link][1] for link, length in lengths.items())
        carried += self.plan.ports * sum(weights.values())
        shared = [self._border(border) for border in borders]
        for end, way in sorted({(end, border.way) for border in shared for end in border.fast}):
            taken = sum(border.taken for border in shared if border.way == way and end in border.fast)
            if taken > weights.get((end, way), 0.0) * (1 + SAME):
                raise PlanError(
                    f"certificate: lengths witness: borders take more off {end} than the weight of its port"
                )
        carried += sum(border.price * border.slow_gb_per_s for border in shared)
        messages = {end: self._messages(end, lengths, weights, shared) for end in sorted(self.graph.ends)}
        needed = 0.0
        for src, wanted in payloads_between(self.needs, self.plan).items():
            apart = nearest({src: 0.0}, lambda end: messages[end].items())
            needed += sum(share * apart.get(dst, inf) for dst, share in wanted.items())
        if not carried > 0 or not 0 < needed < inf:
            raise PlanError("certificate: lengths witness: no way of any pair has a length")
        return carried / needed

    def _border(self, stated: list[Any]) -> _Border:
        """Return the border of a group of devices."""
        group, part, way, price = stated
        inside, slow = set(group), set(part)
        if not slow <= inside <= self.graph.devices or way not in ("out", "in") or not price >= 0:
            raise PlanError(
                "certificate: lengths witness: expected a part of a group of devices, out or in, and a price"
            )
        whole, least = (self.graph.borders([own], into=way == "in") for own in (inside, slow))
        return _Border(inside, (inside - slow) & self.graph.ends, way, price, least, price * max(whole - least, 0.0))

    def _messages(self, end: str, lengths: Lengths, weights: Lengths, borders: Iterable[_Border]) -> dict[str, float]:
        """Return the length of the shortest message to each endpoint; its ports count for the time of a byte.

        Of each rate the links are tried that have it at least: then the message takes no longer than by that rate.
        """
        links, best = self.graph.links, dict[str, float]()
        rates = {rate for _, rate, _ in links.values()} if weights else {0.0}
        for least in sorted(rates):

            def onward(device: str, least: float = least) -> list[tuple[str, float]]:
                if device in self.graph.ends and device != end:
                    return []
                after = (name for name, _ in self.graph.after[device] if links[device, name][1] >= least)
                return [(name, lengths.get((device, name), 0.0)) for name in after]

            for other, length in nearest({end: 0.0}, onward).items():
                if other in self.graph.ends and other != end:
                    held = weights.get((end, "out"), 0.0) + weights.get((other, "in"), 0.0)
                    for border in borders:
                        own, away = (end, other) if border.way == "out" else (other, end)
                        if own in border.group and away not in border.group:
                            length += border.price
                            held -= border.taken if own in border.fast else 0.0
                    held = max(held, 0.0)
                    best[other] = min(best.get(other, inf), length + (held / least if held else 0.0))
        return best


def payloads_between(needs: Needs, plan: Plan) -> dict[str, dict[str, float]]:
    """Return the payloads from each endpoint to each other."""
    root, ranks = plan.collective.root, range(needs.ranks)
    if needs.pairs:
        shares = {(src, dst): needs.pairs[src][dst] for src in ranks for dst in ranks}
    elif needs.name in ("gather", "scatter"):
        shares = {(rank, root) if needs.name == "gather" else (root, rank): needs.shares[rank] for rank in ranks}
    else:
        raise PlanError(
            f"certificate: lengths and matchings are of values that move; {needs.name} copies or folds values"
        )
    between: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (src, dst), share in shares.items():
        a, b = plan.ranks[src], plan.ranks[dst]
        if a != b and share:
            between[a][b] += share
    return between


def nearest(start: dict[str, float], onward: Callable[[str], Iterable[tuple[str, float]]]) -> dict[str, float]:
    """Return the least sum from the start to everything that it leads to (Dijkstra)."""
    best, done = dict(start), set[str]()
    heap = [(cost, name) for name, cost in start.items()]
    while heap:
        cost, name = heapq.heappop(heap)
        if name in done:
            continue
        done.add(name)
        for after, length in onward(name):
            if cost + length < best.get(after, inf):
                best[after] = cost + length
                heapq.heappush(heap, (cost + length, after))
    return best
