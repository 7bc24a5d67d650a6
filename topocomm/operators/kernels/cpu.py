"""Kernels of the built-in operators on CPUs: C functions `void fold(int64_t *task)` of `topocomm.native`.

They round as `combine` does. No fast-math and no fused multiply-add anywhere: two builds would round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from topocomm.operators.dtypes import kind
from topocomm.operators.operator import Kernel
from topocomm.operators.tensors import BFLOAT16


def compiled_kernel(operator: str, version: int, dtypes: Sequence[np.dtype[Any]]) -> Kernel | None:
    """Return the kernel of a built-in operator; None without the compiled part, or where it has no such fold.

    `operator` names the fold in C, as "sum"; `version` counts changes of what it computes.
    """
    try:
        from topocomm.native._native import fold_address
    except ImportError:  # the compiled part is optional
        return None
    codes = ["f2b" if dtype == BFLOAT16 else f"{kind(dtype)}{dtype.itemsize}" for dtype in dtypes]
    address = fold_address(operator, ",".join(codes))
    return Kernel(f"c.{operator}/{version}", compiled=address) if address else None
