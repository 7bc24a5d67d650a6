"""When the messages of scans along trees leave: in slices, each has its turn in a period, the same for every slice.

A message leaves at its first turn after what it has is there. Turns in between belong to other slices, so messages that
are under way long hold up none behind them at a port.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.scan_trees.rank_trees import NO_RANK, Nodes, ScanTrees

NONE: Floats = np.zeros((0, 0))
"""Of one tree for each chunk."""
SAME = 1e-6
"""Times that differ by less of a period are one."""


class Clock(NamedTuple):
    """Turns of all hops, in any unit of time.

    Attributes:
        period: Time from a slice to the next one.
        up: [chunks, ranks, relays + 1]: turn of each hop of the message to the parent, from 0 to below the period.
        down: The same of the message from the parent.
        up_takes: How long each hop takes, above 0.
        down_takes: The same of the message from the parent.
        across, across_takes: [chunks, roots - 1]: of the message from a root to the first after it, the second, ...
    """

    period: float
    up: Floats
    down: Floats
    up_takes: Floats
    down_takes: Floats
    across: Floats = NONE
    across_takes: Floats = NONE


def steady(trees: ScanTrees) -> Clock:
    """Return the clock of which every hop takes a period."""
    up, down = (np.zeros((*ways.shape[:2], 1 + ways.shape[2])) for ways in (trees.up, trees.down))
    across = np.zeros((len(up), int((trees.parents[0] == NO_RANK).sum()) - 1))
    return Clock(1.0, up, down, up + 1.0, down + 1.0, across, across + 1.0)


def phased(trees: ScanTrees) -> Clock:
    """Return the clock of which every hop without relays takes a round, all that goes up before what goes down.

    Between the two goes what roots tell each other. What those hear who tell others goes first, of all groups: so
    messages between groups wait for none inside.
    """
    nodes = trees.nodes
    every = steady(trees)
    up = hop_rounds(nodes, trees, every).up[:, -1:]
    across = every.across + up.max() + 1.0
    height = np.zeros_like(nodes.parent)
    for level in reversed(nodes.levels[1:]):
        np.maximum.at(height, nodes.parent[level], 1 + height[level])
    down = across.max(initial=up.max()) + 1.0 + np.maximum(0, height[nodes.hears].max(initial=0) - height)
    shape = (*trees.parents.shape, 1)
    ways = up.reshape(shape).astype(float), down.reshape(shape), np.ones(shape), np.ones(shape)
    return Clock(float(down.max()) + 1.0, *ways, across, every.across_takes)


class Rounds(NamedTuple):
    """Rounds of the hops.

    Attributes:
        up, down: [nodes, relays + 1]: of the message to the parent, and from it; hops that it has not are in the round
            of its last.
        across: [messages]: of those between trees.
        period: Rounds from a slice to the next one.
        slice_takes: When all messages of the first slice have arrived, in the clock's time.
    """

    up: Ints
    down: Ints
    across: Ints
    period: int
    slice_takes: float


def hop_rounds(nodes: Nodes, trees: ScanTrees, clock: Clock) -> Rounds:
    """Return the rounds of all hops of trees with these nodes."""
    up, down = (_Hops(ways, *times, clock.period) for ways, times in _of_ways(trees, clock))
    ready = np.zeros(len(nodes.parent))
    for level in reversed(nodes.levels[1:]):
        sending = level[nodes.goes_up[level]]
        up.leave(sending, ready[sending])
        np.maximum.at(ready, nodes.parent[sending], up.there[sending])
    across, told = _across(nodes, clock, ready)
    ready = _told(nodes, np.where(nodes.goes_up, up.there, 0.0))
    for level in nodes.levels[1:]:
        above = nodes.parent[level]
        hearing = level[nodes.hears[level]]
        known = np.where(nodes.hears[above], down.there[above], told[above])
        ready[level] = np.maximum(ready[level], known)
        down.leave(hearing, ready[hearing])
    hops = (up, nodes.goes_up), (down, nodes.hears), (across, np.ones(len(across.there), bool))
    sent = np.concatenate([each.turns[which].ravel() for each, which in hops])
    order = np.argsort(sent, kind="stable")
    turns = np.empty(len(sent), np.int64)
    turns[order] = np.cumsum(np.diff(sent[order], prepend=sent[order[:1]]) > SAME * clock.period)
    period = 1 + int(turns.max(initial=0))
    cuts = np.cumsum([each.turns[which].size for each, which in hops])[:-1]
    rounds = [each.rounds(which, own, period) for (each, which), own in zip(hops, np.split(turns, cuts), strict=True)]
    last = max(float(each.there.max(initial=0.0)) for each, _ in hops)
    return Rounds(rounds[0], rounds[1], rounds[2][:, 0], period, last)


def _across(nodes: Nodes, clock: Clock, ready: Floats) -> tuple[_Hops, Floats]:
    """The messages between trees, which leave when their root is ready, and when each node has all of them."""
    src, dst = nodes.tells
    told, place = np.zeros(len(ready)), np.cumsum(nodes.parent == NO_RANK)
    which = nodes.chunk[src], place[dst] - place[src] - 1
    straight = np.zeros((1, len(src), 0), np.int64)
    turns, takes = (each[which][None, :, None] for each in (clock.across, clock.across_takes))
    across = _Hops(straight, turns, takes, clock.period)
    across.leave(np.arange(len(src)), ready[src])
    np.maximum.at(told, dst, across.there)
    return across, told


def least_takes(trees: ScanTrees, clock: Clock) -> float:
    """Return what `Rounds.slice_takes` is at least: the longest way on which every message waits for the one before."""
    nodes, longest = trees.nodes, 0.0
    for (relays, (_, takes)), sent in zip(_of_ways(trees, clock), (nodes.goes_up, nodes.hears), strict=True):
        hops = np.arange(takes.shape[2]) <= (relays != NO_RANK).sum(axis=2)[:, :, None]
        total = np.where(sent, (takes * hops).sum(axis=2).ravel(), 0.0)
        above = np.where(nodes.parent == NO_RANK, np.arange(len(total)), nodes.parent)
        while not np.array_equal(above, further := above[above]):  # ways are doubled each time
            total, above = total + total[above], further
        longest = max(longest, float(total.max()))
    return longest


def _of_ways(trees: ScanTrees, clock: Clock) -> list[tuple[Ints, tuple[Floats, Floats]]]:
    return [(trees.up, (clock.up, clock.up_takes)), (trees.down, (clock.down, clock.down_takes))]


def _told(nodes: Nodes, arrived: Floats) -> Floats:
    """When the parent of each node has the values of the earlier children."""
    ready = np.zeros(len(nodes.parent))
    if len(nodes.children):
        own = arrived[nodes.children]
        offset = nodes.first_child[nodes.parent[nodes.children]] * (float(own.max()) + 1.0)
        known = np.maximum.accumulate(own + offset) - offset
        before = nodes.sibling_before
        ready[nodes.children] = np.where(before == np.arange(len(before)), 0.0, known[before])
    return ready


class _Hops:
    """The hops of all messages of one direction.

    Attributes:
        turns: [nodes, relays + 1]: turn of each hop; those that a message has not, that of its last.
        there: When the message arrives; 0 of those that have not left.
    """

    def __init__(self, relays: Ints, turns: Floats, takes: Floats, period: float) -> None:
        count, most = relays.shape[0] * relays.shape[1], turns.shape[2]
        self.last = (relays.reshape(count, relays.shape[2]) != NO_RANK).sum(axis=1)
        """The last hop of each."""
        hops = np.minimum(np.arange(most), self.last[:, None])
        self.turns = np.take_along_axis(turns.reshape(count, most), hops, axis=1).astype(np.float64, copy=False)
        self.takes, self.period = np.ascontiguousarray(takes.reshape(count, most), np.float64), period
        self.there, self.slice = np.zeros(count), np.zeros(self.turns.shape, np.int64)

    def leave(self, nodes: Ints, ready: Floats) -> None:
        """Let the messages of these nodes leave when they have what they send."""
        try:
            from topocomm.native._native import leave_in_turn
        except ImportError:
            self.leave_plainly(nodes, ready)
        else:
            rule = np.array([self.period, SAME])
            leave_in_turn(nodes, ready, self.last, self.turns, self.takes, rule, self.slice, self.there)

    def leave_plainly(self, nodes: Ints, ready: Floats) -> None:
        """As `leave`, without the compiled part."""
        for hop in range(self.turns.shape[1]):
            some = hop <= self.last[nodes]
            turn, own = self.turns[nodes[some], hop], nodes[some]
            late = np.maximum(0, np.ceil((ready[some] - turn) / self.period - SAME)).astype(np.int64)
            self.slice[own, hop:] = late[:, None]
            ready = ready.copy()
            ready[some] = turn + late * self.period + self.takes[own, hop]
        self.there[nodes] = ready

    def rounds(self, which: Ints, turns: Ints, period: int) -> Ints:
        """Return the rounds: turns of a period, in order, after as many periods as each message waits."""
        made = np.zeros(self.turns.shape, np.int64)
        made[which] = self.slice[which] * period + turns.reshape(-1, self.turns.shape[1])
        return made
