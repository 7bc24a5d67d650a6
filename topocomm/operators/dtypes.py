"""Dtypes that the built-in operators take, and the precision in which they compute."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import ml_dtypes
import numpy as np

from topocomm.errors import OperatorError
from topocomm.operators.layout import Layout
from topocomm.operators.tensors import BFLOAT16

INTEGERS, FLOATS = "iu", "f"
NAMES = {"b": "bool", "iu": "integers", "f": "floats", "c": "complex numbers"}
WIDEST_BYTES = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}


def kind(dtype: np.dtype[Any]) -> str:
    """Return NumPy's kind of a dtype, b i u f c, bfloat16 being a float; "" for dtypes without arithmetic here.

    Not computed with: other byte orders than the machine's, long double, and everything that is no number.
    """
    if dtype == BFLOAT16:
        return "f"
    return dtype.kind if dtype.isnative and dtype.itemsize <= WIDEST_BYTES.get(dtype.kind, 0) else ""


def computed(dtype: np.dtype[Any], wide: bool) -> np.dtype[Any]:
    """Return the dtype of arithmetic on a stored one: float32 for 16-bit floats; if `wide`, float64 for all floats."""
    if kind(dtype) != FLOATS:
        return dtype
    return np.dtype(np.float64) if wide else np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return -inf, or the least value of an integer or bool dtype."""
    if kind(dtype) == "b":
        return False
    return dtype.type(-np.inf) if kind(dtype) == FLOATS else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """Return +inf, or the greatest value of an integer or bool dtype."""
    if kind(dtype) == "b":
        return True
    return dtype.type(np.inf) if kind(dtype) == FLOATS else np.iinfo(dtype).max


def limits(dtype: np.dtype[Any]) -> Any:
    """Return `numpy.finfo` of a float dtype, bfloat16 included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def whole(function: str, argument: str, value: Any) -> int:
    """Return an argument that must be a whole number of at least 1.

    Raises:
        OperatorError: It is not.
    """
    try:
        if index(value) >= 1:
            return index(value)
    except TypeError:
        raise OperatorError(f"{function}: {argument} must be a whole number, 1 or more, got {value!r}") from None
    raise OperatorError(f"{function}: {argument} must be 1 or more, got {value}")


def only(*kinds: str, alike: tuple[str, ...] = (), remedy: str = "convert it first") -> Callable[[Layout], str | None]:
    """Return a check for `Operator.refuses`: fields of open dtype have these kinds, and one dtype.

    Args:
        kinds: Of b, iu, f, c.
        alike: The fields to be checked; all if empty.
        remedy: What to do with numbers of another kind.
    """
    taken = " and ".join([", ".join(NAMES[k] for k in kinds[:-1]), NAMES[kinds[-1]]]) if kinds[1:] else NAMES[kinds[0]]

    def refuses(layout: Layout) -> str | None:
        fields = [f for f in layout.fields if not alike or f.name in alike]
        for f in fields:
            if kind(f.dtype) not in set("".join(kinds)):
                what = remedy if kind(f.dtype) else "convert it first"
                shown = f"{f.dtype}" if f.dtype.isnative else f"{f.dtype.newbyteorder('=')} in another byte order"
                where = f" in field {f.name!r}" if len(layout.fields) > 1 else ""
                return f"takes {taken}, got {shown}{where}; {what}"
            if f.dtype != fields[0].dtype:
                return (
                    f"takes one dtype, got {fields[0].dtype} in field {fields[0].name!r} and {f.dtype} "
                    f"in field {f.name!r}; convert one of them"
                )
        return None

    return refuses
