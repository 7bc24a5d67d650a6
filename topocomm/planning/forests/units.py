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
        moved: list[tuple[int, int]] = []
        found = all(self._augment(source, sink, moved) for _ in range(enough))
        for a, b in moved:
            self.add(a, b, 1)
            self.add(b, a, -1)
        return found

    def _augment(self, source: int, sink: int, moved: list[tuple[int, int]]) -> bool:
        """Send one unit along a shortest way, noting its arcs; False where there is none."""
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
                return False
            seen |= following
            levels.append(following)
        node = sink
        for level in reversed(levels[:-1]):
            near = self.into[node] & level
            before = (near & -near).bit_length() - 1
            self.add(before, node, -1)
            self.add(node, before, 1)
            moved.append((before, node))
            node = before
        return True


def bits(mask: int) -> Iterator[int]:
    """The nodes of a set, in rising order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
