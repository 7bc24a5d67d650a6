"""Packed trees made lower: two edges whose ways cross exchange what lies behind the crossing.

Where the way to one rank and the way to another pass the same device, of one tree or of two, each may go on to the
other's rank: every link carries what it carried. An edge may also come from elsewhere over links with bandwidth left.
Both are done as long as the sum of `BASE` to the power of the depth, over all ranks of all trees, falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.tree import Edge, Tree, Way, simple

BASE = 2.0
GAINS = 1e-9
"""Part of the sum that an exchange must save."""
MOST_PER_EDGE = 2
"""Exchanges, per edge of all trees, after which no more are looked for."""
LONGEST = 3
"""Links from a rank to a device at which an edge that comes over bandwidth left may cross."""
ROOM = 1e-9
"""Part of a weight that may be missing."""

Place = tuple[int, int]
"""(tree, rank): the edge of the tree that ends at the rank."""


def lowered(network: Network, trees: Sequence[tuple[float, Tree]]) -> list[Tree]:
    """Trees with the same roots that together fit the links as those do.

    Args:
        network: The machine, in the direction in which the trees go away from their roots.
        trees: (GB/s, tree); they fit the links together.
    """
    search = _Exchanges(network, trees)
    search.run()
    return search.trees()


class _Start(NamedTuple):
    """The links that the beginning of a way needs, and the rank it comes from."""

    way: Way
    links: list[int]


class _Exchanges:
    def __init__(self, network: Network, trees: Sequence[tuple[float, Tree]]) -> None:
        self.network, self.roots = network, [tree.root for _, tree in trees]
        self.weights = np.array([weight for weight, _ in trees])
        self.room: Floats = network.gb_per_s.astype(np.float64)
        shape = len(trees), network.ends
        self.parents = np.zeros(shape, dtype=np.int64)
        self.depths, self.first, self.last = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        self.sums: Floats = np.zeros(shape)
        self.ways: list[dict[int, Way]] = []
        for number, (weight, tree) in enumerate(trees):
            np.subtract.at(self.room, tree.links(network), weight)
            self.ways.append({edge.child: edge.way for edge in tree.edges})
            for edge in tree.edges:
                self.parents[number, edge.child] = edge.parent
            self._measure(number)
        self.crossing: dict[int, dict[Place, None]] = {}
        for place in [(number, child) for number, ways in enumerate(self.ways) for child in ways]:
            self._enter(place)
        self.starts = self._all_starts()

    def run(self) -> None:
        """Exchange until nothing is gained."""
        left = MOST_PER_EDGE * sum(len(ways) for ways in self.ways)
        devices, idle = list(self.crossing), 0
        while idle < len(devices) and left:
            device = devices.pop(0)
            devices.append(device)
            idle += 1
            while left and (self._exchange(device) or self._start_anew(device)):
                idle, left = 0, left - 1

    def trees(self) -> list[Tree]:
        """The trees as they are now."""
        found = []
        for number, root in enumerate(self.roots):
            order = np.argsort(self.depths[number], kind="stable").tolist()
            parents, ways = self.parents[number].tolist(), self.ways[number]
            found.append(Tree(root, [Edge(parents[rank], rank, ways[rank]) for rank in order if rank != root]))
        return found

    def _measure(self, number: int) -> None:
        """Depths, the order of a walk (`first` to `last` of a rank are those below it) and the sums below each rank."""
        ends, root = self.network.ends, self.roots[number]
        parents = self.parents[number].tolist()
        below: list[list[int]] = [[] for _ in range(ends)]
        for rank, parent in enumerate(parents):
            if rank != root:
                below[parent].append(rank)
        depths, first, size = [0] * ends, [0] * ends, [1] * ends
        order: list[int] = []
        stack = [root]
        while stack:
            rank = stack.pop()
            first[rank] = len(order)
            order.append(rank)
            for child in below[rank]:
                depths[child] = depths[rank] + 1
            stack += below[rank]
        sums = [BASE**depth for depth in depths]
        for rank in order[:0:-1]:
            size[parents[rank]] += size[rank]
            sums[parents[rank]] += sums[rank]
        self.depths[number], self.first[number], self.sums[number] = depths, first, sums
        self.last[number] = self.first[number] + size

    def _enter(self, place: Place) -> None:
        for device in self.ways[place[0]][place[1]][1:]:
            self.crossing.setdefault(device, {})[place] = None

    def _leave(self, place: Place) -> None:
        for device in self.ways[place[0]][place[1]][1:]:
            del self.crossing[device][place]

    def _all_starts(self) -> dict[int, list[_Start]]:
        """By device: the shortest ways to it from every rank not far away, through what forwards."""
        found: dict[int, list[_Start]] = {}
        for rank in range(self.network.ends):
            seen = {rank}
            ways: list[Way] = [(rank,)]
            for way in ways:
                for after, _ in self.network.neighbours[way[-1]]:
                    if after >= self.network.ends and after not in seen and len(way) <= LONGEST:
                        seen.add(after)
                        ways.append((*way, after))
                        links = [self.network.index[step] for step in pairwise(ways[-1])]
                        found.setdefault(after, []).append(_Start(ways[-1], links))
        return found

    def _change(self, places: list[Place], parents: Ints) -> Floats:
        """float64 [place, parent]: by what the sum rises if the edge came from that parent; inf from below itself."""
        tree, child = np.array(places).T
        depth = self.depths[tree[:, None], parents] + 1 - self.depths[tree, child][:, None]
        found: Floats = self.sums[tree, child][:, None] * (BASE**depth - 1)
        walk = self.first[tree[:, None], parents]
        found[(walk >= self.first[tree, child][:, None]) & (walk < self.last[tree, child][:, None])] = np.inf
        return found

    def _enough(self) -> float:
        """What an exchange must save."""
        return GAINS * float(self.sums[range(len(self.roots)), self.roots].max())

    def _exchange(self, device: int) -> bool:
        """The best exchange of two edges that cross at a device."""
        places = list(self.crossing[device])
        if len(places) < 2:
            return False
        tree, child = np.array(places).T
        rises = self._change(places, self.parents[tree, child])
        more = self.weights[tree][:, None] - self.weights[tree]
        if more.any():
            room = np.array([self.room[self._links_to(place, device)].min() for place in places])
            rises[more > room + ROOM * self.weights[tree][:, None]] = np.inf
        both = rises + rises.T
        best = int(both.argmin())
        if both.flat[best] > -self._enough():
            return False
        one, other = places[best // len(places)], places[best % len(places)]
        first, second = self._begin(one, device), self._begin(other, device)
        self._lead(one, second, device)
        self._lead(other, first, device)
        for number in {one[0], other[0]}:
            self._measure(number)
        return True

    def _start_anew(self, device: int) -> bool:
        """The best edge through a device that may come from elsewhere."""
        starts, places = self.starts.get(device, []), list(self.crossing[device])
        if not starts or not places:
            return False
        weights = self.weights[[number for number, _ in places]]
        room = np.array([self.room[start.links].min() for start in starts])
        rises = self._change(places, np.array([start.way[0] for start in starts]))
        rises[(weights * (1 - ROOM))[:, None] > room] = np.inf
        best = int(rises.argmin())
        if rises.flat[best] > -self._enough():
            return False
        place = places[best // len(starts)]
        self._lead(place, starts[best % len(starts)].way, device)
        self._measure(place[0])
        return True

    def _begin(self, place: Place, device: int) -> Way:
        way = self.ways[place[0]][place[1]]
        return way[: way.index(device) + 1]

    def _links_to(self, place: Place, device: int) -> list[int]:
        return [self.network.index[step] for step in pairwise(self._begin(place, device))]

    def _lead(self, place: Place, begin: Way, device: int) -> None:
        """The edge comes that way to the device, and from there on as before."""
        self._leave(place)
        number, child = place
        before = self.ways[number][child]
        after = simple((*begin, *before[before.index(device) + 1 :]))
        for way, sign in ((before, 1.0), (after, -1.0)):
            for step in pairwise(way):
                self.room[self.network.index[step]] += sign * self.weights[number]
        self.ways[number][child] = after
        self.parents[number, child] = begin[0]
        self._enter(place)
