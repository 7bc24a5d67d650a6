"""Where two arrays differ, and how that is told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.operators.dtypes import kind

LONGEST = 160
"""Characters of an array in a counterexample."""


def rounded(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are rounded."""
    return kind(dtype) in ("f", "c")


def real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of complex numbers; of others the same."""
    return np.dtype(f"f{dtype.itemsize // 2}") if kind(dtype) == "c" else dtype


def wide(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in float64 or complex128."""
    return array.astype(np.complex128 if kind(array.dtype) == "c" else np.float64)


def differs(one: NDArray[Any], other: NDArray[Any], *, zeros: bool = True) -> NDArray[np.bool_]:
    """Where two arrays differ, any NaN being equal to any other; with `zeros`, +0 and -0 differ."""
    if not rounded(one.dtype):
        return np.asarray(one != other)
    if kind(one.dtype) == "c":
        return differs(one.real, other.real, zeros=zeros) | differs(one.imag, other.imag, zeros=zeros)
    left, right = wide(one), wide(other)
    unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
    found: Any = unequal | (zeros & (left == right) & (np.signbit(left) != np.signbit(right)))
    return np.asarray(found)


def first_row(bad: NDArray[np.bool_], rows: bool) -> int | None:
    """The first row of which anything is bad; None for a value without rows."""
    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0]) if rows else None


def show(array: NDArray[Any], row: int | None) -> str:
    """A row of an array as text, or all of it, cut where it is long."""
    text = str(np.asarray(array[row] if row is not None else array).tolist())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
