"""Ranks in a grid: groups that deal heads by all-to-all, and rings over ranks of different groups with the same heads.

Ranks of a group are consecutive, since those are nearest to each other, and an all-to-all sends to all of them; of the
parts of `sequence_slices` a group then holds those of one rank among as many as there are groups, so zigzag stays
balanced. Fang and Zhao, "USP: A Unified Sequence Parallelism Approach" (2024), arXiv 2405.07719.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]
"""From the first to before the second."""


@dataclass(frozen=True)
class HeadGrid:
    """Who has which heads; the same on every rank.

    Attributes:
        ranks: All of them.
        ring: Ranks of a ring, a divisor of `ranks`: also the number of groups.
        heads: Query heads; a multiple of `kv_heads`.
        kv_heads: Key heads.
    """

    ranks: int
    ring: int
    heads: int
    kv_heads: int

    @property
    def width(self) -> int:
        """Ranks of a group."""
        return self.ranks // self.ring

    def group(self, rank: int) -> int:
        """Number of the group of a rank, which is the rank's place in its ring."""
        return rank // self.width

    def place(self, rank: int) -> int:
        """Place of a rank in its group, which is the number of its ring."""
        return rank % self.width

    def members(self, group: int) -> range:
        """Ranks of a group."""
        return range(group * self.width, (group + 1) * self.width)

    def heads_of(self, place: int) -> Range:
        """Query heads of the ranks at a place: as equal as can be, none on some where there are fewer than places."""
        return self.heads * place // self.width, self.heads * (place + 1) // self.width

    def kv_heads_of(self, place: int) -> Range:
        """Key heads that these query heads attend; a key head may be at several places."""
        first, stop = self.heads_of(place)
        if first == stop:
            return 0, 0
        shared = self.heads // self.kv_heads
        return first // shared, -(-stop // shared)

    @property
    def has_shared_heads(self) -> bool:
        """Whether a key head is at several places."""
        ranges = [self.kv_heads_of(place) for place in range(self.width)]
        return sum(stop - first for first, stop in ranges) > (self.kv_heads if self.heads else 0)

    def runs(self, place: int) -> list[tuple[Range, Range]]:
        """Return the heads of a place as runs in which as many query heads share each key head: three at most.

        A run is its query heads and its key heads. Heads that do not divide may begin and end amid those that share a
        key head.
        """
        first, stop = self.heads_of(place)
        if first == stop:
            return []
        shared = self.heads // self.kv_heads
        whole = min(-(-first // shared) * shared, stop), max(stop // shared * shared, first)
        edges = sorted({first, *whole, stop})
        return [((a, b), (a // shared, -(-b // shared))) for a, b in pairwise(edges)]
