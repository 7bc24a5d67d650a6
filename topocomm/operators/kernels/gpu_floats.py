"""In what precision tiles are computed with, as `dtypes.computed` says, and how they are rounded to what is stored."""

# mypy: ignore-errors
# ruff: noqa: SIM300
from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter cuts float32 off where GPUs round it to bfloat16, so there the rounding is spelled out."""


@triton.jit
def computed(x):
    """Floats of 16 bits as float32; everything else as it is."""
    made = x
    if x.dtype == tl.float16:
        made = x.to(tl.float32)
    elif x.dtype == tl.bfloat16:
        if INTERPRETED:
            made = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        else:
            made = x.to(tl.float32)
    return made


@triton.jit
def wide(x):
    """As float64."""
    return computed(x).to(tl.float64)


@triton.jit
def stored(x, DTYPE: tl.constexpr):
    """Rounded to DTYPE, to nearest, ties to even; from float64 to 16 bits by way of float32."""
    made = x
    if x.dtype != DTYPE:
        if DTYPE == tl.bfloat16:
            single = computed(x).to(tl.float32)
            if INTERPRETED:
                bits = single.to(tl.uint32, bitcast=True)
                carried = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
                made = tl.where(single != single, 0x7FC0, carried).to(tl.uint16).to(tl.bfloat16, bitcast=True)
            else:
                made = single.to(tl.bfloat16)
        elif DTYPE == tl.float16:
            made = computed(x).to(tl.float32).to(tl.float16)
        else:
            made = computed(x).to(DTYPE)
    return made
