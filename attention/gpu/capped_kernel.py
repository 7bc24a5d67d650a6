"""Soft caps of scores, as both attention kernels apply them."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def capped(scores, softcap):
    """Scores s become softcap tanh(s / softcap) within 5e-7 of it: small ones keep their digits under a high cap.

    1 - 2 / (e^2x + 1), which is -1 and 1 in the limits; below 5/8, where that cancels, the polynomial of the Cephes
    library (tanhf).
    """
    x = scores * (1.0 / softcap)
    square = x * x
    series = square * -5.70498872745e-3 + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = scores * (series * square + 1.0)
    far = softcap * (1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2_E)) + 1.0))
    return tl.where(square < 0.390625, near, far)  # NaN: far, which is NaN
