"""Spec: which attention is computed; everything about it but the arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from topocomm import OperatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Spec:
    """Which attention is computed.

    The score of query i and key j is s = scale q.k, then softcap tanh(s / softcap), then s - slope |i - j|, then -inf
    where the query does not see the key.

    Attributes:
        scale: Factor on q.k; None takes 1 / sqrt(head dim).
        causal: If True, a query sees only the keys whose global position is at most its own.
        window: A query sees only keys less than this many positions away: `window` keys, itself among them, if causal
            (the `sliding_window` of Hugging Face; flash_attn calls it `window_size=(window - 1, 0)`).
        softcap: Scores are bent to stay between -softcap and softcap, as in Gemma 2.
        alibi_slopes: Loss of a score per position of distance, one per head (Press et al. 2022): any array-like.
        sinks: One logit per head that takes part in the softmax with the value 0 (gpt-oss): any array-like. Sinks are
            no part of a `Partial`: they are counted once, after the merge, by the functions that end a calculation.
    """

    scale: float | None = None
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: Sequence[float] | NDArray[Any] | torch.Tensor | None = None
    sinks: Sequence[float] | NDArray[Any] | torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Arrays become tuples, so that a Spec can be compared and kept."""
        if self.scale is not None and not math.isfinite(self.scale):
            raise OperatorError(f"Spec: scale must be finite, got {self.scale}")
        if self.window is not None and (
            isinstance(self.window, bool) or self.window != int(self.window) or self.window < 1
        ):
            raise OperatorError(
                f"Spec: window must be a number of keys, 1 or more, got {self.window!r}; None: no window"
            )
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise OperatorError(f"Spec: softcap must be positive and finite, got {self.softcap}; None: no cap")
        for name in ("alibi_slopes", "sinks"):
            values: Any = getattr(self, name)
            if values is not None:
                numbers = values.tolist() if hasattr(values, "tolist") else list(values)
                finite = all(isinstance(x, (int, float)) and not math.isnan(x) and x != math.inf for x in numbers)
                if not numbers or not finite:
                    raise OperatorError(f"Spec: {name} must be one number per head, got {numbers}")
                object.__setattr__(self, name, tuple(float(x) for x in numbers))

    def __repr__(self) -> str:
        chosen = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Spec({', '.join(f'{name}={value!r}' for name, value in chosen)})"

    @property
    def slopes(self) -> tuple[float, ...] | None:
        """`alibi_slopes`, as the tuple that they have become."""
        return cast("tuple[float, ...] | None", self.alibi_slopes)

    @property
    def needs_positions(self) -> bool:
        """Whether the positions of queries and keys matter."""
        return self.causal or self.window is not None or self.alibi_slopes is not None

    def scale_for(self, head_dim: int) -> float:
        """Return the factor on q.k for this head dim."""
        return 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale


PLAIN = Spec()
"""All queries see all keys."""
