"""Lower packed trees: two edges whose paths cross exchange what lies behind the crossing.

Where the paths of two edges, of one tree or of two, pass the same device, each may go on to the other's rank: the load
of every link stays. An edge may also begin elsewhere, over links with bandwidth left. Both are done while the sum of
`BASE` to the power of the depth, over all ranks of all trees, falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from topocomm.planning.forests.linear_program.integer_network import Floats, Ints, Network
from topocomm.planning.forests.tree import Edge, Path, Tree, without_loops

BASE = 2.0
"""Base of the sum of powers of depths that exchanges reduce."""
GAINS = 1e-9
"""Least part of the sum that an exchange must save."""
MOST_PER_EDGE = 2
"""Most exchanges per edge of all trees."""
LONGEST = 3
"""Most links from a rank to the device at which an edge takes over a new beginning."""
ROOM = 1e-9
"""Part of a weight that links may lack, for rounding."""

Place = tuple[int, int]
"""(tree, rank): the edge of the tree that ends at the rank."""


def reduce_height(network: Network, trees: Sequence[tuple[float, Tree]]) -> list[Tree]:
    """Return trees of the same roots and weights (GB/s) that fit the links, along which they lead, as these do."""
    return _Exchanges(network, trees).run()


class _Exchanges:
    """Trees as tables [tree, rank], the bandwidth left, and the edges that cross each device."""

    def __init__(self, network: Network, trees: Sequence[tuple[float, Tree]]) -> None:
        self.network, self.roots = network, [tree.root for _, tree in trees]
        self.weights = np.array([weight for weight, _ in trees])
        self.room: Floats = network.gb_per_s.astype(np.float64)
        shape = len(trees), network.ends
        self.parents = np.zeros(shape, dtype=np.int64)
        self.depths, self.first, self.last = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        self.sums: Floats = np.zeros(shape)
        self.paths: list[dict[int, Path]] = []
        for number, (weight, tree) in enumerate(trees):
            np.subtract.at(self.room, tree.links(network), weight)
            self.paths.append({edge.child: edge.path for edge in tree.edges})
            for edge in tree.edges:
                self.parents[number, edge.child] = edge.parent
            self._measure(number)
        self.crossing: dict[int, dict[Place, None]] = {}
        for place in [(number, child) for number, paths in enumerate(self.paths) for child in paths]:
            self._enter(place)
        self.starts = self._all_starts()

    def run(self) -> list[Tree]:
        """Exchange until no device offers a gain; return the trees."""
        left = MOST_PER_EDGE * sum(len(paths) for paths in self.paths)
        devices, idle = list(self.crossing), 0
        while idle < len(devices) and left:
            device = devices.pop(0)
            devices.append(device)
            idle += 1
            while left and (self._exchange(device) or self._replace_beginning(device)):
                idle, left = 0, left - 1
        trees = []
        for number, root in enumerate(self.roots):
            order = np.argsort(self.depths[number], kind="stable").tolist()
            parents, paths = self.parents[number].tolist(), self.paths[number]
            trees.append(Tree(root, [Edge(parents[rank], rank, paths[rank]) for rank in order if rank != root]))
        return trees

    def _measure(self, number: int) -> None:
        """Compute depths, a walk in which a rank's subtree is `first` to `last`, and the sums over the subtrees."""
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
        for device in self.paths[place[0]][place[1]][1:]:
            self.crossing.setdefault(device, {})[place] = None

    def _all_starts(self) -> dict[int, list[tuple[Path, list[int]]]]:
        """Return, by device, (path, its links) of the shortest from near ranks to it, through forwarding devices."""
        starts: dict[int, list[tuple[Path, list[int]]]] = {}
        for rank in range(self.network.ends):
            reached = {rank}
            paths: list[Path] = [(rank,)]
            for path in paths:
                for neighbour, _ in self.network.neighbours[path[-1]]:
                    if neighbour >= self.network.ends and neighbour not in reached and len(path) <= LONGEST:
                        reached.add(neighbour)
                        paths.append((*path, neighbour))
                        starts.setdefault(neighbour, []).append((paths[-1], self._links(paths[-1])))
        return starts

    def _change(self, places: list[Place], parents: Ints) -> Floats:
        """Return the rise of the sum, float64 [place, parent], with that parent; inf if that lies below the edge."""
        tree, child = np.array(places).T
        depth = self.depths[tree[:, None], parents] + 1 - self.depths[tree, child][:, None]
        change: Floats = self.sums[tree, child][:, None] * (BASE**depth - 1)
        walk = self.first[tree[:, None], parents]
        change[(walk >= self.first[tree, child][:, None]) & (walk < self.last[tree, child][:, None])] = np.inf
        return change

    def _enough(self) -> float:
        return GAINS * float(self.sums[range(len(self.roots)), self.roots].max())

    def _exchange(self, device: int) -> bool:
        """Do the best exchange of two edges that cross at a device; False where none gains."""
        places = list(self.crossing[device])
        if len(places) < 2:
            return False
        tree, child = np.array(places).T
        rises = self._change(places, self.parents[tree, child])
        more = self.weights[tree][:, None] - self.weights[tree]
        if more.any():
            room = np.array([self.room[self._links(self._beginning(place, device))].min() for place in places])
            rises[more > room + ROOM * self.weights[tree][:, None]] = np.inf
        both = rises + rises.T
        best = int(both.argmin())
        if both.flat[best] > -self._enough():
            return False
        edge, other = places[best // len(places)], places[best % len(places)]
        first, second = self._beginning(edge, device), self._beginning(other, device)
        self._reroute(edge, second, device)
        self._reroute(other, first, device)
        for number in {edge[0], other[0]}:
            self._measure(number)
        return True

    def _replace_beginning(self, device: int) -> bool:
        """Give one edge through a device the best other beginning over bandwidth left; False where none gains."""
        starts, places = self.starts.get(device, []), list(self.crossing[device])
        if not starts or not places:
            return False
        weights = self.weights[[number for number, _ in places]]
        room = np.array([self.room[links].min() for _, links in starts])
        rises = self._change(places, np.array([path[0] for path, _ in starts]))
        rises[(weights * (1 - ROOM))[:, None] > room] = np.inf
        best = int(rises.argmin())
        if rises.flat[best] > -self._enough():
            return False
        place = places[best // len(starts)]
        self._reroute(place, starts[best % len(starts)][0], device)
        self._measure(place[0])
        return True

    def _beginning(self, place: Place, device: int) -> Path:
        path = self.paths[place[0]][place[1]]
        return path[: path.index(device) + 1]

    def _links(self, path: Path) -> list[int]:
        return [self.network.index[step] for step in pairwise(path)]

    def _reroute(self, place: Place, beginning: Path, device: int) -> None:
        """Replace the path of an edge up to the device."""
        number, child = place
        previous = self.paths[number][child]
        for crossed in previous[1:]:
            del self.crossing[crossed][place]
        rerouted = without_loops((*beginning, *previous[previous.index(device) + 1 :]))
        for path, sign in ((previous, 1.0), (rerouted, -1.0)):
            for link in self._links(path):
                self.room[link] += sign * self.weights[number]
        self.paths[number][child] = rerouted
        self.parents[number, child] = beginning[0]
        self._enter(place)
