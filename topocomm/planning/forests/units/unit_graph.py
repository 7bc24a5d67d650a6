"""Directed graphs whose arcs carry whole units, with maximum flows of few units.

Sets of nodes are bits of an integer, so a search step looks at all neighbours of a node at once.
"""

from __future__ import annotations

from collections.abc import Iterator


class Units:
    """Units left on every arc between nodes 0..n-1."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.left = [[0] * nodes for _ in range(nodes)]
        self.out = [0] * nodes
        """By node: the nodes that an arc with units leads to."""
        self.into = [0] * nodes

    def add(self, a: int, b: int, units: int) -> None:
        """Units more, or fewer, from one node to another."""
        row = self.left[a]
        row[b] += units
        if row[b] > 0:
            self.out[a] |= 1 << b
            self.into[b] |= 1 << a
        else:
            self.out[a] &= ~(1 << b)
            self.into[b] &= ~(1 << a)

    def copy(self) -> Units:
        """The same graph, to be changed on its own."""
        other = Units(0)
        other.nodes, other.left = self.nodes, [row[:] for row in self.left]
        other.out, other.into = self.out[:], self.into[:]
        return other

    def flows(self, source: int, sink: int, enough: int) -> bool:
        """Whether at least so many units flow from one node to another."""
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
        """Send as many units as fit along a shortest way, noting its arcs; 0 where there is none."""
        levels = [1 << source]
        seen, out = levels[0], self.out
        while not levels[-1] >> sink & 1:
            level, following = levels[-1], 0
            while level:
                low = level & -level
                following |= out[low.bit_length() - 1]
                level ^= low
            following &= ~seen
            if not following:
                return 0
            seen |= following
            levels.append(following)
        node, way, units = sink, [], most
        for level in reversed(levels[:-1]):
            near = self.into[node] & level
            before = (near & -near).bit_length() - 1
            way.append((before, node))
            units = min(units, self.left[before][node])
            node = before
        for a, b in way:
            self.add(a, b, -units)
            self.add(b, a, units)
            moved.append((a, b, units))
        return units


def bits(mask: int) -> Iterator[int]:
    """The nodes of a set, in rising order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
