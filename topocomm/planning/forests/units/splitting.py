"""A machine in whole units of bandwidth, their maximum flows, and its forwarding devices split off.

A unit that enters a device and a unit that leaves it become one unit from neighbour to neighbour, while every rank can
still receive as much from the roots together (Mader 1978; Frank, Jackson and Bang-Jensen 1995: where as much enters a
device as leaves it, it can be split off completely).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from topocomm.planning.forests.linear_program.integer_network import Network
from topocomm.planning.forests.tree import Path, without_loops

EXACT = 1e-9
"""Part of a unit that a whole one may lack, for rounding."""
NEAR = 16
"""Nearest ranks whose flows are checked at each careful step; the last check is of all ranks."""
OFFSETS = 3
"""Pairings of neighbours that are tried without a check at each step."""
Pairs = list[tuple[int, int, int]]
"""(tail, device, head) of each unit that is split off."""


class Units:
    """Units left on the directed arcs between nodes 0..n-1; sets of nodes are bits of an integer."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.left = [[0] * nodes for _ in range(nodes)]
        self.out = [0] * nodes
        """By node, the heads of its arcs with units."""
        self.into = [0] * nodes
        """By node, the tails of arcs with units into it."""

    def add(self, a: int, b: int, units: int) -> None:
        """Add units, or take some away, from one node to another."""
        row = self.left[a]
        row[b] += units
        if row[b] > 0:
            self.out[a] |= 1 << b
            self.into[b] |= 1 << a
        else:
            self.out[a] &= ~(1 << b)
            self.into[b] &= ~(1 << a)

    def copy(self) -> Units:
        """Return a copy."""
        other = Units(0)
        other.nodes, other.left = self.nodes, [row[:] for row in self.left]
        other.out, other.into = self.out[:], self.into[:]
        return other

    def flows(self, source: int, sink: int, enough: int) -> bool:
        """Whether at least `enough` units flow from one node to another (Edmonds, Karp 1972)."""
        moved: list[tuple[int, int, int]] = []
        missing = enough
        while missing:
            units = self._augment(source, sink, missing, moved)
            if not units:
                break
            missing -= units
        for a, b, units in moved:
            self.add(a, b, units)
            self.add(b, a, -units)
        return not missing

    def _augment(self, source: int, sink: int, most: int, moved: list[tuple[int, int, int]]) -> int:
        """Send as many units as fit along a shortest path, and note its arcs; return 0 where there is none."""
        levels = [1 << source]
        reached, out = levels[0], self.out
        while not levels[-1] >> sink & 1:
            level, following = levels[-1], 0
            while level:
                low = level & -level
                following |= out[low.bit_length() - 1]
                level ^= low
            following &= ~reached
            if not following:
                return 0
            reached |= following
            levels.append(following)
        node, path, units = sink, [], most
        for level in reversed(levels[:-1]):
            candidates = self.into[node] & level
            previous = (candidates & -candidates).bit_length() - 1
            path.append((previous, node))
            units = min(units, self.left[previous][node])
            node = previous
        for a, b in path:
            self.add(a, b, -units)
            self.add(b, a, units)
            moved.append((a, b, units))
        return units


