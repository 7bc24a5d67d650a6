"""Borders of groups that are full only while certain members send over them: the others' messages do not fill them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from topocomm.planning.forests.linear_program.integer_network import Floats, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SharedBorders:
    """Groups of ranks, in one direction each: out of the group, or into it.

    Attributes:
        group: bool [borders, ends]: the ranks inside.
        fast: bool [borders, ends]: those of them without whose messages less crosses the border.
        out: bool [borders]: whether messages leave the group.
        gb_per_s: float64 [borders]: what crosses the border, at most.
        slow_gb_per_s: float64 [borders]: the same while no message of a fast one crosses it.
    """

    group: Flags
    fast: Flags
    out: Flags
    gb_per_s: Floats
    slow_gb_per_s: Floats

    @property
    def more_gb_per_s(self) -> Floats:
        """What a message of a fast rank adds at most, float64 [borders]."""
        return self.gb_per_s - self.slow_gb_per_s

    @cached_property
    def crossing(self) -> Flags:
        """Which messages cross, bool [borders, ends, ends]."""
        leaves = self.group[:, :, None] & ~self.group[:, None, :]
        return np.where(self.out[:, None, None], leaves, leaves.transpose(0, 2, 1))

    @cached_property
    def of_fast(self) -> Flags:
        """Which messages are of fast ranks and cross, bool [borders, ends, ends]."""
        fast = np.where(self.out[:, None, None], self.fast[:, :, None], self.fast[:, None, :])
        return self.crossing & fast

    @cached_property
    def ports(self) -> tuple[Ints, Ints]:
        """(border, port) of every fast rank: rank r sends by port r, and receives by port ends + r."""
        border, rank = np.nonzero(self.fast)
        return border, rank + np.where(self.out[border], 0, self.group.shape[1])

    def held(self, prices: Floats, weights: Floats) -> Floats:
        """Return the prices of borders lowered so that no more is taken off a port, [2, ends], than it weighs."""
        border, port = self.ports
        most = prices.copy()
        each = weights.reshape(-1)[port] / np.bincount(port)[port]  # borders of one port have equal shares of it
        np.minimum.at(most, border, each / self.more_gb_per_s[border])
        return most

    def orbits(self, elements: Ints) -> Ints | None:
        """Return the lowest border that symmetries map onto each; None where they map some onto none."""
        keys = {self._key(border, slice(None)): border for border in range(len(self.out))}
        lowest = np.arange(len(self.out))
        for element in elements[:, : self.group.shape[1]]:
            for border in range(len(self.out)):
                image = keys.get(self._key(border, np.argsort(element)))
                if image is None:
                    return None
                lowest[image] = min(lowest[image], border)
        return np.unique(lowest, return_inverse=True)[1].astype(np.int64)

    def _key(self, border: int, places: Ints | slice) -> tuple[object, ...]:
        figures = self.gb_per_s[border], self.slow_gb_per_s[border], self.out[border]
        return self.group[border][places].tobytes(), self.fast[border][places].tobytes(), *map(float, figures)

    def only(self, kept: Flags | Ints) -> SharedBorders:
        """Return some of the borders."""
        names = ("group", "fast", "out", "gb_per_s", "slow_gb_per_s")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})
