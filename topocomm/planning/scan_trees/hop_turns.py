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


def trees_of(hosts: HostHops, trees: Sequence[HostTree]) -> ScanTrees:
    """Return the trees on all hosts: the last rank of the spine of each sends the next one."""
    parents = hosts.on_all(np.array([tree.parents for tree in trees]))
    up, down = (
        hosts.on_all(np.array([[padded(way[1:-1]) for way in ways] for ways in each]))
        for each in ([tree.up for tree in trees], [tree.down for tree in trees])
    )
    up[parents == NO_RANK] = NO_RANK
    return ScanTrees(parents, up, down)


def clock_of(hosts: HostHops, trees: Sequence[HostTree], payload_us: float) -> Clock:
    """Return when all hops leave.

    Args:
        hosts: Hops of the machine.
        trees: Of equal chunks.
        payload_us: Time of a slice of all chunks at the fastest rate.
    """
    share = 1 / len(trees)
    which = [
        (way_of, chunk, rank, hop, number)
        for chunk, tree in enumerate(trees)
        for way_of, ways in enumerate((tree.up, tree.down))
        for rank, way in enumerate(ways)
        for hop, number in enumerate(hosts.hops(way) if way else ())
    ]
    way_of, chunk, rank, hop, number = np.array(which).reshape(-1, 5).T
    starts, period = _listed(hosts.loads[number] * share)
    turns = np.zeros((2, len(trees), hosts.members, MOST_RELAYS + 1))
    takes = np.full(turns.shape, SOON)
    turns[way_of, chunk, rank, hop] = starts
    takes[way_of, chunk, rank, hop] = np.maximum(
        SOON, hosts.takes[number] * share + hosts.latency_us[number] / payload_us
    )
    up, down, up_takes, down_takes = (np.tile(each, (1, hosts.hosts, 1)) for each in (*turns, *takes))
    return Clock(max(period, SOON), up, down, up_takes, down_takes)


def _listed(loads: Floats) -> tuple[Floats, float]:
    """Return when each hop starts, and when all have ended; `loads` has what each holds, [hops, rows]."""
    left, free = loads.sum(axis=0), np.zeros(loads.shape[1])
    needs = loads > 0
    starts, waiting = np.zeros(len(loads)), np.arange(len(loads))
    while len(waiting):
        needed = needs[waiting]
        at = np.round((free * needed).max(axis=1), 9)
        soonest = np.flatnonzero(at == at.min())
        place = soonest[(left * needed[soonest]).max(axis=1).argmax()]
        hop = waiting[place]
        starts[hop] = at[place]
        own = needs[hop]
        free[own] = at[place] + loads[hop, own]
        left -= loads[hop]
        waiting = np.delete(waiting, place)
    return starts, float(free.max(initial=0.0))
