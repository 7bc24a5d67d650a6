"""Partitions of endpoints that bound an allreduce: by Newton's method on the rate.

A partition into m groups, of which c give, bounds the throughput by sum(border) / (m + c - 2). A rate T violates it if
sum(border(S) - T (1 + [S gives])) < -2 T. So take the partition of least sum, set T to its bound, and repeat until no
partition is violated (Dinkelbach 1967).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from topocomm.planning.bounds.flows import UNLIMITED, FlowNetwork
from topocomm.planning.bounds.machine_columns import Flags, Floats, Ints

LESS = 1 - 1e-12
"""Ratio of rates below which one counts as lower."""


def best_of_family(
    parents: Sequence[Ints], borders: Sequence[Floats], gives: Sequence[Flags]
) -> tuple[float, list[tuple[int, int]]]:
    """Return (rate, groups as (level, index)) of the least bound of a partition into nested groups of endpoints.

    Level 0 is the finest. `parents` has, by level but the last, the group of the next level that each group lies in;
    `borders` the GB/s that cross the border of each group, and `gives` whether it has a contribution.
    """

    def rate_of(chosen: Sequence[tuple[int, int]]) -> float:
        giving = sum(bool(gives[level][index]) for level, index in chosen)
        return float(sum(borders[level][index] for level, index in chosen)) / (len(chosen) + giving - 2)

    top = len(borders) - 1
    chosen = [(top, index) for index in range(len(borders[top]))]
    rate = rate_of(chosen)
    while True:
        other = _violating(parents, borders, gives, rate)
        if len(other) < 2 or not rate_of(other) < rate * LESS:
            return rate, chosen
        rate, chosen = rate_of(other), other


def _violating(
    parents: Sequence[Ints], borders: Sequence[Floats], gives: Sequence[Flags], rate: float
) -> list[tuple[int, int]]:
    """Return the partition into these groups of least sum of border - rate (1 + gives)."""
    whole: list[Flags] = []
    below = np.empty(0)
    for level, (border, giving) in enumerate(zip(borders, gives, strict=True)):
        own = border - rate * (1 + giving)
        if level:
            below = np.bincount(parents[level - 1], below, len(border)).astype(float)
            whole.append(own <= below)
            below = np.minimum(own, below)
        else:
            whole.append(np.ones(len(border), bool))
            below = own
    chosen: list[tuple[int, int]] = []
    is_open = np.ones(len(borders[-1]), bool)
    for level in range(len(whole) - 1, -1, -1):
        chosen += [(level, index) for index in np.flatnonzero(is_open & whole[level]).tolist()]
        if level:
            is_open = (is_open & ~whole[level])[parents[level - 1]]
    return chosen


def best_partition(
    network: FlowNetwork, atoms: Sequence[int], border: Callable[[set[int]], float], rate: float
) -> tuple[float, list[set[int]]] | None:
    """Return (bound, groups) of the partition of all atoms of least bound, if below `rate`, where every group gives.

    Exact: the least sum of border(S) - 2 rate over partitions by one minimum cut an atom (Dilworth truncation of a
    submodular function; Cunningham 1985, Optimal attack and reinforcement of a network, section 4).

    The network has arcs in the direction that the border counts, from a group to the others. Nodes that are no atoms
    forward, and minimum cuts assign them.
    """
    best = None
    while True:
        groups = _least_partition(network, atoms, border, 2 * rate)
        if len(groups) < 2:
            return best
        lower = sum(border(group) for group in groups) / (2 * (len(groups) - 1))
        if not lower < rate * LESS:
            return best
        rate, best = lower, (lower, groups)


def _least_partition(
    network: FlowNetwork, atoms: Sequence[int], border: Callable[[set[int]], float], each: float
) -> list[set[int]]:
    """Return the partition of least sum of border(S) - each.

    Greedily: x(v) is the greatest value with x(S) <= border(S) - each for every S of the atoms so far; the sets with
    equality, joined where they meet, are the groups.
    """
    x: dict[int, float] = {}
    groups: list[set[int]] = []
    for index, atom in enumerate(atoms):
        into = {node: value for node, value in x.items() if value > 0} | {atom: UNLIMITED}
        out_of = {node: -value for node, value in x.items() if value < 0}
        out_of |= dict.fromkeys(atoms[index + 1 :], UNLIMITED)
        side = network.min_cut(into, out_of) or {atom}
        x[atom] = border(side) - each - sum(x[node] for node in x if node in side)
        members = {atom} | {node for node in x if node in side}
        meeting = [group for group in groups if group & members]
        groups = [group for group in groups if not group & members] + [members.union(*meeting)]
    rest = set(atoms)
    return [
        network.min_cut(dict.fromkeys(sorted(group), UNLIMITED), dict.fromkeys(sorted(rest - group), UNLIMITED))
        or group
        for group in groups
    ]
