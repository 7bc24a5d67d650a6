"""The needs of a collective: which ranks need something of which, and the farthest pair; no table of all pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import PlanError
from topocomm.planning.bounds.machine_columns import Floats, Ints, Machine
from topocomm.planning.collectives import FROM_ROOT, IN_PAIRS, IN_PARTS, PARTS_GIVEN, PARTS_GOT, TO_ROOT, Collective

MOST_SOURCES = 256
"""Largest rank count for which all sources are tried; above it, sweeps."""
SWEEPS = 4
"""Sweeps from a rank to its farthest partner."""
SAME = 1e-9
"""Latencies in us that differ by less are equal: they are sums in another order."""
NO_PAIR = (-1.0, 0, 0)
"""Less than any pair, also one at distance 0."""


@dataclass(frozen=True, eq=False)
class Demand:
    """The needs of a collective.

    Rank b needs something of another rank a if a gives, b gets and, in a prefix, a comes before b.

    Attributes:
        name: Name of the collective.
        gives: Per rank, whether another rank may need something of it.
        gets: Per rank, whether it may need something of another.
        prefix: Whether a rank needs those before it only (scan, exscan).
        shares: Share of each rank's part in a payload in parts, equal where there are no rows; zeros for others.
        pairs: [ranks, ranks]: of alltoall, in place of shares, that of the part from each rank to each.
    """

    name: str
    gives: NDArray[np.bool_]
    gets: NDArray[np.bool_]
    prefix: bool
    shares: NDArray[np.float64]
    pairs: NDArray[np.float64] | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.gives)

    def heard(self) -> NDArray[np.int64]:
        """Return, per rank, the number of ranks whose values it knows in the end, its own included."""
        if self.prefix:
            return np.arange(1, self.ranks + 1)
        if self.pairs is not None:
            return np.asarray(1 + np.count_nonzero(_away(self.pairs), axis=0))
        return np.where(self.gets, int(self.gives.sum()) - self.gives + 1, 1)

    def reached(self) -> NDArray[np.int64]:
        """Return, per rank, the number of ranks that know something of its value in the end, itself included."""
        if self.prefix:
            return np.arange(self.ranks, 0, -1)
        if self.pairs is not None:
            return np.asarray(1 + np.count_nonzero(_away(self.pairs), axis=1))
        return np.where(self.gives, int(self.gets.sum()) - self.gets + 1, 1)

    def partners(self, rank: int, side: str) -> NDArray[np.bool_]:
        """Return which other ranks `rank` "hears" of, or "reaches"."""
        others = np.arange(self.ranks) != rank
        if self.pairs is not None:
            return np.asarray(others & ((self.pairs[:, rank] if side == "hears" else self.pairs[rank]) > 0))
        if self.prefix:
            others = np.arange(self.ranks) < rank if side == "hears" else np.arange(self.ranks) > rank
        if side == "hears":
            return others & self.gives if self.gets[rank] else np.zeros_like(others)
        return others & self.gets if self.gives[rank] else np.zeros_like(others)

    def least_messages(self) -> int:
        """Return the least number of messages on any machine.

        Every rank that needs something receives a message, and every rank that is needed sends one: with one that
        gives, or gets, there are no others. Where each of P ranks needs all of c givers: until the first rank knows
        them all, each of the c-1 other givers sends one, and after that every other rank receives one: c-1 + P-1. The
        same holds with time reversed.
        """
        if self.prefix or self.ranks == 1:
            return self.ranks - 1
        givers, getters = int(self.gives.sum()), int(self.gets.sum())
        if self.pairs is not None and np.count_nonzero(_away(self.pairs)) < self.ranks * (self.ranks - 1):
            return max(givers, getters)
        if getters == 1:
            return int((self.gives & ~self.gets).sum())
        return int((self.gets & ~self.gives).sum()) if givers == 1 else self.ranks - 1 + min(givers, getters) - 1

    def crossing(self, labels: NDArray[np.int64], groups: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what must at least enter, and leave, each group of ranks, in payloads.

        Of each row one value must enter a group that needs it from outside. In a prefix one value must enter per
        stretch of neighbouring ranks of the group: a value for an earlier stretch lacks contributions of a later one.
        `labels` are the groups of the ranks, 0..groups-1; a group without ranks has (0, 0).
        """
        if self.prefix:
            steps = labels[1:] != labels[:-1]
            return (
                np.bincount(labels[1:][steps], minlength=groups).astype(float),
                np.bincount(labels[:-1][steps], minlength=groups).astype(float),
            )
        if self.pairs is not None:
            away = self.pairs * (labels[:, None] != labels)
            into, out = (np.bincount(labels, away.sum(axis), groups).astype(float) for axis in (0, 1))
            return into, out
        gives = np.bincount(labels, self.gives, groups)
        gets = np.bincount(labels, self.gets, groups)
        enters = (gets > 0) & (gives < self.gives.sum())
        leaves = (gives > 0) & (gets < self.gets.sum())
        if self.name not in IN_PARTS:  # a whole value, or a fold of whole values
            return enters.astype(float), leaves.astype(float)
        own: NDArray[np.float64] = np.bincount(labels, self.shares, groups).astype(float)
        others = float(self.shares.sum()) - own
        into, out = (others, own) if self.name in PARTS_GIVEN else (own, others)
        return into * enters, out * leaves


def demand_of(collective: Collective) -> Demand:
    """Return the needs of `collective`."""
    ranks = np.arange(collective.ranks)
    gives, gets = np.ones(len(ranks), bool), np.ones(len(ranks), bool)
    shares = np.zeros(len(ranks))
    if collective.name in IN_PAIRS:
        rows = np.array(collective.parts, dtype=float).reshape(len(ranks), -1)
        pairs = rows / rows.sum(1).max() if rows.any() else np.full(rows.shape, 1 / len(ranks))
        gives, gets = (np.asarray(_away(pairs).any(axis=axis)) for axis in (1, 0))
        return Demand(collective.name, gives, gets, False, shares, pairs)
    if collective.name in IN_PARTS:
        rows = np.array(collective.parts, dtype=float)
        shares = rows / rows.sum() if rows.sum() else np.full(len(rows), 1 / len(rows))
    if collective.name in PARTS_GIVEN:
        gives = shares > 0
    elif collective.name in PARTS_GOT:
        gets = shares > 0
    if collective.name in FROM_ROOT:
        gives = ranks == collective.root
    elif collective.name in TO_ROOT:
        gets = ranks == collective.root
    elif collective.shards:
        gives = np.diff(collective.shards) > 0
    return Demand(collective.name, gives, gets, collective.name in ("scan", "exscan"), shares)


def _away(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The shares without what ranks send to themselves."""
    return pairs * ~np.eye(len(pairs), dtype=bool)


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
