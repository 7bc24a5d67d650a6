"""Over which others ranks send to each other where that is quicker: the ways of a flow, and their lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Network, network_of
from topocomm.planning.forests.linear_program.pair_flow import Shares as WaysOf
from topocomm.planning.forests.linear_program.pair_flow import pair_ways
from topocomm.planning.forests.linear_program.shortest_ways import Hop
from topocomm.planning.forests.linear_program.symmetry import symmetry_for
from topocomm.planning.forests.tree_schedule import whole_rows
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.shared_results import SharedResults
from topocomm.planning.ways.list_scheduling import Lines, Piece, lines_of

MOST_MEMBERS = 64
"""Most members whose ways are a linear program; of more all send straight."""
DIGITS = 2
"""Digits of a demand: shares of parts that differ by a row are the same."""
Shares = dict[tuple[int, int], tuple[tuple[float, tuple[int, ...]], ...]]
"""Per pair of members the share of each of its ways, and the numbers of its lines."""


@dataclass(frozen=True, eq=False)
class MemberWays:
    """Ways between the members of a group.

    Attributes:
        ends: (source, destination) of each line.
        named: The devices that each line passes; empty: those of the cheapest route.
        lines: What each line holds.
        shares: The ways of each pair.
    """

    ends: tuple[tuple[int, int], ...]
    named: tuple[tuple[str, ...], ...]
    lines: Lines
    shares: Shares

    @property
    def has_relays(self) -> bool:
        """Whether some member relays what others send."""
        return any(len(lines) > 1 for ways in self.shares.values() for _, lines in ways)

    @property
    def are_alike(self) -> bool:
        """Whether no member relays, and all lines are as fast."""
        return not self.has_relays and len(np.unique(self.lines.us_per_byte)) < 2

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for members that send alike, whatever devices their messages pass."""
        lines = self.lines
        return self.ends, tuple(self.shares.items()), lines.held.tobytes(), lines.us_per_byte.tobytes()

    def pieces(self, pair: tuple[int, int], rows: int, slices: int, row_bytes: int) -> list[tuple[int, Piece]]:
        """Return (rows, piece) of what a pair exchanges, in its order: of every way as many as the slices have rows."""
        ways = self.shares[pair]
        made = []
        for own, (share, lines) in zip(whole_rows(rows, [share for share, _ in ways]), ways, strict=True):
            count = max(1, min(own, round(slices * share)))
            made += [(n, Piece(n * row_bytes, lines)) for n in whole_rows(own, [1.0] * count) if n]
        return made


_known: SharedResults[tuple[object, ...], WaysOf] = SharedResults(most=64)
"""By links, demand and ports: hosts that look alike have equal ways."""


def member_ways(endpoints: Sequence[str], paths: PathFinder, demand: Floats, ports: int) -> MemberWays | None:
    """Return the ways of what members exchange, [members, members] in any unit; None where some have no way.

    Messages take the cheapest routes, or others over links of these; members relay. In large groups without symmetry,
    and on endpoints of several members, all send straight.
    """
    pairs = [(int(a), int(b)) for a, b in np.argwhere(demand > 0) if a != b]
    devices: tuple[str, ...] = ()
    found: WaysOf | None = None
    if pairs and 1 < len(set(endpoints)) == len(endpoints) <= MOST_MEMBERS:
        few = np.where(demand > 0, np.maximum(np.round(demand / float(demand.max()), DIGITS), 0.1**DIGITS), 0.0)
        alone = len({paths.topology.by_id[end].host for end in endpoints}) == 1
        network = _network(endpoints, paths) if alone else network_of(paths, endpoints)
        devices = network.devices
        symmetry = symmetry_for(network, [paths.topology.by_id[device].host for device in devices], few)
        if symmetry is not None and network.links:
            key = network.links, network.gb_per_s.tobytes(), few.tobytes(), ports
            found = _known.get(key, lambda: pair_ways(network, few, ports, symmetry) or {})
    if found is None:
        routes = paths.routes(endpoints, *np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
        straight = np.isfinite(routes.latency_us).all()
        found = {pair: ((1.0, (Hop(*pair, ()),)),) for pair in pairs} if straight else {}
    if len(found) < len(pairs):
        return None
    numbers: dict[Hop, int] = {}
    shares: Shares = {}
    for pair, ways in sorted(found.items()):
        lines_of_ways = [tuple(numbers.setdefault(hop, len(numbers)) for hop in way) for _, way in ways]
        shares[pair] = tuple((share, lines) for (share, _), lines in zip(ways, lines_of_ways, strict=True))
    named, routes_of = [], []
    for src, dst, passed in numbers:
        route, names = paths.cheapest(endpoints[src], endpoints[dst]), tuple(devices[device] for device in passed)
        named.append(names if names != route.devices else ())
        routes_of.append(paths.explicit(names, names[0], names[-1]) if named[-1] else route)
    ends = tuple((hop.src, hop.dst) for hop in numbers)
    return MemberWays(ends, tuple(named), lines_of(paths, len(endpoints), ends, routes_of, ports), shares)


def _network(endpoints: Sequence[str], paths: PathFinder) -> Network:
    """Return the links of the cheapest routes between members; hosts that look alike have equal ones, by number."""
    a, b = np.nonzero(~np.eye(len(endpoints), dtype=bool))
    routes = paths.routes(endpoints, a, b)
    number = {end: member for member, end in enumerate(endpoints)}
    links: dict[tuple[int, int], int] = {}
    for link in dict.fromkeys(routes.links.tolist()):
        src, dst = (number.setdefault(device, len(number)) for device in paths.edges[link])
        links[src, dst] = link
    order = sorted(links)
    used = np.array([links[edge] for edge in order], dtype=np.int64)
    figures = list(paths.links.values())
    latency_us = np.array([figures[link].latency_us for link in used.tolist()])
    return Network(tuple(number), len(endpoints), tuple(order), paths.link_gb_per_s[used], latency_us)
