"""Folds of an operator's kernel and of its Triton combine, to compare them with `combine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.operators.layout import ALIGNMENT_BYTES, Layout
from topocomm.operators.operator import Operator, TritonCombine

Values = Mapping[str, NDArray[Any]]


def trial_of(operator: Operator, layout: Layout) -> tuple[TritonCombine, str] | None:
    """Return the operator's Triton combine for a layout, and the device on which it can be tried.

    None without one, without a GPU where Triton's interpreter is off, and where torch or triton is missing.
    """
    if operator.triton is None:
        return None
    try:
        import torch

        from topocomm.operators.kernels import gpu
        from topocomm.operators.kernels.gpu_tiles import INTERPRETED
    except ImportError:  # both are optional
        return None
    if not INTERPRETED.value and not torch.cuda.is_available():
        return None
    place = "cpu" if INTERPRETED.value else "cuda"
    combine = gpu.usable(operator, layout, place)
    return None if combine is None else (combine, place)


def folded(operator: Operator, layout: Layout, values: Sequence[Values], place: str = "") -> dict[str, NDArray[Any]]:
    """Return the left fold of values, arrays [*rows, *dims] by field, by the operator's kernel or Triton combine.

    `place` is where the Triton combine runs: "cuda", or "cpu" for Triton's interpreter.
    """
    rows = layout.rows
    size = -(-layout.packed_bytes(rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    buffer = np.zeros((len(values) + 1) * size, np.uint8)
    for slot, value in enumerate(values):
        for name, view in layout.views(buffer, slot * size, rows).items():
            view[...] = value[name].reshape(view.shape)
    offsets, target = [slot * size for slot in range(len(values))], len(values) * size
    if place:
        import torch

        from topocomm.operators.kernels import gpu

        memory = torch.from_numpy(buffer).to(place)
        gpu.bind_device_folds(operator, layout, memory, [(rows, offsets, target)])()
        buffer = memory.cpu().numpy()
    else:
        operator.bind_fold(layout, buffer, rows, offsets)(layout.views(buffer, target, rows))
    return {name: view.reshape(values[0][name].shape) for name, view in layout.views(buffer, target, rows).items()}
