"""LOGADDEXP, and WELFORD for counts, means and variances. Computed in float64, rounded to the stored dtype once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm.operators.builtins.arithmetic import VALUE
from topocomm.operators.builtins.elementwise import elementwise
from topocomm.operators.builtins.formula import (
    EXPONENTIAL,
    INVERSE_TANH,
    LEAST,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROUNDING,
    Formula,
    select,
)
from topocomm.operators.dtypes import kind, only
from topocomm.operators.layout import Field
from topocomm.operators.sum_lowering import SumLowering, all_exact, functions, weigh, wide

if TYPE_CHECKING:
    from topocomm.operators.layout import Arrays, Layout


def _logaddexp(left: Any, right: Any) -> Any:
    """ln(e^left + e^right) = top + ln(1 + e^-apart), with our own exp and ln: a library's differ between machines."""
    top = select(left > right, left, right)
    apart = select(left == right, 0.0, -abs(left - right))  # infinities of one sign have no difference
    exponent = select(apart < LEAST, LEAST, apart)
    shifted = exponent * LOG2_E + ROUNDING
    power = shifted - ROUNDING
    rest = (exponent - power * LN2_HIGH) - power * LN2_LOW
    series = rest * EXPONENTIAL[0]
    for coefficient in EXPONENTIAL[1:-1]:
        series = (series + coefficient) * rest
    series = series + EXPONENTIAL[-1]
    exponents = np.int64(np.float64(shifted).view(np.int64) + 1023 << 52)
    scale = exponents.view(np.float64)
    lighter = select(apart < LEAST, 0.0, series * scale)
    ratio = lighter / (2.0 + lighter)  # ln(1 + x) = 2 artanh(x / (2 + x))
    square = ratio * ratio
    logarithm = square * INVERSE_TANH[0]
    for coefficient in INVERSE_TANH[1:-1]:
        logarithm = (logarithm + coefficient) * square
    return top + 2.0 * ratio * (logarithm + INVERSE_TANH[-1])


def _merge_moments(
    left_count: Any, left_mean: Any, left_m2: Any, right_count: Any, right_mean: Any, right_m2: Any
) -> tuple[Any, Any, Any]:
    """Chan, Golub, LeVeque: Updating formulae (1979), equations 2.1, from the heavier side, so that it commutes."""
    count = left_count + right_count
    left_heavy = (left_count > right_count) | ((left_count == right_count) & (left_mean >= right_mean))
    mean, other = select(left_heavy, left_mean, right_mean), select(left_heavy, right_mean, left_mean)
    heavy = select(left_heavy, left_count, right_count)
    share = select(left_heavy, right_count, left_count) / select(count == 0, count + 1, count)
    delta = other - mean
    finite = delta - delta == 0
    merged = select(finite, mean + delta * share, mean * (1.0 - share) + other * share)
    m2 = (left_m2 + right_m2) + delta * delta * (heavy * share)
    merged = select(left_count == 0, right_mean, select(right_count == 0, left_mean, merged))
    m2 = select(left_count == 0, right_m2, select(right_count == 0, left_m2, m2))
    return count, select(count == 0, 0.0, merged), select(count == 0, 0.0, m2)


LOGSUMS = Formula("logaddexp", _logaddexp, wide=True, tiles="logaddexp")
MOMENTS = Formula("welford", _merge_moments, wide=True, tiles="merge_moments")
COUNT, MEAN, M2 = "count", "mean", "m2"


def _logaddexp_as_sum(layout: Layout) -> SumLowering:
    """e^(value - reference), in float64 for float64 and else in float32."""
    dtype = "float64" if layout.fields[0].dtype == np.float64 else "float32"

    def encode(value: Arrays, reference: Any, ranks: int, sums: Arrays) -> None:
        weights = weigh(value[VALUE], reference, ranks, dtype=dtype)
        for name, column in zip(_WEIGHT_SUMS, weights, strict=False):
            sums[name][...] = column

    def decode(sums: Arrays, reference: Any, result: Arrays) -> None:
        total, xp = wide(sums["weight"]), functions(sums["weight"])
        with np.errstate(divide="ignore"):
            result[VALUE][...] = xp.where(total == 0, -xp.inf, reference + xp.log(total))

    fields = tuple(Field(name, dtype=dtype) for name in _WEIGHT_SUMS)
    return SumLowering(
        f"logaddexp/1 {dtype}", fields, encode, lambda sums: all_exact(sums["lost"], sums["present"]), decode
    )


_WEIGHT_SUMS = ("weight", "lost", "present")

LOGADDEXP = elementwise(
    "logaddexp",
    [Field(VALUE)],
    lambda dtypes: LOGSUMS,
    {VALUE: -np.inf},
    commutative=True,
    refuses=only("f"),
    lower_to_sum=_logaddexp_as_sum,
)
"""Elementwise ln(e^a + e^b) of floats; identity -inf. (-inf, -inf) is -inf, +inf with any number +inf.

Within 2 ulp of the greatest of the result and both operands; an e^-|a - b| under 2^-1021 counts as 0.
"""


def _refuse_moments(layout: Layout) -> str | None:
    reason = only("f", alike=(MEAN, M2))(layout)
    count = next(f.dtype for f in layout.fields if f.name == COUNT)
    if reason is None and kind(count) != "f" and count != np.int64:
        reason = f"takes int64 or a float in field 'count', got {count}; convert it first"
    return reason


def _sample_moments(rng: np.random.Generator, layout: Layout) -> Arrays:
    """Moments of up to 9 values around anything, empty ones among them."""
    by_name = {f.name: f.dtype for f in layout.fields}
    count = rng.integers(0, 10, layout.leading)
    mean = np.where(count > 0, rng.normal(0, 10, layout.leading), 0)
    m2 = np.where(count > 1, rng.gamma(2, 5, layout.leading), 0)
    return {name: np.asarray(x).astype(by_name[name]) for name, x in ((COUNT, count), (MEAN, mean), (M2, m2))}


WELFORD = elementwise(
    "welford",
    [Field(COUNT), Field(MEAN), Field(M2)],
    lambda dtypes: MOMENTS,
    {COUNT: 0, MEAN: 0, M2: 0},
    commutative=True,
    refuses=_refuse_moments,
    sample=_sample_moments,
)
"""Number of values `count`, their `mean`, and `m2`, the sum of squared deviations from it: variance = m2 / count.

`count` is int64, or a float (weights); `mean` and `m2` are floats of one dtype. A value of count 0 is ignored,
whatever its other fields hold; identity 0, 0, 0. A float count is exact up to 2^53 in float64, 2^24 in float32, 2^11 in
float16, 2^8 in bfloat16.
"""
