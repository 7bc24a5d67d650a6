"""Trees from given roots whose weights have given ratios, as whole numbers: all as heavy as they can be together.

Links are cut into units. By Edmonds' theorem so many trees of one unit each exist if and only if the units let all of
them flow to every rank; forwarding devices are split off first, as in ForestColl (Zhao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.tree import Tree
from topocomm.planning.forests.units.disjoint import disjoint_trees
from topocomm.planning.forests.units.splitting import Split

LEAST = 1 / 32
"""Least weight that is tried, as a part of what the bound leaves for each tree."""


Parts = list[tuple[float, Tree]]


def trees_in_units(
    network: Network, wanted: Sequence[tuple[int, int]], bound_gb_per_s: float, least_gb_per_s: float = 0.0
) -> Parts:
    """(GB/s, tree) of trees whose weights have these ratios, as heavy as units allow; empty where none are found.

    Args:
        network: The machine.
        wanted: (root, units) of every tree.
        bound_gb_per_s: What no trees exceed together.
        least_gb_per_s: What they must carry together to be of use.
    """
    units: dict[int, int] = {}
    for root, count in wanted:
        units[root] = units.get(root, 0) + count
    weight = heaviest(network, units, bound_gb_per_s, least_gb_per_s)
    if not weight:
        return []
    split = Split(network, weight, units, max(count for _, count in wanted))
    trees = (disjoint_trees(split, wanted) if split.take_out() else None) or []
    return [(weight * count, tree) for (_, count), tree in zip(wanted, trees, strict=False)]


def heaviest(network: Network, wanted: dict[int, int], bound_gb_per_s: float, least_gb_per_s: float = 0.0) -> float:
    """GB/s of each of so many trees, by root; 0 where not even the least weight tried fits."""
    count = sum(wanted.values())
    most = bound_gb_per_s / count
    least = max(least_gb_per_s / count, most * LEAST)
    weights = {
        rate / units
        for rate in set(network.gb_per_s.tolist())
        for units in range(max(1, int(rate / most)), min(int(rate / most / LEAST), count) + 1)
    }
    options: list[float] = sorted(weight for weight in weights if least <= weight <= most * (1 + 1e-9))
    if options and Split(network, options[-1], wanted).spans():
        return options[-1]
    if not options or not Split(network, options[0], wanted).spans():
        return 0.0
    low, high = 1, len(options) - 1
    while low < high:
        middle = (low + high) // 2
        if Split(network, options[middle], wanted).spans():
            low = middle + 1
        else:
            high = middle
    return options[low - 1]
