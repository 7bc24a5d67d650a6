"""Sinks on a GPU: `attention.partial.add_sinks`, step by step, with nothing read back."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def add_sinks_there(out: torch.Tensor, lse: torch.Tensor, sinks: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_sinks` of out [batch, heads, q_len, dim] and lse [batch, heads, q_len] in the memory of a GPU."""
    found = _kept(lse.device, sinks) if isinstance(sinks, tuple) else _sinks_on(lse.device, sinks)
    wide = torch.logaddexp(lse.double(), found)
    weights = torch.exp(lse.double() - wide.masked_fill(wide == -torch.inf, 0.0))[..., None]
    merged = torch.where(weights == 0, 0.0, weights * out)  # an operand of weight 0 may hold NaN
    return merged.to(out.dtype), wide.to(lse.dtype)


@cache
def _kept(device: torch.device, sinks: tuple[float, ...]) -> torch.Tensor:
    """Those of a Spec; kept, so that a step copies nothing from host memory."""
    return _sinks_on(device, sinks)


def _sinks_on(device: torch.device, sinks: Any) -> torch.Tensor:
    """float64 [heads, 1]."""
    return torch.as_tensor(sinks, dtype=torch.float64, device=device)[:, None]
