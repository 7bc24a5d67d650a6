"""ALiBi slopes in the memory of a GPU."""

from __future__ import annotations

from functools import cache

import torch


@cache
def slopes_on(device: torch.device, slopes: tuple[float, ...] | None) -> torch.Tensor | None:
    """Those of a Spec as float32 [heads]; kept, so that a call copies nothing from host memory, also in graphs."""
    return None if slopes is None else torch.tensor(slopes, dtype=torch.float32, device=device)
