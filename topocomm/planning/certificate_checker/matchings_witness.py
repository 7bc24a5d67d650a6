"""The bound of a matchings witness by plain searches: what `bounds/matchings_bound.py` proves, computed apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.lengths_witness import Lengths, nearest, payloads_between
from topocomm.planning.certificate_checker.rederive_bounds import SAME, Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.plan import Plan

Sends = frozenset[tuple[str, str]]


class MatchingsWitness:
    """Derives the GB/s of payload that messages with one port a rank carry at most, by prices of their pairs."""

    def __init__(self, graph: WitnessGraph, needs: Needs, plan: Plan) -> None:
        self.graph, self.needs, self.plan = graph, needs, plan

    def gb_per_s(self, prices: Iterable[list[Any]], matchings: Iterable[list[Any]]) -> float:
        """Return what a matching carries at most by price, over what the pairs need by price over other ranks.

        Args:
            prices: (source, destination, price); other messages cost nothing.
            matchings: (the pairs that send at once, [source, destination, length] of links), of every set that can.
        """
        if self.plan.ports != 1:
            raise PlanError(f"certificate: matchings witness: for one port a rank, this plan has {self.plan.ports}")
        ends, paid = sorted(self.graph.ends), {(src, dst): float(price) for src, dst, price in prices}
        if not {end for pair in paid for end in pair} <= self.graph.ends or min(paid.values(), default=0) < 0:
            raise PlanError("certificate: matchings witness: expected prices of at least 0 of pairs of endpoints")
        stated = {
            frozenset((src, dst) for src, dst in sends): {(src, dst): float(length) for src, dst, length in links}
            for sends, links in matchings
        }
        carried = max(self._carried(sends, stated, paid) for sends in _fullest(ends, frozenset()))
        needed = 0.0
        direct = {end: [name for name in self._messages(end, {}) if name != end] for end in ends}
        for src, wanted in payloads_between(self.needs, self.plan).items():
            apart = nearest({src: 0.0}, lambda end: [(name, paid.get((end, name), 0.0)) for name in direct[end]])
            needed += sum(share * apart.get(dst, inf) for dst, share in wanted.items())
        if not carried > 0 or not 0 < needed < inf:
            raise PlanError("certificate: matchings witness: no way of any pair has a price")
        return carried / needed

    def _carried(self, sends: Sends, stated: dict[Sends, Lengths], paid: Lengths) -> float:
        """Return what links carry by the lengths that are stated, if no message of these is shorter than its price."""
        lengths = stated.get(sends)
        if lengths is None:
            raise PlanError(f"certificate: matchings witness: no lengths for what sends at once: {sorted(sends)}")
        if not lengths.keys() <= self.graph.links.keys() or min(lengths.values(), default=0) < 0:
            raise PlanError("certificate: matchings witness: expected links of the machine, and lengths of at least 0")
        for src, dst in sends:
            length, price = self._messages(src, lengths).get(dst, inf), paid.get((src, dst), 0.0)
            if length < price * (1 - SAME):
                raise PlanError(
                    f"certificate: matchings witness: a message {src} > {dst} is {length!r} long, its price {price!r}"
                )
        return sum(length * self.graph.links[link][1] for link, length in lengths.items())

    def _messages(self, end: str, lengths: Lengths) -> dict[str, float]:
        """Return the least length of a message to each endpoint: past no other one."""

        def onward(device: str) -> list[tuple[str, float]]:
            if device in self.graph.ends and device != end:
                return []
            return [(name, lengths.get((device, name), 0.0)) for name, _ in self.graph.after[device]]

        return {name: length for name, length in nearest({end: 0.0}, onward).items() if name in self.graph.ends}


def _fullest(ends: list[str], sends: Sends) -> Iterator[Sends]:
    """Yield every set of messages of which none shares a port with another, and to which none can be added."""
    senders, receivers = {src for src, _ in sends}, {dst for _, dst in sends}
    if not any(src != dst for src in {*ends} - senders for dst in {*ends} - receivers):
        yield sends
        return
    after = max(senders, default="")
    for src in (end for end in ends if end not in senders and end > after):
        for dst in ends:
            if dst != src and dst not in receivers:
                yield from _fullest(ends, sends | {(src, dst)})
