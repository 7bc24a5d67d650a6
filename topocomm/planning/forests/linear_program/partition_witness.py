"""A partition that may prove the optimum of an allreduce, read off the prices of a packing.

Where one partition proves the optimum, prices are equal on links between its groups and zero inside them. Where several
partitions or cuts share in the prices, every level of price is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topocomm.planning.forests.linear_program.integer_network import Floats, Network

SAME = 1e-6
"""Prices that differ by less than this part of the greatest are one level."""


class Partition(NamedTuple):
    """Groups of device ids, each with an endpoint, and the bound of an allreduce by their egress."""

    groups: tuple[tuple[str, ...], ...]
    gb_per_s: float


def partition_of(network: Network, prices: Sequence[Floats]) -> Partition | None:
    """Return the partition of least bound among those that the prices suggest; None if none has two groups.

    Args:
        network: The machine.
        prices: Price vectors, float64 [links] each.
    """
    best: Partition | None = None
    for vector in prices:
        top = float(vector.max())
        levels = [-1.0]
        for level in sorted(set(vector.tolist())):
            if level > levels[-1] + SAME * top:
                levels.append(level)
        for level in levels[:-1]:
            partition = _joined(network, vector, level + SAME * top / 2 if level >= 0 else level)
            if partition is not None and (best is None or partition.gb_per_s < best.gb_per_s):
                best = partition
    return best


def _joined(network: Network, prices: Floats, most: float) -> Partition | None:
    """Return the partition whose groups are joined by links of at most this price."""
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
