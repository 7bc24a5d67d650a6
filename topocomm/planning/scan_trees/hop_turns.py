"""Turns of the hops of trees in a period: whenever all that it needs is free, the one goes whose ports have most to do.

So a period is little longer than the busiest port or link has to do (list scheduling; Gonzalez, Sahni 1976 for open
shops), and every host has the same turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topocomm.planning.routing.routes import Floats
from topocomm.planning.scan_trees.hop_clock import Clock
from topocomm.planning.scan_trees.host_hops import MOST_RELAYS, HostHops, padded
from topocomm.planning.scan_trees.rank_trees import NO_RANK, ScanTrees
from topocomm.planning.scan_trees.tree_packing import HostTree

SOON = 1e-9
"""The least time of a hop: one without bytes and latency arrives after it left, too."""
POWERS, WORTH = (np.inf, 8.0), 0.95
"""Of the loads that say which hop goes first, in the order in which they are tried; and what part of the period of
those before it one must have to be taken: of nearly equal ones the first takes least, as ports keep to their order."""


def trees_of(hosts: HostHops, trees: Sequence[HostTree]) -> ScanTrees:
    """Return the trees on all hosts: the last rank of the spine of each sends the next one."""
    parents = hosts.on_all(np.array([tree.parents for tree in trees]))
    up, down = (
        hosts.on_all(np.array([[padded(way[1:-1]) for way in ways] for ways in each]))
        for each in ([tree.up for tree in trees], [tree.down for tree in trees])
    )
    up[parents == NO_RANK] = NO_RANK
    return ScanTrees(parents, up, down)


class HopTurns:
    """The turns of all hops of trees of equal chunks.

    Attributes:
        period: Of all chunks, in the time that they take at the fastest rate.
    """

    def __init__(self, hosts: HostHops, trees: Sequence[HostTree]) -> None:
        self._hosts, self._share = hosts, 1 / len(trees)
        which = [
            (way_of, chunk, rank, hop, number)
            for chunk, tree in enumerate(trees)
            for way_of, ways in enumerate((tree.up, tree.down))
            for rank, way in enumerate(ways)
            for hop, number in enumerate(hosts.hops(way) if way else ())
        ]
        *place, self._number = np.array(which).reshape(-1, 5).T
        self._place, self._shape = tuple(place), (2, len(trees), hosts.members, MOST_RELAYS + 1)
        self._starts, self.period = _soonest(hosts.loads[self._number] * self._share)

    def clock(self, payload_us: float) -> Clock:
        """Return when all hops leave; `payload_us` is the time of a slice of all chunks at the fastest rate."""
        hosts, number = self._hosts, self._number
        turns, takes = np.zeros(self._shape), np.full(self._shape, SOON)
        turns[self._place] = self._starts
        takes[self._place] = np.maximum(SOON, hosts.takes[number] * self._share + hosts.latency_us[number] / payload_us)
        up, down, up_takes, down_takes = (np.tile(each, (1, hosts.hosts, 1)) for each in (*turns, *takes))
        return Clock(max(self.period, SOON), up, down, up_takes, down_takes)


def _soonest(loads: Floats) -> tuple[Floats, float]:
    """Return when each hop starts, and the period: the shortest of some orders, of which none is best for all."""
    busiest, best = float(loads.sum(axis=0).max(initial=0.0)), None
    for power in POWERS:
        made = _listed(loads, power)
        best = made if best is None or made[1] < WORTH * best[1] else best
        if WORTH * best[1] <= busiest:
            break
    assert best is not None
    return best


def _listed(loads: Floats, power: float) -> tuple[Floats, float]:
    """Return when each hop starts, and when all have ended; `loads` has what each holds, [hops, rows].

    Of the hops that can start first it is the one whose ports and links have most left, by the norm of this power.
    """
    total = loads.sum(axis=0)
    most = max(float(total.max(initial=0.0)), SOON)
    left, share, needs = total / most, loads / most, loads > 0
    rows = [np.flatnonzero(own) for own in needs]
    free, starts = np.zeros(loads.shape[1]), np.zeros(len(loads))
    waiting, at = np.arange(len(loads)), np.zeros(len(loads))
    while len(waiting):
        soonest = np.flatnonzero(at == at.min())
        busy = left * needs[waiting[soonest]]
        place = soonest[(busy.max(axis=1) if np.isinf(power) else (busy**power).sum(axis=1)).argmax()]
        hop, starts[waiting[place]] = waiting[place], at[place]
        own = rows[hop]
        free[own] = np.round(at[place] + loads[hop, own], 9)
        left[own] -= share[hop, own]
        waiting, at = np.delete(waiting, place), np.delete(at, place)
        at = np.maximum(at, (needs[np.ix_(waiting, own)] * free[own]).max(axis=1, initial=0.0))
    return starts, float(free.max(initial=0.0))
