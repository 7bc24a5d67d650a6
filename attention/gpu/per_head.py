"""ALiBi slopes and sinks, one number per head, in the memory of a GPU; nothing is read back."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def slopes_on(device: torch.device, slopes: tuple[float, ...] | None) -> torch.Tensor | None:
    """Return those of a Spec as float32 [heads]; cached: a call copies nothing from host memory, also in graphs."""
    return None if slopes is None else torch.tensor(slopes, dtype=torch.float32, device=device)


def add_sinks_on_gpu(out: torch.Tensor, lse: torch.Tensor, sinks: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention.add_sinks` of out [batch, heads, q_len, dim] and lse [batch, heads, q_len] in the memory of a GPU."""
    logits = _cached_sinks(lse.device, sinks) if isinstance(sinks, tuple) else _sinks_on(lse.device, sinks)
    wide = torch.logaddexp(lse.double(), logits)
    weights = torch.exp(lse.double() - wide.masked_fill(wide == -torch.inf, 0.0))[..., None]
    merged = torch.where(weights == 0, 0.0, weights * out)  # an operand of weight 0 may hold NaN
    return merged.to(out.dtype), wide.to(lse.dtype)


def _sinks_on(device: torch.device, sinks: Any) -> torch.Tensor:
    """Sinks as float64 [heads, 1]."""
    return torch.as_tensor(sinks, dtype=torch.float64, device=device)[:, None]


_cached_sinks = cache(_sinks_on)
"""Those of a Spec: a step copies nothing from host memory."""
