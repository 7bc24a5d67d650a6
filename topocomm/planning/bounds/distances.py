"""The farthest pair of ranks of which one needs something of the other."""

from __future__ import annotations

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.machine_columns import Floats, Ints, Machine

MOST_SOURCES = 256
"""Largest rank count for which all sources are tried; above it, sweeps."""
SWEEPS = 4
"""Sweeps from a rank to its farthest partner."""
SAME = 1e-9
"""Latencies in us that differ by less are equal: they are sums in another order."""
NO_PAIR = (-1.0, 0, 0)
"""Less than any pair, also one at distance 0."""


def farthest(demand: Demand, machine: Machine, weights: Floats) -> tuple[float, int, int]:
    """Return (least sum of weights with relays, giving rank, needing rank) of the farthest pair.

    It is exact with few ranks, or with one that all give to or get from. Else it is found by sweeps: from a rank to the
    farthest that needs it, back to the farthest that this one needs, and so on; any pair bounds the latency.

    Raises:
        PlanError: No route leads from a rank to one that needs it.
    """
    givers, getters = np.flatnonzero(demand.gives), np.flatnonzero(demand.gets)
    if demand.prefix:
        givers, getters = np.arange(demand.ranks - 1), np.arange(1, demand.ranks)
    if not len(givers) or not len(getters):
        return 0.0, 0, 0
    if min(len(givers), len(getters)) <= MOST_SOURCES:
        from_getters = len(getters) < len(givers)
        sources = getters if from_getters else givers
        pair = _from(demand, machine, weights, sources, "hears" if from_getters else "reaches")
    else:
        pair, rank, side = NO_PAIR, int(givers[0]), "reaches"
        for _ in range(SWEEPS):
            swept = _from(demand, machine, weights, np.array([rank]), side)
            pair = max(pair, swept, key=lambda candidate: candidate[0])
            rank, side = (swept[2], "hears") if side == "reaches" else (swept[1], "reaches")
    apart, src, dst = pair
    if not np.isfinite(apart):
        a, b = machine.ids[machine.place[src]], machine.ids[machine.place[dst]]
        raise PlanError(
            f"no way leads from {a} to {b}, also with relays, and rank {dst} needs what rank {src} has; add the links "
            "that are missing, or plan for other ranks"
        )
    return pair


def _from(demand: Demand, machine: Machine, weights: Floats, sources: Ints, side: str) -> tuple[float, int, int]:
    """Return the farthest pair with one of the sources at one end; ties go to the lowest ranks."""
    ends, which = np.unique(machine.place[sources], return_inverse=True)
    apart = machine.least(machine.starts(ends), weights, relays=True, backward=side == "hears")[:, machine.place]
    best = NO_PAIR
    for source, row in zip(sources.tolist(), which.tolist(), strict=True):
        partners = demand.partners(source, side)
        if not partners.any():
            continue
        away = np.where(partners, apart[row], -1.0)
        partner = int(np.flatnonzero(away >= away.max() - SAME)[0])
        if away[partner] > best[0] + SAME:
            src, dst = (partner, source) if side == "hears" else (source, partner)
            best = (float(away[partner]), src, dst)
    return best
