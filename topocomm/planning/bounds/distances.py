"""The pair of ranks that are farthest apart among those of which one needs something of the other."""

from __future__ import annotations

import numpy as np

from topocomm.errors import PlanError
from topocomm.planning.bounds.demand import Demand
from topocomm.planning.bounds.machine_columns import Floats, Ints, Machine

MOST_SOURCES = 256
"""Up to so many ranks every one is tried as a source; beyond, a few that the ones before were farthest from."""
SWEEPS = 4
SAME = 1e-9
"""Sums of latencies in us that differ by less are equal: sums in another order."""
NO_PAIR = (-1.0, 0, 0)
"""Less than that of any pair, also of one with no distance between."""


def farthest(demand: Demand, machine: Machine, weights: Floats) -> tuple[float, int, int]:
    """(least sum of weights with relays allowed, giving rank, needing rank) of the farthest pair.

    With few ranks, or one that all give to or get from, it is exact; else a pair found by sweeps: from a rank to the
    farthest that needs it, back to the farthest that this one needs, and so on. Any pair bounds the latency.

    Raises:
        PlanError: No way leads from a rank to one that needs it.
    """
    givers, getters = np.flatnonzero(demand.gives), np.flatnonzero(demand.gets)
    if demand.prefix:
        givers, getters = np.arange(demand.ranks - 1), np.arange(1, demand.ranks)
    if not len(givers) or not len(getters):
        return 0.0, 0, 0
    if min(len(givers), len(getters)) <= MOST_SOURCES:
        from_getters = len(getters) < len(givers)
        sources = getters if from_getters else givers
        found = _from(demand, machine, weights, sources, "hears" if from_getters else "reaches")
    else:
        found = _swept(demand, machine, weights, int(givers[0]))
    apart, src, dst = found
    if not np.isfinite(apart):
        a, b = machine.ids[machine.place[src]], machine.ids[machine.place[dst]]
        raise PlanError(
            f"no way leads from {a} to {b}, also with relays, and rank {dst} needs what rank {src} has; add the links "
            "that are missing, or plan for other ranks"
        )
    return found


def _from(demand: Demand, machine: Machine, weights: Floats, sources: Ints, side: str) -> tuple[float, int, int]:
    """The farthest pair with the sources at one end; ties go to the lowest ranks."""
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


def _swept(demand: Demand, machine: Machine, weights: Floats, start: int) -> tuple[float, int, int]:
    rank, side, best = start, "reaches", NO_PAIR
    for _ in range(SWEEPS):
        found = _from(demand, machine, weights, np.array([rank]), side)
        best = max(best, found, key=lambda one: one[0])
        rank, side = (found[2], "hears") if side == "reaches" else (found[1], "reaches")
    return best
