"""Hosts that are alike as one: members that do the same in every host at a time, and what their messages pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.forests.linear_program.integer_network import network_of
from topocomm.planning.forests.linear_program.symmetry import host_turns, no_symmetry
from topocomm.planning.routing.own_nics import OwnNics
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints

LONGER = 1.01
"""Factor from which on a link takes longer than another."""


@dataclass(frozen=True, eq=False)
class FoldedHosts:
    """The messages of one of several hosts, of which each stands for one in every host.

    Attributes:
        count: Number of hosts.
        members: Members of each.
        ends: int64 [messages, 2]: member that sends, member that receives.
        away: bool [messages]: whether it goes to another host.
        passes: float64 [messages, links]: how often it passes each link.
        gb_per_s: float64 [links]: of a link that hosts share, what is there for each.
    """

    count: int
    members: int
    ends: Ints
    away: NDArray[np.bool_]
    passes: Floats
    gb_per_s: Floats

    @property
    def are_unlike(self) -> bool:
        """Whether some messages to other hosts are faster than others."""
        alone = np.where(self.passes > 0, self.gb_per_s, np.inf).min(axis=1)
        return len(np.unique(alone[self.away])) > 1

    @property
    def wants_relays(self) -> bool:
        """Whether all blocks straight take longer on some link than on those that all between hosts pass."""
        blocks = np.where(self.away, self.count - 1.0, 1.0)
        took = (self.passes * blocks[:, None]).sum(axis=0) / self.gb_per_s
        common = (self.passes[self.away] > 0).all(axis=0)
        return bool(took.max() > LONGER * took[common].max(initial=0.0))

    def number(self, src: int, dst: int, *, away: bool) -> int:
        """Return the number of a message; -1 of one to the sender itself."""
        if away:
            return self.members * (self.members - 1) + src * self.members + dst
        return -1 if src == dst else src * (self.members - 1) + dst - (dst > src)


def folded_hosts(
    ends: Sequence[str], starts: Sequence[int], paths: PathFinder, nics: OwnNics | None
) -> FoldedHosts | None:
    """Return the hosts as one; None where no symmetry maps each onto the next.

    Args:
        ends: Endpoint ids, host by host.
        starts: The first place of each host, and their number.
        paths: The routes of the machine.
        nics: The NICs by which messages between hosts go; None: all take the cheapest route.

    Raises:
        NoRouteError: Some pair has no route.
    """
    size, count = starts[1], len(starts) - 1
    if any(high - low != size for low, high in pairwise(starts)) or len(set(ends)) < len(ends):
        return None
    network = network_of(paths, ends)
    hosts = [paths.topology.by_id[device].host for device in network.devices]
    symmetry = host_turns(network, hosts) if count > 1 else no_symmetry(network)
    if len(symmetry.elements) != count:
        return None
    pairs = [pair for pair in product(range(size), repeat=2) if pair[0] != pair[1]]
    inside = len(pairs)
    pairs += product(range(size), repeat=2) if count > 1 else ()
    named = [(ends[src], ends[dst + size * (at >= inside)]) for at, (src, dst) in enumerate(pairs)]
    host_of = {end: paths.topology.by_id[end].host for end in ends}
    across = [pair for pair in named if host_of[pair[0]] != host_of[pair[1]]]
    ways = dict(zip(across, nics.ways(*zip(*across, strict=True)), strict=True)) if nics and across else {}
    number = {device: index for index, device in enumerate(network.devices)}
    passes = np.zeros((len(pairs), int(symmetry.orbit_of_link.max()) + 1))
    for at, pair in enumerate(named):
        for a, b in pairwise(ways.get(pair) or paths.cheapest(*pair).devices):
            passes[at, symmetry.orbit_of_link[network.index[number[a], number[b]]]] += 1
    used = np.flatnonzero(passes.any(axis=0))
    gb_per_s = np.bincount(symmetry.orbit_of_link, network.gb_per_s)[used] / count
    return FoldedHosts(
        count, size, np.array(pairs, dtype=np.int64), np.arange(len(pairs)) >= inside, passes[:, used], gb_per_s
    )
