"""Lower bounds that no schedule can beat, and the certificate that sets a plan beside them.

Rounds: in one round the number of ranks that a contribution can have reached, and the number of contributions that
can have reached a rank (its own among them), grow at most by the factor K+1 (Bruck et al. 1997). In every collective
some contribution must reach all ranks or some rank must hear of all others, hence ceil(log_{K+1} P); of an exscan
the last rank must. Latency: a value must reach the farthest endpoint that needs it; and under `alpha` every doubling
takes a message of at least the cheapest path. Throughput: what must enter or leave a group of endpoints does so at
most as fast as the group's links carry it, for every single endpoint and every host; and for any partition of the
endpoints into m groups an allreduce moves, per element, at least 2(m-1) partial values out of groups, so it runs at
most at sum(egress) / 2(m-1) (Patarasuk, Yuan 2009, for every partition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.cost import PortModel
from topocomm.planning.paths import PathFinder

SAME_US = 1e-9
"""Latencies that differ by less are equal: sums in another order."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of one collective on one machine, each with its argument in words."""

    rounds: int
    alpha_us: float
    throughput_gb_per_s: float | None
    rounds_argument: str
    alpha_argument: str
    throughput_argument: str


def bounds_of(
    collective: Collective, endpoints: Sequence[str], paths: PathFinder, *, ports: int, port_model: PortModel
) -> Bounds:
    """The bounds of `collective` with rank r on `endpoints[r]`."""
    rounds = least_rounds(len(endpoints), ports)
    cheapest_us, farthest_us, farthest = _distances(collective, endpoints, paths)
    alpha_us, why = farthest_us, f"{farthest} are {farthest_us:g} us apart"
    if port_model == "alpha" and rounds * cheapest_us > farthest_us:
        alpha_us = rounds * cheapest_us
        why = f"{rounds} messages in a row of the cheapest path, {cheapest_us:g} us"
    throughput, cut = _Cuts(collective, endpoints, paths).throughput_bound()
    return Bounds(
        rounds=rounds,
        alpha_us=alpha_us,
        throughput_gb_per_s=throughput,
        rounds_argument=f"ceil(log{ports + 1} {len(endpoints)}) rounds with {ports} port{'s' * (ports > 1)}",
        alpha_argument=why,
        throughput_argument=cut,
    )


def least_rounds(ranks: int, ports: int) -> int:
    """ceil(log_{K+1} P), in integers."""
    rounds, reached = 0, 1
    while reached < ranks:
        reached *= ports + 1
        rounds += 1
    return rounds


def _distances(collective: Collective, endpoints: Sequence[str], paths: PathFinder) -> tuple[float, float, str]:
    """(least path latency, latency with relays allowed of the farthest pair that must talk, that pair in words)."""
    ends = sorted(set(endpoints))
    if len(ends) < 2:
        turn_us = paths.cheapest(ends[0], ends[0]).latency_us if len(endpoints) > 1 else 0.0
        return turn_us, turn_us, f"ranks of {ends[0]}"
    direct_us = np.array([[paths.latency_us(a, b) for b in ends] for a in ends])
    counted = ~np.eye(len(ends), dtype=bool) | (len(ends) < len(endpoints))
    place = [ends.index(end) for end in endpoints]
    apart_us = _relayed(direct_us)[np.ix_(place, place)]
    farthest_us = float(apart_us[_talks(collective)].max(initial=0.0))
    pairs = np.argwhere(_talks(collective) & (apart_us >= farthest_us - SAME_US)).tolist()
    source, target = max((endpoints[a], endpoints[b]) for a, b in pairs)
    return float(direct_us[counted].min()), farthest_us, f"{source} and {target}"


