"""Routes of many messages as columns: figures, and the directed links that each crosses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Routes:
    """The routes of n messages.

    Attributes:
        latency_us: float64 [n]: of the whole route; infinite where there is none.
        gb_per_s: float64 [n]: of its narrowest link; infinite where it crosses none.
        gap_us: float64 [n]: the greatest of its links.
        starts: int64 [n + 1]: route i crosses links[starts[i]:starts[i + 1]], in this order.
        links: int64: numbers of directed links, indices into `PathFinder.edges`.
    """

    latency_us: Floats
    gb_per_s: Floats
    gap_us: Floats
    starts: Ints
    links: Ints

    def __len__(self) -> int:
        return len(self.latency_us)

    @property
    def hops(self) -> Ints:
        """int64 [n]: how many links each route crosses."""
        return np.diff(self.starts)

    def take(self, which: Ints) -> Routes:
        """The routes at these indices, in this order."""
        starts, places = spans(self.starts[which], self.hops[which])
        return Routes(self.latency_us[which], self.gb_per_s[which], self.gap_us[which], starts, self.links[places])


def joined(parts: Sequence[Routes]) -> Routes:
    """The routes of the parts, one after the other."""
    hops = np.concatenate([part.hops for part in parts])
    return Routes(
        np.concatenate([part.latency_us for part in parts]),
        np.concatenate([part.gb_per_s for part in parts]),
        np.concatenate([part.gap_us for part in parts]),
        np.concatenate([[0], np.cumsum(hops)]),
        np.concatenate([part.links for part in parts]),
    )


def spans(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """(where each of n ranges starts when they follow each other, the numbers of all of them).

    Args:
        first: int64 [n]: lowest number of each range.
        counts: int64 [n]: how many numbers it has.
    """
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return starts, np.arange(starts[-1]) + np.repeat(first - starts[:-1], counts)
