"""The bound of a neighbours witness by plain searches: what `bounds/time/neighbour_flow.py` proves, computed apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.certificate_checker.lengths_witness import nearest
from topocomm.planning.certificate_checker.rederive_bounds import Needs
from topocomm.planning.certificate_checker.witness_graph import WitnessGraph
from topocomm.planning.plan import Plan

BESIDE = ""
"""All devices that are not of the group, as one endpoint."""
Apart = Mapping[str, Mapping[str, float]]
"""Length of the shortest way from an endpoint to each."""


class NeighboursWitness:
    """Derives the GB/s of payload of a scan or exscan that links with lengths, and ports with weights, can carry."""

    def __init__(self, graph: WitnessGraph, needs: Needs, plan: Plan) -> None:
        self.graph, self.needs, self.plan = graph, needs, plan

    def gb_per_s(self, group: set[str], links: Iterable[list[Any]], ports: Iterable[list[Any]]) -> float:
        """Return what all carry by length, over what ranks need of the ranks before them.

        Args:
            group: Devices; all others are one endpoint without ports.
            links: (source, destination, length).
            ports: (endpoint of the group, "out" or "in", weight).
        """
        lengths = {(src, dst): float(length) for src, dst, length in links}
        weights = {(end, way): float(weight) for end, way, weight in ports}
        ends = group & self.graph.ends
        if self.needs.name not in ("scan", "exscan"):
            raise PlanError(f"certificate: neighbours witness: expected a scan or exscan, got {self.needs.name}")
        if not lengths.keys() <= self.graph.links.keys() or min([*lengths.values(), *weights.values()], default=0) < 0:
            raise PlanError("certificate: neighbours witness: expected links of the machine, and lengths of at least 0")
        if {way for _, way in weights} - {"in", "out"} or not {end for end, _ in weights} <= ends:
            raise PlanError("certificate: neighbours witness: expected ports of endpoints of the group, in or out")
        arcs = self._arcs(group, lengths)
        messages = {end: self._messages(end, ends | {BESIDE}, arcs, weights) for end in sorted(ends | {BESIDE})}
        apart = {end: nearest({end: 0.0}, lambda other: messages[other].items()) for end in messages}
        carried = sum(length * self.graph.links[link][1] for link, length in lengths.items())
        carried += self.plan.ports * sum(weights.values())
        places = [end if end in ends else BESIDE for end in self.plan.ranks]
        shares = self.needs.name == "scan"
        needed = sum(_needed(apart, run, shares=shares) for run in _runs(places))
        if not carried > 0 or not 0 < needed < inf:
            raise PlanError("certificate: neighbours witness: no way of a rank to the next one has a length")
        return carried / needed

    def _arcs(
        self, group: set[str], lengths: Mapping[tuple[str, str], float]
    ) -> dict[str, list[tuple[str, float, float]]]:
        """Return (head, rate, length) of the links by tail, where devices beside the group are one."""
        arcs: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for (src, dst), (_, rate, _) in self.graph.links.items():
            tail, head = (device if device in group else BESIDE for device in (src, dst))
            if tail != head:
                arcs[tail].append((head, rate, lengths.get((src, dst), 0.0)))
        return arcs

    def _messages(
        self,
        end: str,
        ends: set[str],
        arcs: Mapping[str, list[tuple[str, float, float]]],
        weights: Mapping[tuple[str, str], float],
    ) -> dict[str, float]:
        """Return the length of the shortest message to each endpoint: of each rate links are tried that have it."""
        best: dict[str, float] = {}
        for least in sorted({rate for own in arcs.values() for _, rate, _ in own}):

            def onward(device: str, least: float = least) -> list[tuple[str, float]]:
                if device in ends and device != end:
                    return []
                return [(head, length) for head, rate, length in arcs.get(device, ()) if rate >= least]

            for other, length in nearest({end: 0.0}, onward).items():
                if other in ends and other != end:
                    held = weights.get((end, "out"), 0.0) + weights.get((other, "in"), 0.0)
                    best[other] = min(best.get(other, inf), length + held / least)
        return best


def _runs(places: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ranks of the group one after the other, with the one before them and the one after, by place."""
    run: list[str] = []
    for before, place in pairwise([BESIDE, *places]):
        if place == before == BESIDE:
            if len(run) > 1:
                yield run
            run = []
        run.append(place)
    if len(run) > 1:
        yield run


def _needed(apart: Apart, run: Sequence[str], *, shares: bool) -> float:
    """Return the least length of messages that serve the results of a run, the first of which needs nothing.

    Of a scan the value of a rank may meet that before it at another node, and both go over a node to the rank, and on
    from there to what the next rank needs.
    """
    if not shares:
        return sum(apart[before].get(after, inf) for before, after in pairwise(run))
    nodes = list(apart)
    known = {node: apart[run[0]].get(node, inf) for node in nodes}
    for rank in run[1:-1]:
        after = dict.fromkeys(nodes, inf)
        for met in nodes:
            there, back = apart[rank].get(met, inf), apart[met].get(rank, inf)
            on_way = [(via, there + apart[met].get(via, inf) + apart[via].get(rank, inf)) for via in nodes]
            for to in nodes:
                alone = back + apart[rank].get(to, inf)
                both = min(length + apart[via].get(to, inf) for via, length in on_way)
                after[to] = min(after[to], known[met] + min(alone, both))
        known = after
    return min(known[node] + apart[node].get(run[-1], inf) for node in nodes)
