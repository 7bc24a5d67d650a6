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
    """Formula that combines values of some dtypes.

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


LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts; the high one has 21 trailing zero bits, so its product with a small integer is exact (fdlibm)."""
ROUNDING = 1.5 * 2.0**52
"""Constant whose addition rounds to an integer, in the low bits of the sum."""
LEAST = -708.0
"""Argument below which exp, under 2^-1021, counts as 0."""
FACTORIALS = (479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1)
EXPONENTIAL = tuple(1.0 / number for number in (6227020800, *FACTORIALS))
"""The Taylor series of e^x to x^13, highest power first: 1e-17 for |x| <= ln(2)/2."""
INVERSE_TANH = tuple(1.0 / number for number in range(33, 0, -2))
"""artanh(x)/x in x^2, highest power first: 2e-18 for |x| <= 1/3."""