def _relayed(direct_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least latency between endpoints when endpoints on the way may relay (Floyd, Warshall)."""
    best = direct_us.copy()
    np.fill_diagonal(best, 0.0)
    for relay in range(len(best)):
        best = np.minimum(best, best[:, relay, None] + best[relay])
    return best


def _talks(collective: Collective) -> NDArray[np.bool_]:
    """Whether the result of rank b (column) holds something of rank a (row), b another rank."""
    ranks = np.arange(collective.ranks)
    gives, gets = np.ones(len(ranks), bool), np.ones(len(ranks), bool)
    if collective.name == "broadcast":
        gives = ranks == collective.root
    elif collective.name == "reduce":
        gets = ranks == collective.root
    elif collective.name == "allgather":
        gives = _shares(collective) > 0
    elif collective.name == "reduce_scatter":
        gets = _shares(collective) > 0
    elif collective.shards:
        gives = np.diff(collective.shards) > 0
    talks = gives[:, None] & gets & (ranks[:, None] != ranks)
    return np.triu(talks) if collective.name in ("scan", "exscan") else talks


def _shares(collective: Collective) -> NDArray[np.float64]:
    """The share of the payload that is each rank's part; equal ones where there are no rows."""
    rows = np.array(collective.parts, dtype=float)
    return rows / rows.sum() if rows.sum() else np.full(len(rows), 1 / len(rows))


class _Cuts:
    """The single endpoints, and the hosts where there are several, with what must cross into and out of each."""

    def __init__(self, collective: Collective, endpoints: Sequence[str], paths: PathFinder) -> None:
        self.collective, self.endpoints, self.paths = collective, endpoints, paths
        self.ends = sorted(set(endpoints))
        self.talks = _talks(collective)
        self.out: dict[str, list[tuple[str, float]]] = {}
        self.into: dict[str, list[tuple[str, float]]] = {}
        for (src, dst), figures in paths.links.items():
            self.out.setdefault(src, []).append((dst, figures.gb_per_s))
            self.into.setdefault(dst, []).append((src, figures.gb_per_s))

    def throughput_bound(self) -> tuple[float | None, str]:
        """(GB/s that no schedule exceeds, why)."""
        if len(self.ends) < 2:
            return None, "all ranks share one endpoint"
        hosts: dict[str, list[str]] = {}
        for end in self.ends:
            hosts.setdefault(self.paths.topology.by_id[end].host, []).append(end)
        partitions = [("single endpoints", [[end] for end in self.ends])]
        if len(hosts) > 1:
            partitions.append(("hosts", list(hosts.values())))
        found = []
        for name, groups in partitions:
            for group in groups:
                found += self._cut(group, group[0] if len(group) == 1 else f"the endpoints of {group[0]}'s host")
            if self.collective.name == "allreduce":
                egress = sum(self._capacity(group, self.out) for group in groups)
                giving = sum(any(self.talks[rank].any() for rank in self._ranks(group)) for group in groups)
                values = len(groups) + giving - 2
                found.append((egress / values, f"{len(groups)} {name}, egress {egress:g} GB/s in all"))
        return min(found, default=(None, "nothing needs to be sent"))

    def _cut(self, group: Sequence[str], name: str) -> list[tuple[float, str]]:
        """The bounds of one group: payload over the time that what enters it, and what leaves it, takes."""
        inside = np.zeros(len(self.endpoints), bool)
        inside[self._ranks(group)] = True
        enters, leaves = self._crossing(inside)
        found = []
        for share, links, word in ((enters, self.into, "enter"), (leaves, self.out, "leave")):
            if share > 0:
                capacity = self._capacity(group, links)
                much = "all" if share == 1 else f"{share:.4g}"
                found.append((capacity / share, f"{much} of the payload must {word} {name}, at {capacity:g} GB/s"))
        return found

    def _crossing(self, inside: NDArray[np.bool_]) -> tuple[float, float]:
        """Shares of the payload that at least enter, and leave, the ranks inside."""
        enters = bool(self.talks[~inside][:, inside].any())
        leaves = bool(self.talks[inside][:, ~inside].any())
        if self.collective.name not in IN_PARTS:  # a whole value, or a fold of whole values
            return float(enters), float(leaves)
        mine = float(_shares(self.collective)[inside].sum())
        others = float(_shares(self.collective)[~inside].sum())
        into, out = (others, mine) if self.collective.name == "allgather" else (mine, others)
        return into * enters, out * leaves

    def _ranks(self, group: Sequence[str]) -> list[int]:
        return [rank for rank, end in enumerate(self.endpoints) if end in group]

    def _capacity(self, group: Sequence[str], links: dict[str, list[tuple[str, float]]]) -> float:
        """What can cross a group's border, whether or not it owns the forwarding devices that serve it alone."""
        return min(
            sum(rate for device in sorted(border) for other, rate in links.get(device, ()) if other not in border)
            for border in (set(group), self._owned(group))
        )

    def _owned(self, group: Sequence[str]) -> set[str]:
        """A group with the devices that serve nobody else: a whole host's own, or an endpoint's own NIC."""
        topology = self.paths.topology
        host = topology.by_id[group[0]].host
        members = set(group)
        rest = {d.id for d in topology.devices if d.host == host}
        if rest & set(topology.endpoints) == members and len(members) > 1:
            return rest
        return members | {nic for nic, users in self._served.items() if users <= members}

    @cached_property
    def _served(self) -> dict[str, set[str]]:
        """The endpoints that each NIC has a direct link from."""
        topology = self.paths.topology
        served: dict[str, set[str]] = {}
        for src, dst in self.paths.links:
            if topology.by_id[dst].kind == "nic" and src in topology.endpoints:
                served.setdefault(dst, set()).add(src)
        return served
