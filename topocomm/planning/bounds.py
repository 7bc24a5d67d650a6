"""Lower bounds that no schedule can beat, and the certificate that sets a plan beside them.

Rounds: in one round the number of ranks that can hold a given contribution grows at most by the factor K+1
(Bruck et al. 1997), hence ceil(log_{K+1} P). Latency: a value must reach the farthest endpoint; and under `alpha`
every doubling takes a message of at least the cheapest path. Throughput: for any partition of the endpoints into
m groups an allreduce moves, per element, at least 2(m-1) partial values out of groups, so it runs at most at
sum(egress) / 2(m-1) (Patarasuk, Yuan 2009, for every partition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from topocomm.planning.collectives import Collective
from topocomm.planning.cost import PortModel
from topocomm.planning.paths import PathFinder


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
    throughput, cut = _throughput_bound(collective, endpoints, paths)
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
    """(least path latency, the farthest pair's latency with relays allowed, that pair in words)."""
    ends = sorted(set(endpoints))
    if len(ends) < 2:
        turn_us = paths.cheapest(ends[0], ends[0]).latency_us if len(endpoints) > 1 else 0.0
        return turn_us, turn_us, f"ranks of {ends[0]}"
    shared = len(ends) < len(endpoints)
    cheapest = min(paths.latency_us(a, b) for a in ends for b in ends if a != b or shared)
    root = endpoints[collective.root]
    sources = [root] if collective.name == "broadcast" else ends
    targets = [root] if collective.name == "reduce" else ends
    farthest = (0.0, ends[0], ends[0])
    for source in sources:
        reach = _relayed(source, ends, paths)
        farthest = max([farthest, *((reach[target], source, target) for target in targets)])
    return cheapest, farthest[0], f"{farthest[1]} and {farthest[2]}"


def _relayed(source: str, ends: Sequence[str], paths: PathFinder) -> dict[str, float]:
    """Least latency from source to every endpoint when endpoints on the way may relay (Dijkstra, dense)."""
    best = dict.fromkeys(ends, inf)
    best[source] = 0.0
    open_ends = set(ends)
    while open_ends:
        near = min(open_ends, key=lambda end: (best[end], end))
        open_ends.remove(near)
        for end in open_ends:
            best[end] = min(best[end], best[near] + paths.latency_us(near, end))
    return best


def _throughput_bound(collective: Collective, endpoints: Sequence[str], paths: PathFinder) -> tuple[float | None, str]:
    ends = sorted(set(endpoints))
    if len(ends) < 2:
        return None, "all ranks share one endpoint"
    if collective.name != "allreduce":
        return _rooted_throughput_bound(collective, endpoints, paths)
    hosts: dict[str, list[str]] = {}
    for end in ends:
        hosts.setdefault(paths.topology.by_id[end].host, []).append(end)
    partitions = [("single endpoints", [[end] for end in ends])]
    if len(hosts) > 1:
        partitions.append(("hosts", list(hosts.values())))
    found = []
    for name, groups in partitions:
        egress = sum(_egress_gb_per_s(group, paths) for group in groups)
        found.append((egress / (2 * (len(groups) - 1)), f"{len(groups)} {name}, egress {egress:g} GB/s in all"))
    return min(found)


def _rooted_throughput_bound(
    collective: Collective, endpoints: Sequence[str], paths: PathFinder
) -> tuple[float | None, str]:
    """Broadcast leaves the root and enters every other endpoint at most as fast as their links carry it."""
    root = endpoints[collective.root]
    outward = collective.name == "broadcast"
    found = [
        (
            _crossing_gb_per_s({root}, paths, out=outward),
            f"all links {'out of' if outward else 'into'} {root}",
        )
    ]
    others = sorted(set(endpoints) - {root})
    found += [(_crossing_gb_per_s({end}, paths, out=not outward), f"all links of {end}") for end in others]
    return min(found)


def _egress_gb_per_s(group: Sequence[str], paths: PathFinder) -> float:
    """What can leave a group, whether or not it owns the forwarding devices that serve it alone."""
    alone, owning = set(group), _owned(group, paths)
    return min(_crossing_gb_per_s(alone, paths, out=True), _crossing_gb_per_s(owning, paths, out=True))


def _owned(group: Sequence[str], paths: PathFinder) -> set[str]:
    """A group with the devices that serve nobody else: a whole host's own, or an endpoint's own NIC."""
    topology = paths.topology
    host = topology.by_id[group[0]].host
    members = set(group)
    rest = {d.id for d in topology.devices if d.host == host}
    if rest & set(topology.endpoints) == members and len(members) > 1:
        return rest
    served: dict[str, set[str]] = {}
    for src, dst in paths.links:
        if topology.by_id[dst].kind == "nic" and src in topology.endpoints:
            served.setdefault(dst, set()).add(src)
    return members | {nic for nic, users in served.items() if users <= members}


def _crossing_gb_per_s(group: set[str], paths: PathFinder, *, out: bool) -> float:
    return sum(
        figures.gb_per_s
        for (src, dst), figures in paths.links.items()
        if ((src in group) > (dst in group) if out else (src in group) < (dst in group))
    )
