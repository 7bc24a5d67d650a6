"""LOGSUMEXP: the merge of attention partials as a reduction operator.

For partials (o1, l1) and (o2, l2) over disjoint keys, with m = max(l1, l2) and w_i = exp(l_i - m):
o = (w1 o1 + w2 o2) / (w1 + w2), l = m + ln(w1 + w2): attention over the union of the keys. It is associative
and commutative, and its identity is the empty partial (0, -inf): merging with an empty partial returns the
other operand bit for bit. An operand of weight 0 is ignored, whatever it holds in `out`, NaN too. A lse of NaN or +inf,
with which some kernels mark empty rows, gives NaN.
Source: Shyam et al., "Tree Attention" (2024), section 5 with its algorithm 3, in the normalised form.

Weights are computed in float64 from the float32 lse and rounded once. Each merge rounds lse and out once more, by half
a unit in the last place at most: a tree of P partials errs by log2 P of these, a chain of n merges by up to n / 2 units
(lse of 10,000 equal partials, one after the other: 5 units where each lse is 0, 121 where it is 300).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm import Field, Kernel, Operator, TritonCombine
from topocomm.extend import BoundShares, SumLowering, all_exact, functions, weigh, wide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topocomm import Layout

MOST = 2.0**100
"""Sums of weights beyond have inverses with few digits in float32."""
OUT = "out"
LSE = "lse"


def _combine(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(left[LSE], np.ndarray):
        return _combine_tensors(left, right)
    left_empty, right_empty = left[LSE] == -np.inf, right[LSE] == -np.inf
    narrow = [np.where(side[LSE] == np.inf, np.float32(np.nan), side[LSE]) for side in (left, right)]
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # what empty rows hold is dropped below
        left_lse, right_lse = narrow[0].astype(np.float64), narrow[1].astype(np.float64)
        lighter = np.exp(-np.abs(left_lse - right_lse))
        total = 1.0 + lighter
        high, low = (1.0 / total).astype(np.float32), (lighter / total).astype(np.float32)
        left_is_high = left_lse >= right_lse
        lse = (np.maximum(left_lse, right_lse) + np.log(total)).astype(np.float32)
        left_weight, right_weight = np.where(left_is_high, high, low), np.where(left_is_high, low, high)
        out = left_weight[..., None] * left[OUT] + right_weight[..., None] * right[OUT]
    sides = (left_empty, left_weight, narrow[1], right), (right_empty, right_weight, narrow[0], left)
    for empty, weight, other_lse, other in sides:
        np.copyto(lse, other_lse, where=empty)
        np.copyto(out, other[OUT], where=(empty | (weight == 0))[..., None])
    np.copyto(out, np.float32(0), where=(left_empty & right_empty)[..., None])
    return {OUT: out, LSE: lse}


def _combine_tensors(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """The same step by step on torch tensors, wherever these are."""
    import torch

    left_lse, right_lse = (torch.where(side[LSE] == torch.inf, torch.nan, side[LSE]) for side in (left, right))
    left_empty, right_empty = left_lse == -torch.inf, right_lse == -torch.inf
    left_wide, right_wide = left_lse.double(), right_lse.double()
    lighter = torch.exp(-torch.abs(left_wide - right_wide))
    total = 1.0 + lighter
    high, low = (1.0 / total).float(), (lighter / total).float()
    left_is_high = left_wide >= right_wide
    lse = (torch.maximum(left_wide, right_wide) + torch.log(total)).float()
    left_weight, right_weight = torch.where(left_is_high, high, low), torch.where(left_is_high, low, high)
    out = left_weight[..., None] * left[OUT] + right_weight[..., None] * right[OUT]
    sides = (left_empty, left_weight, right_lse, right), (right_empty, right_weight, left_lse, left)
    for empty, weight, other_lse, other in sides:
        lse = torch.where(empty, other_lse, lse)
        out = torch.where((empty | (weight == 0))[..., None], other[OUT], out)
    return {OUT: torch.where((left_empty & right_empty)[..., None], 0.0, out), LSE: lse}


@cache
def _fused() -> Kernel | None:
    try:
        from attention.kernels.cpu_merge import COMPILED, VERSION
    except ImportError:  # the compiled part is optional; without it `combine` runs
        return None
    return Kernel(VERSION, compiled=COMPILED)


def _triton(layout: Layout) -> TritonCombine:
    from attention.gpu.gpu_merge import merge

    return TritonCombine("triton.logsumexp/1", merge)


def _sample(rng: np.random.Generator, layout: Layout) -> dict[str, Any]:
    """Partials, one in ten of them empty: (0, -inf)."""
    shapes = {f.name: (*layout.leading, *f.row_shape) for f in layout.fields}
    out, lse = (rng.normal(0, spread, shapes[name]).astype(np.float32) for name, spread in ((OUT, 1), (LSE, 20)))
    empty = rng.random(lse.shape) < 1 / 10
    return {OUT: np.where(empty[..., None], np.float32(0), out), LSE: np.where(empty, np.float32(-np.inf), lse)}


@cache
def _native() -> Any:
    try:
        from attention.kernels import _native as module
    except ImportError:
        return None
    return module


def _encode(value: Mapping[str, Any], reference: Any, ranks: int, sums: Mapping[str, Any]) -> None:
    """What a rank adds: its weights relative to the reference, and out times these; see docs/concepts/sums.md."""
    out, xp = value[OUT], functions(value[OUT])
    largest = wide(xp.amax(xp.abs(out), -1)) if out.shape[-1] else 0.0
    weights = weigh(value[LSE], reference, ranks, largest)
    for name, column in zip(SUM_COLUMNS, weights, strict=True):
        sums[name][...] = column
    light = weights.present == 1  # below 2^-96: a float32 may have few digits of it, or none
    weight = xp.where(light, weights.weight, wide(sums["weight"]))[:, None]
    with np.errstate(all="ignore"):  # what rows of weight 0 hold is dropped
        sums[OUT][...] = xp.where(weight == 0, 0.0, wide(out) * weight)


def _exact(sums: Mapping[str, Any]) -> Any:
    return all_exact(*(sums[name] for name in SUM_COLUMNS[1:]))


def _decode(sums: Mapping[str, Any], reference: Any, result: Mapping[str, Any]) -> None:
    xp, total = functions(sums[OUT]), sums["weight"]
    with np.errstate(all="ignore"):  # of sums that are not exact the result is not used
        divisor = xp.where(total == 0, 1.0, total)[:, None]
        result[OUT][...] = xp.where(divisor > MOST, sums[OUT] / divisor, sums[OUT] * (1 / divisor))
        result[LSE][...] = xp.where(total == 0, -xp.inf, reference + xp.log(wide(total)))


def _is_plain(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.aligned


def _bind(
    value: Mapping[str, Any], ranks: int, sums: Mapping[str, Any], result: Mapping[str, Any] | None
) -> BoundShares | None:
    """The same, compiled, for NumPy arrays that the compiled part can have as they lie."""
    native = _native()
    arrays = [*value.values(), *(() if result is None else result.values())]
    if native is None or not all(_is_plain(array) for array in arrays):
        return None
    results = (None, None) if result is None else (result[OUT], result[LSE])
    columns = (sums[name] for name in SUM_COLUMNS)
    return BoundShares(*native.bind_shares(value[OUT], value[LSE], sums[OUT], *columns, *results, ranks))


SUM_COLUMNS = ("weight", "lost", "present", "product")
_LOWERING = SumLowering(
    "logsumexp/1",
    (Field(OUT, ("*rows", "dim"), np.float32), *(Field(name, ("*rows",), np.float32) for name in SUM_COLUMNS)),
    _encode,
    _exact,
    _decode,
    bind=_bind,
)

LOGSUMEXP = Operator(
    "attention.logsumexp",
    fields=(Field(OUT, ("*rows", "dim"), np.float32), Field(LSE, ("*rows",), np.float32)),
    combine=_combine,
    identity={OUT: 0.0, LSE: -np.inf},
    commutative=True,
    kernel=lambda layout: _fused(),  # one for every dim; the dtypes are fixed
    triton=_triton,
    default_dims={"dim": 128},
    sample=_sample,
    lower_to_sum=lambda layout: _LOWERING,
)
"""Merge of partials: fields `out` float32 [*rows, dim] and `lse` float32 [*rows] (natural logarithm)."""
