"""Spec: which attention is computed; everything about it but the arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """Which attention is computed.

    Sliding windows, soft caps, ALiBi slopes and attention sinks are not built; they are no fields yet, so that
    asking for one is a TypeError and not a wrong result.

    Attributes:
        scale: Factor on q.k; None takes 1 / sqrt(head dim).
        causal: If True, a query sees only the keys whose global position is at most its own.
    """

    scale: float | None = None
    causal: bool = False

    def scale_for(self, head_dim: int) -> float:
        """The factor on q.k for this head dim."""
        return 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale
