"""Built-in operators. Each takes one array of any shape and numeric dtype; every element is a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from topocomm.operators.operator import Arrays, Buffer, Field, Fold, Kernel, Layout, Operator

VALUE = "value"


def _elementwise(name: str, ufunc: np.ufunc, identity: Callable[[np.dtype[Any]], Any]) -> Operator:
    def combine(left: Arrays, right: Arrays) -> Arrays:
        return {VALUE: ufunc(left[VALUE], right[VALUE])}

    def bind(layout: Layout, buffer: Buffer, rows: int, offsets: Sequence[int]) -> Fold:
        first, *rest = (layout.views(buffer, offset, rows)[VALUE] for offset in offsets)

        def fold(target: Arrays) -> None:
            left = first
            for right in rest:
                left = ufunc(left, right, out=target[VALUE])
            if not rest:
                target[VALUE][...] = first

        return fold

    def identities(dtypes: Mapping[str, np.dtype[Any]]) -> Mapping[str, Any]:
        return {VALUE: identity(dtypes[VALUE])}

    kernel = Kernel(f"numpy.{ufunc.__name__}", bind)
    return Operator(name, (Field(VALUE),), combine, identities, commutative=True, kernel=lambda: kernel)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.type(-np.inf)


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else dtype.type(np.inf)


SUM = _elementwise("sum", np.add, lambda dtype: dtype.type(0))
"""Elementwise a + b; identity 0."""

MAX = _elementwise("max", np.maximum, _lowest)
"""Elementwise maximum, NaN wins; identity -inf, for integers the least value."""

MIN = _elementwise("min", np.minimum, _highest)
"""Elementwise minimum, NaN wins; identity +inf, for integers the greatest value."""
