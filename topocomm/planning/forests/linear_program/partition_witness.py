"""A partition that may prove the optimum: devices that links without a price join belong together.

For allreduce a packing's prices are, where one partition proves the optimum, equal on the links between its groups
and zero inside them. Where several partitions or cuts share in the prices, every level of price is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topocomm.planning.forests.linear_program.integer_network import Floats, Network

SAME = 1e-6
"""Prices that differ by a smaller part of the greatest are one level."""


class Partition(NamedTuple):
    """Groups of device ids, each with an endpoint, and the bound that their egress gives for allreduce."""

    groups: tuple[tuple[str, ...], ...]
    gb_per_s: float


def partition_of(network: Network, prices: Sequence[Floats]) -> Partition | None:
    """The partition with the least bound among those that the prices suggest; None if none has two groups.

    Args:
        network: The machine.
        prices: float64 [links] each: any number of price vectors.
    """
    best: Partition | None = None
    for vector in prices:
        top = float(vector.max())
        levels = [-1.0]
        for level in sorted(set(vector.tolist())):
            if level > levels[-1] + SAME * top:
                levels.append(level)
        for level in levels[:-1]:
            found = _joined(network, vector, level + SAME * top / 2 if level >= 0 else level)
            if found is not None and (best is None or found.gb_per_s < best.gb_per_s):
                best = found
    return best


def _joined(network: Network, prices: Floats, most: float) -> Partition | None:
    """The partition into what links of at most this price join."""
    leader = list(range(len(network.devices)))

    def find(device: int) -> int:
        while leader[device] != device:
            leader[device] = leader[leader[device]]
            device = leader[device]
        return device

    for (a, b), price in zip(network.links, prices.tolist(), strict=True):
        if price <= most:
            low, high = sorted((find(a), find(b)))
            leader[high] = low
    groups: dict[int, list[str]] = {find(end): [] for end in range(network.ends)}
    if len(groups) < 2:
        return None
    for device, name in enumerate(network.devices):
        if find(device) in groups:
            groups[find(device)].append(name)
    egress = sum(
        rate
        for (a, b), rate in zip(network.links, network.gb_per_s.tolist(), strict=True)
        if find(a) != find(b) and find(a) in groups
    )
    return Partition(tuple(tuple(group) for group in groups.values()), egress / (2 * (len(groups) - 1)))
