"""The tokens that a rank attends after the all-to-all: those of its group, in the order of the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attention.ring.ring_layout import Parts, pieces_of
from attention.spec import Spec
from attention.ulysses.head_grid import HeadGrid


@dataclass(frozen=True)
class GroupTokens:
    """Tokens of all groups of a grid.

    Attributes:
        positions: Of every group, int64 [tokens], ascending.
        order: Of this rank's group, which row of those in the order of ranks is the i-th of the sequence, int64
            [tokens]; None: they are in order.
    """

    positions: list[torch.Tensor]
    order: torch.Tensor | None

    @classmethod
    def of(cls, parts: Parts, grid: HeadGrid) -> GroupTokens:
        """Return the groups of the ranks that hold these parts."""
        joined = [torch.cat([parts.positions[rank] for rank in grid.members(group)]) for group in range(grid.ring)]
        own = joined[grid.group(parts.rank)]
        in_order = bool((own.diff() > 0).all())
        return cls([x.sort().values for x in joined], None if in_order else own.argsort())

    def sorted(self, table: torch.Tensor) -> torch.Tensor:
        """Return rows [tokens, words] that come in the order of ranks in that of the sequence; no copy if they are."""
        return table if self.order is None else table.index_select(0, self.order.to(table.device))

    def as_received(self, table: torch.Tensor) -> torch.Tensor:
        """The inverse of `sorted`."""
        return table if self.order is None else table.index_select(0, self.order.argsort().to(table.device))

    def parts(self, group: int, spec: Spec) -> Parts:
        """Return the parts of a ring over the groups, each of which is a rank there."""
        return Parts(group, spec, self.positions, [pieces_of(x.numpy()) for x in self.positions])
