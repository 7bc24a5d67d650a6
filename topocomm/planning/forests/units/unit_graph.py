"""Directed graphs whose arcs carry whole units, and maximum flows; sets of nodes are bits of an integer."""

from __future__ import annotations

from collections.abc import Iterator


class Units:
    """Units left on the arcs between nodes 0..n-1."""

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
