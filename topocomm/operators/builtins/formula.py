"""A formula: how elementwise operators combine two values, by plain arithmetic on arrays, scalars or tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.operators.tensors import is_tensor

Dtypes = tuple[np.dtype[Any], ...]


@dataclass(frozen=True)
class Formula:
    """How the values of some dtypes are combined.

    Attributes:
        name: With `version`, what tells its results from those of another formula.
        function: The formula, of parts.
        version: Counts changes of what it computes.
        wide: Whether floats are computed with in float64.
        ufunc: NumPy's own function that does the same to arrays of one field.
        tiles: The name in `kernels/gpu_formulas.py` of the function that does the same to tiles.
    """

    name: str
    function: Callable[..., Any]
    version: int = 1
    wide: bool = False
    ufunc: np.ufunc | None = None
    tiles: str | None = None


def select(condition: Any, left: Any, right: Any) -> Any:
    """`left` where the condition holds, `right` elsewhere."""
    if is_tensor(condition):
        import torch

        return torch.where(condition, left, right)
    return np.where(condition, left, right)
