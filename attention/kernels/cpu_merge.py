"""The merge of partials in C: an n-way left fold over packed chunks; see `merge_fold.c`.

Importing it raises ImportError where the compiled part is missing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention.kernels._native import merge_fold_address

VERSION = "c.logsumexp/1"
COMPILED: int = merge_fold_address()
"""The fold as a C function, for `topocomm.Kernel`."""
HEAD = 4
"""Words of a task before its addresses: rows, operands, dim, 1."""

_fold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(COMPILED)


def bind(chunks: Sequence[tuple[Any, Any]]) -> Callable[[Mapping[str, Any]], None]:
    """A function that folds `chunks` left to right into the arrays out [rows, dim] and lse [rows] given to it.

    Args:
        chunks: (out [rows, dim], lse [rows]), float32, C-contiguous, one or more. The result may go to the first
            or, of two, to either.
    """
    rows, dim = chunks[0][0].shape
    addresses = [view.ctypes.data for chunk in chunks for view in chunk]
    task = np.array([rows, len(chunks), dim, 1, 0, 0, *addresses], np.int64)
    at = task.ctypes.data

    def fold(target: Mapping[str, Any], _alive: Any = chunks) -> None:
        task[HEAD], task[HEAD + 1] = target["out"].ctypes.data, target["lse"].ctypes.data
        _fold(at)

    return fold
