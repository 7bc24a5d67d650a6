"""Differences between arrays, and their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.operators.dtypes import kind

LONGEST = 160
"""Limit of characters of an array in a counterexample."""


def rounded(dtype: np.dtype[Any]) -> bool:
    """Return whether arithmetic of a dtype rounds."""
    return kind(dtype) in ("f", "c")


def real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of complex numbers, else the dtype itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if kind(dtype) == "c" else dtype


def wide(array: NDArray[Any]) -> NDArray[Any]:
    """Widen to float64 or complex128."""
    return array.astype(np.complex128 if kind(array.dtype) == "c" else np.float64)


def differs(one: NDArray[Any], other: NDArray[Any], *, zeros: bool = True) -> NDArray[np.bool_]:
    """Return where two arrays differ; all NaN are equal; with `zeros`, +0 and -0 differ."""
    if not rounded(one.dtype):
        return np.asarray(one != other)
    if kind(one.dtype) == "c":
        return differs(one.real, other.real, zeros=zeros) | differs(one.imag, other.imag, zeros=zeros)
    left, right = wide(one), wide(other)
    unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
    return np.asarray(unequal | (zeros & (left == right) & (np.signbit(left) != np.signbit(right))))


def first_row(bad: NDArray[np.bool_], rows: bool) -> int | None:
    """Return the first row with a bad element; None for a value without rows."""
    return int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0]) if rows else None


def widest_difference(
    one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]], row: int | None
) -> tuple[str, tuple[int, ...]]:
    """Return the field, and the place in its row, in which two values differ most by their size; they do differ."""
    widest: tuple[float, str, tuple[int, ...]] = (-1.0, next(iter(one)), ())
    for name in one:
        left, right = (np.asarray(value[name] if row is None else value[name][row]) for value in (one, other))
        apart = differs(left, right).astype(np.float64)
        if rounded(left.dtype):
            a, b = wide(left), wide(right)
            with np.errstate(all="ignore"):
                size = np.nan_to_num(np.abs(a - b) / np.maximum(np.abs(a), np.abs(b)), nan=np.inf)
            apart = np.where(apart > 0, size, 0.0)
        place = np.unravel_index(int(apart.argmax()), apart.shape) if apart.size else ()
        if apart.size and apart[place] > widest[0]:
            widest = float(apart[place]), name, tuple(int(i) for i in place)
    return widest[1:]


def show(array: NDArray[Any], row: int | None) -> str:
    """Format a row of an array, or all of it, with a limit of length."""
    text = str(np.asarray(array[row] if row is not None else array).tolist())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
