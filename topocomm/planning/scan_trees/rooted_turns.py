"""Turns of all hops of rooted trees: whenever what it needs is there and free, the one goes that most comes after.

Every host does the same: up its trees, out to the roots that are above, back from them, and down (list scheduling by
the longest remaining path; Graham 1969). So messages between hosts pass while others pass inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.scan_trees.hop_clock import SAME, Clock
from topocomm.planning.scan_trees.host_hops import MOST_RELAYS, HostHops, Way
from topocomm.planning.scan_trees.host_trees import heights
from topocomm.planning.scan_trees.rank_trees import NO_RANK
from topocomm.planning.scan_trees.tree_packing import HostTree

UP, DOWN = 0, 1


class _Hop(NamedTuple):
    """A hop of the message of a rank.

    Attributes:
        place: (UP or DOWN, level of hosts, tree, rank, hop on its way).
        number: Of the hop among those of the host.
        part: Of the value of the tree.
        after: Those that it waits for.
    """

    place: tuple[int, int, int, int, int]
    number: int
    part: float
    after: tuple[int, ...]


def rooted_clock(hosts: HostHops, trees: Sequence[HostTree], above: Ints, payload_us: float) -> Clock:
    """Return when all hops of `rooted_trees` leave; the period is when the last one has arrived.

    Args:
        hosts: Hops of the machine.
        trees: Of equal chunks, rooted.
        above: [trees, pieces, hosts]: the host whose root is above that of each; NO_RANK of all that send each other.
        payload_us: Time of all chunks at the fastest rate.
    """
    height = heights(above.reshape(-1, hosts.hosts))
    below = (above != NO_RANK).reshape(height.shape)
    at_once = not below.any()
    parts = [float(((height == level) & below).mean()) for level in range(height.max())]
    if at_once:  # to the next host, the second one, ...
        parts = [1.0] * (hosts.hosts - 1)
    hops: list[_Hop] = []
    for chunk, tree in enumerate(trees):
        _Writer(hosts, chunk, tree, parts, hops).write(at_once=at_once)
    number, part = np.array([hop.number for hop in hops]), np.array([hop.part for hop in hops]) / len(trees)
    takes = np.maximum(SAME, hosts.takes[number] * part + hosts.latency_us[number] / payload_us)
    starts = _listed(hosts.loads[number] * part[:, None], takes, [hop.after for hop in hops])
    turns = np.zeros((2, max(1, len(parts)), len(trees), hosts.members, MOST_RELAYS + 1))
    durations = np.full(turns.shape, SAME)
    place = tuple(np.array([hop.place for hop in hops]).T)
    turns[place], durations[place] = starts, takes
    level = np.minimum(height, len(turns[0]) - 1)
    root = np.repeat([tree.parents.index(NO_RANK) for tree in trees], above.shape[1])
    every = (_on_all(each, level, root) for each in (*turns, *durations))
    every_tree = np.arange(len(root))
    across = [each[UP][:, every_tree, root, 0].T for each in (turns, durations)] if at_once else []
    return Clock(float((starts + takes).max()), *every, *across)


def _on_all(turns: Floats, level: Ints, root: Ints) -> Floats:
    """Turns of a host, [levels, trees, members, hops], on all hosts; `level` has that of each, [chunks, hosts]."""
    chunks, hosts = level.shape
    tree = np.arange(chunks) * turns.shape[1] // chunks
    every = np.repeat(turns[0, tree][:, None], hosts, axis=1)
    chunk, host = np.indices(level.shape)
    every[chunk, host, root[chunk]] = turns[level, tree[chunk], root[chunk]]
    return every.reshape(chunks, -1, turns.shape[3])


class _Writer:
    """The hops of a tree, in an order in which each comes after those that it waits for."""

    def __init__(self, hosts: HostHops, chunk: int, tree: HostTree, parts: Sequence[float], hops: list[_Hop]) -> None:
        self.hosts, self.chunk, self.tree, self.parts, self.hops = hosts, chunk, tree, parts, hops
        self.children: list[list[int]] = [[] for _ in tree.parents]
        for rank, parent in enumerate(tree.parents):
            if parent != NO_RANK:
                self.children[parent].append(rank)

    def write(self, *, at_once: bool) -> None:
        """Write them all: up the host, up the levels of hosts and down them or to all at once, and down the host."""
        root = self.tree.parents.index(NO_RANK)
        known = self._heard(root)
        if at_once:
            ways = [
                self._way((UP, k, self.chunk, root), self.tree.up[root], 1.0, known) for k in range(len(self.parts))
            ]
            self._tell(root, tuple(hop for way in ways for hop in way))
            return
        for level, part in enumerate(self.parts):
            known = self._way((UP, level, self.chunk, root), self.tree.up[root], part, known)
        for level, part in reversed(list(enumerate(self.parts))):
            known = self._way((DOWN, level, self.chunk, root), self.tree.down[root], part, known)
        self._tell(root, known)

    def _heard(self, rank: int) -> tuple[int, ...]:
        return tuple(
            hop
            for child in self.children[rank]
            for hop in self._way((UP, 0, self.chunk, child), self.tree.up[child], 1.0, self._heard(child))
        )

    def _tell(self, rank: int, known: tuple[int, ...]) -> None:
        for child in self.children[rank]:
            self._tell(child, self._way((DOWN, 0, self.chunk, child), self.tree.down[child], 1.0, known))

    def _way(self, place: tuple[int, int, int, int], way: Way, part: float, after: tuple[int, ...]) -> tuple[int, ...]:
        for hop, number in enumerate(self.hosts.hops(way)):
            self.hops.append(_Hop((*place, hop), number, part, after))
            after = (len(self.hops) - 1,)
        return after


def _listed(loads: Floats, takes: Floats, after: Sequence[tuple[int, ...]]) -> Floats:
    """Return when each hop starts; `loads` has what each holds, [hops, rows]."""
    tail, then = takes.copy(), [list[int]() for _ in after]
    for hop in reversed(range(len(after))):
        for earlier in after[hop]:
            tail[earlier] = max(tail[earlier], takes[earlier] + tail[hop])
            then[earlier].append(hop)
    waits, ready = np.array([len(each) for each in after]), np.zeros(len(after))
    free, needs, starts = np.zeros(loads.shape[1]), loads > 0, np.zeros(len(after))
    rows, at = [np.flatnonzero(own) for own in needs], np.zeros(len(after))
    waiting = np.flatnonzero(waits == 0)
    while len(waiting):
        begin = np.round(np.maximum(ready[waiting], at[waiting]), 9)
        soonest = np.flatnonzero(begin == begin.min())
        place = soonest[tail[waiting[soonest]].argmax()]
        hop, own = int(waiting[place]), rows[waiting[place]]
        starts[hop] = begin[place]
        free[own] = begin[place] + loads[hop, own]
        at = np.maximum(at, (needs[:, own] * free[own]).max(axis=1, initial=0.0))
        waits[then[hop]] -= 1
        ready[then[hop]] = np.maximum(ready[then[hop]], starts[hop] + takes[hop])
        waiting = np.append(np.delete(waiting, place), [each for each in then[hop] if not waits[each]]).astype(np.int64)
    return starts