def bits(mask: int) -> Iterator[int]:
    """Yield the nodes of a set in rising order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Split:
    """The units between devices, and the path of every unit by (tail, head).

    Ranks come first, then forwarding devices, then the source, with arcs to the roots.
    """

    def __init__(self, network: Network, gb_per_unit: float, roots: dict[int, int], together: int = 1) -> None:
        """Cut the links into units; each root sends so many, `together` of one tree should stay together."""
        self.network, self.wanted, self.together = network, sum(roots.values()), together
        self.source = len(network.devices)
        self.units = Units(self.source + 1)
        self.paths: dict[tuple[int, int], list[Path]] = {}
        self._sinks: list[int] = []
        self._joined: Pairs = []
        for (a, b), rate in zip(network.links, network.gb_per_s.tolist(), strict=True):
            count = min(int(rate / gb_per_unit + EXACT), self.wanted)
            if count:
                self.units.add(a, b, count)
                self.paths[a, b] = [(a, b)] * count
        for root, trees in roots.items():
            self.units.add(self.source, root, trees)

    def spans(self) -> bool:
        """Whether every rank can receive all that the roots send together."""
        return all(self.units.flows(self.source, rank, self.wanted) for rank in range(self.network.ends))

    def take_out(self) -> bool:
        """Split off all forwarding devices, those with few neighbours first; False where too little is left.

        Tried in turn: `OFFSETS` pairings of neighbours with one check of the flows at the end, which do for regular
        machines; a check at each step, but equal devices split alike, with one more check at the end; all with checks.
        """
        degree = [len(self.network.neighbours[device]) for device in range(len(self.network.devices))]
        order = sorted(range(self.network.ends, len(degree)), key=lambda device: (degree[device], device))
        self._leave_out()
        before, paths = self.units, self.paths
        attempts: list[Callable[[Sequence[int]], None]] = [partial(self._at_once, offset=n) for n in range(OFFSETS)]
        attempts += [partial(self._in_steps, alike=True), partial(self._in_steps, alike=False)]
        for take_out_all in attempts:
            self.units, self.paths = before.copy(), {ends: kept[:] for ends, kept in paths.items()}
            take_out_all(order)
            if self.spans():
                return True
        return False

    def _at_once(self, order: Sequence[int], offset: int) -> None:
        for number, device in enumerate(order, offset):
            self._join_all(self._pairs(device, number))
            self._drop(device)

    def _in_steps(self, order: Sequence[int], *, alike: bool) -> None:
        """Check the flows at each step; where `alike`, devices with equal links are split as the first of them."""
        examples: dict[object, list[tuple[int, int]]] = {}
        for number, device in enumerate(order):
            neighbours, left = self._neighbours(device), self.units.left
            shape = tuple([(left[head][device], left[device][head]) for head in neighbours]) if alike else device
            if shape not in examples:
                self._sinks, self._joined = self._nearest_ranks(device), []
                while self._try_pairs(self._pairs(device, number)) or self._try_any(device):
                    pass
                examples[shape] = [(neighbours.index(tail), neighbours.index(head)) for tail, _, head in self._joined]
            else:
                self._join_all([(neighbours[a], device, neighbours[b]) for a, b in examples[shape]])
            self._drop(device)

    def _leave_out(self) -> None:
        """Drop the devices farthest from the ranks (a spine above rails), while that costs no flow."""
        distance = dict.fromkeys(range(self.network.ends), 0)
        for device in (queue := list(distance)):
            for neighbour, _ in self.network.neighbours[device]:
                if neighbour not in distance:
                    distance[neighbour] = distance[device] + 1
                    queue.append(neighbour)
        for level in range(max(distance.values()), 1, -1):
            before = self.units.copy()
            for device in (device for device, so_far in distance.items() if so_far == level):
                self._drop(device)
            if not self.spans():
                self.units = before
                return

    def _join_all(self, pairs: Pairs) -> None:
        self._join(pairs, 1)
        self._join_paths(pairs)

    def _drop(self, device: int) -> None:
        for other in bits(self.units.into[device]):
            self.units.add(other, device, -self.units.left[other][device])
        for other in bits(self.units.out[device]):
            self.units.add(device, other, -self.units.left[device][other])

    def _join_paths(self, pairs: Pairs) -> None:
        for tail, device, head in pairs:
            entering, leaving = self.paths[tail, device].pop(), self.paths[device, head].pop()
            self.paths.setdefault((tail, head), []).append(without_loops((*entering, *leaving[1:])))

    def _pairs(self, device: int, number: int) -> Pairs:
        """Return pairs to split off, spread evenly: each neighbour with the next, then with the next but one."""
        neighbours = self._neighbours(device)
        enter = {head: self.units.left[head][device] for head in neighbours}
        leave = {head: self.units.left[device][head] for head in neighbours}
        steps = [1 + (number + step) % (len(neighbours) - 1) for step in range(len(neighbours) - 1)]
        pairs: Pairs = []
        before = -1
        while before < len(pairs):
            before = len(pairs)
            for step in steps:
                for place, tail in enumerate(neighbours):
                    head = neighbours[(place + step) % len(neighbours)]
                    units = min(enter[tail], leave[head], self.together)
                    enter[tail] -= units
                    leave[head] -= units
                    pairs += [(tail, device, head)] * units
        return pairs

    def _neighbours(self, device: int) -> list[int]:
        return list(bits(self.units.into[device] | self.units.out[device]))

    def _try_pairs(self, pairs: Pairs) -> bool:
        """Split off as many of the pairs as can be, all at once or else in halves; return whether any was."""
        if not pairs:
            return False
        self._join(pairs, 1)
        if self._still_spans():
            self._join_paths(pairs)
            self._joined += pairs
            return True
        self._join(pairs, -1)
        if len(pairs) == 1:
            return False
        middle = len(pairs) // 2
        return bool(sum([self._try_pairs(half) for half in (pairs[:middle], pairs[middle:])]))

    def _still_spans(self) -> bool:
        """Check `spans` for the nearest ranks; the first that fails is checked first next time."""
        for place, rank in enumerate(self._sinks):
            if not self.units.flows(self.source, rank, self.wanted):
                self._sinks.insert(0, self._sinks.pop(place))
                return False
        return True

    def _nearest_ranks(self, device: int) -> list[int]:
        known, ranks = {device}, []
        for device_at in (queue := [device]):
            if device_at < self.network.ends:
                ranks.append(device_at)
                if len(ranks) == NEAR:
                    break
            for neighbour, _ in self.network.neighbours[device_at]:
                if neighbour not in known:
                    known.add(neighbour)
                    queue.append(neighbour)
        return ranks

    def _try_any(self, device: int) -> bool:
        """Split off the first pair of all that can be; return whether one was."""
        enter, leave = bits(self.units.into[device]), list(bits(self.units.out[device]))
        return any(self._try_pairs([(a, device, b)]) for a in enter for b in leave if a != b)

    def _join(self, pairs: Pairs, units: int) -> None:
        for tail, device, head in pairs:
            self.units.add(tail, device, -units)
            self.units.add(device, head, -units)
            self.units.add(tail, head, units)
