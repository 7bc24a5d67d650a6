"""The merge of partials on torch tensors, wherever these are: step by step as `logsumexp.py` has it for arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

OUT = "out"
LSE = "lse"
EMPTY = float("-inf")


def combine_tensors(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Return the partial over the keys of both, on one device.

    Each is `out` float32 [*rows, dim] and `lse` float32 [*rows], natural logarithm; an empty one is (anything, -inf).
    """
    left_lse, right_lse = left[LSE], right[LSE]
    left_empty, right_empty = left_lse == EMPTY, right_lse == EMPTY
    left_wide, right_wide = left_lse.double(), right_lse.double()
    lighter = torch.exp(-torch.abs(left_wide - right_wide))
    total = 1.0 + lighter
    high, low = (1.0 / total).float(), (lighter / total).float()
    left_is_high = left_wide >= right_wide
    lse = (torch.maximum(left_wide, right_wide) + torch.log(total)).float()
    left_weight, right_weight = torch.where(left_is_high, high, low), torch.where(left_is_high, low, high)
    out = left_weight[..., None] * left[OUT] + right_weight[..., None] * right[OUT]
    for empty, weight, other in ((left_empty, left_weight, right), (right_empty, right_weight, left)):
        lse = torch.where(empty, other[LSE], lse)
        out = torch.where((empty | (weight == 0))[..., None], other[OUT], out)
    return {OUT: torch.where((left_empty & right_empty)[..., None], 0.0, out), LSE: lse}
