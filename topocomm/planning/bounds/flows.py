"""Maximum flows and minimum cuts on a machine, deterministic (Dinic 1970)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNLIMITED = float("inf")
"""Capacity of an arc that no minimum cut crosses."""
_SMALL = 1e-12
"""Part of the greatest capacity below which the rest of an arc counts as zero."""


class FlowNetwork:
    """Nodes 0..n-1 with directed arcs; each call joins a source to some nodes and others to a sink."""

    def __init__(self, nodes: int, arcs: Sequence[tuple[int, int, float]]) -> None:
        self.nodes = nodes
        self.source, self.sink = nodes, nodes + 1
        self._heads: list[int] = []
        self._capacity: list[float] = []
        self._arcs: list[list[int]] = [[] for _ in range(nodes + 2)]
        both: dict[tuple[int, int], list[float]] = {}
        for a, b, rate in arcs:
            if a != b:
                pair = both.setdefault((min(a, b), max(a, b)), [0.0, 0.0])
                pair[a > b] += rate
        for (a, b), (forward, back) in both.items():
            self._arc(a, b, forward, back)
        self._from_source = [self._arc(self.source, node, 0.0, 0.0) for node in range(nodes)]
        self._to_sink = [self._arc(node, self.sink, 0.0, 0.0) for node in range(nodes)]
        self._small = _SMALL * max(self._capacity, default=0.0)

    def _arc(self, a: int, b: int, forward: float, back: float) -> int:
        index = len(self._heads)
        self._heads += [b, a]
        self._capacity += [forward, back]
        self._arcs[a].append(index)
        self._arcs[b].append(index + 1)
        return index

    def min_cut(
        self, into: Mapping[int, float], out_of: Mapping[int, float], enough: float = UNLIMITED
    ) -> set[int] | None:
        """Return the smallest source side of a minimum cut; None where at least `enough` flows.

        `into` and `out_of` are capacities from the source to nodes (UNLIMITED: on its side) and from nodes to the sink.
        """
        left = self._capacity.copy()
        for node, rate in into.items():
            left[self._from_source[node]] = rate
        for node, rate in out_of.items():
            left[self._to_sink[node]] = rate
        missing = enough
        while missing > 0:
            level = self._levels(left)
            if level[self.sink] < 0:
                return {node for node in range(self.nodes) if level[node] >= 0}
            missing = self._block(left, level, missing)
        return None

    def _levels(self, left: list[float]) -> list[int]:
        """Return the arcs on a shortest path from the source to each node over capacity left; -1: out of reach."""
        level = [-1] * (self.nodes + 2)
        level[self.source] = 0
        queue = [self.source]
        for node in queue:
            for arc in self._arcs[node]:
                head = self._heads[arc]
                if level[head] < 0 and left[arc] > self._small:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level

    def _block(self, left: list[float], level: list[int], missing: float) -> float:
        """Send flow along shortest paths until each is blocked or none is missing; return what is missing."""
        heads, arcs, small = self._heads, self._arcs, self._small
        tried = [0] * (self.nodes + 2)
        path: list[int] = []
        node = self.source
        while True:
            if node == self.sink:
                rate = min(left[arc] for arc in path)
                if rate >= missing:
                    return 0.0
                for arc in path:
                    left[arc] -= rate
                    left[arc ^ 1] += rate
                missing -= rate
                full = next(index for index, arc in enumerate(path) if left[arc] <= small)
                node = heads[path[full] ^ 1]
                del path[full:]
                continue
            while tried[node] < len(arcs[node]):
                arc = arcs[node][tried[node]]
                if left[arc] > small and level[heads[arc]] == level[node] + 1:
                    break
                tried[node] += 1
            else:
                if not path:
                    return missing
                node = heads[path.pop() ^ 1]
                tried[node] += 1
                continue
            path.append(arc)
            node = heads[arc]
