"""Hosts in the order of the network between them: racks, rows of racks, and so on, by the links that routes cross."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

import numpy as np

from topocomm.planning.routing.paths import PathFinder

Order = tuple[int, ...]
"""Hosts by index."""


def tier_orders(endpoints: Sequence[str], paths: PathFinder) -> tuple[Order, Order] | None:
    """Return two orders of hosts, each given by one of its endpoints; None where the network has one tier.

    In the first, hosts of a rack follow each other, and racks of a row: a ring crosses links between switches as few
    times as possible. In the second, racks take turns: hosts half of all apart, a quarter, and so on, are in one rack,
    and only neighbours are not, so that halving crosses links between switches with the fewest bytes.
    """
    tiers = _Tiers(endpoints, paths)
    near, turns = tiers.orders(list(range(len(endpoints))))
    return (tuple(near), tuple(turns)) if tiers.several else None


class _Tiers:
    def __init__(self, endpoints: Sequence[str], paths: PathFinder) -> None:
        self.endpoints, self.paths, self.several = endpoints, paths, False

    def orders(self, hosts: list[int]) -> tuple[list[int], list[int]]:
        """Both orders of hosts, by sets whose members are nearer to the first of them than the farthest host is."""
        if len(hosts) < 3:
            return hosts, hosts
        most, sets, left = 0, [], hosts
        while left:
            hops = self._hops(left[0], left)
            most = most or max(hops)
            sets.append([host for host, count in zip(left, hops, strict=True) if count < most])
            left = [host for host, count in zip(left, hops, strict=True) if count >= most]
        if len(sets) in (1, len(hosts)):
            return hosts, hosts
        self.several = True
        near, turns = zip(*map(self.orders, sets), strict=True)
        by_turns = chain.from_iterable(zip_longest(*turns))
        return list(chain.from_iterable(near)), [host for host in by_turns if host is not None]

    def _hops(self, host: int, others: Sequence[int]) -> list[int]:
        """Links between a host and each of these; 0 to itself, more than any route has where there is none."""
        hops: list[int] = self.paths.routes(self.endpoints, np.full(len(others), host), np.array(others)).hops.tolist()
        none = len(self.paths.topology.devices)
        return [0 if other == host else count or none for other, count in zip(others, hops, strict=True)]
