"""MAX, MIN and their places, ARGMAX and ARGMIN. NaN wins; -0 is below +0. Every element is a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from topocomm.operators.builtins.arithmetic import VALUE
from topocomm.operators.builtins.elementwise import elementwise
from topocomm.operators.builtins.formula import Formula, select
from topocomm.operators.dtypes import highest, kind, lowest, only
from topocomm.operators.layout import Field
from topocomm.operators.operator import Operator

INDEX = "index"
NOWHERE = np.iinfo(np.int64).max
"""The index of the identity: every element of the same value goes before it."""
Limit = Callable[[np.dtype[Any]], Any]


def _greater(left: Any, right: Any) -> Any:
    return select(left > right, left, right)


def _less(left: Any, right: Any) -> Any:
    return select(left < right, left, right)


def _maximum(left: Any, right: Any) -> Any:
    """IEEE 754-2019 maximum: NaN wins; of two zeros +0, which their sum is unless both are -0."""
    greater = select(left > right, left, right)
    same = select(left == 0, left + right, left)
    return select(left != left, left, select(left == right, same, greater))


def _minimum(left: Any, right: Any) -> Any:
    """IEEE 754-2019 minimum: NaN wins; of two zeros -0."""
    less = select(left < right, left, right)
    same = select(left == 0, -(-left - right), left)
    return select(left != left, left, select(left == right, same, less))


def _first_greatest(left: Any, left_at: Any, right: Any, right_at: Any) -> tuple[Any, Any]:
    """The greater value, NaN above all; of equal ones that of the lower index."""
    left_nan, right_nan = left != left, right != right
    same = (left == right) | (left_nan & right_nan)
    ahead = (left > right) | (left_nan & (right == right)) | (same & (left_at < right_at))
    value = select(ahead, left, right)
    twin = (left == 0) & (right == 0) & (left_at == right_at)  # of one place, zeros of two signs: +0
    return select(twin, left + right, value), select(ahead, left_at, right_at)


def _first_least(left: Any, left_at: Any, right: Any, right_at: Any) -> tuple[Any, Any]:
    """The lesser value, NaN below all; of equal ones that of the lower index."""
    left_nan, right_nan = left != left, right != right
    same = (left == right) | (left_nan & right_nan)
    ahead = (left < right) | (left_nan & (right == right)) | (same & (left_at < right_at))
    value = select(ahead, left, right)
    twin = (left == 0) & (right == 0) & (left_at == right_at)  # of one place, zeros of two signs: -0
    return select(twin, -(-left - right), value), select(ahead, left_at, right_at)


def _extreme(name: str, floats: Callable[..., Any], others: Callable[..., Any], limit: Limit) -> Operator:
    formulas = (
        Formula(name, others, tiles=others.__name__.removeprefix("_")),
        Formula(name, floats, tiles=floats.__name__.removeprefix("_")),
    )
    return elementwise(
        name,
        [Field(VALUE)],
        lambda dtypes: formulas[kind(dtypes[0]) == "f"],
        lambda dtypes: {VALUE: limit(dtypes[VALUE])},
        commutative=True,
        refuses=only("iu", "f", "b"),
    )


def _place(name: str, function: Callable[..., Any], limit: Limit) -> Operator:
    formula = Formula(name, function, tiles=function.__name__.removeprefix("_"))
    return elementwise(
        name,
        [Field(VALUE), Field(INDEX, dtype=np.int64)],
        lambda dtypes: formula,
        lambda dtypes: {VALUE: limit(dtypes[VALUE]), INDEX: NOWHERE},
        commutative=True,
        refuses=only("iu", "f", alike=(VALUE,)),
    )


MAX = _extreme("max", _maximum, _greater, lowest)
"""Elementwise maximum, NaN wins, -0 is below +0; identity -inf, for integers the least value, for bool False."""

MIN = _extreme("min", _minimum, _less, highest)
"""Elementwise minimum, NaN wins, -0 is below +0; identity +inf, for integers the greatest value, for bool True."""

ARGMAX = _place("argmax", _first_greatest, lowest)
"""The greatest `value` and its `index` (int64); of equal values, -0 and +0 among them, the one of the lower index.

As NumPy's argmax: the first NaN wins. Identity: the least value, index 2^63 - 1.
"""

ARGMIN = _place("argmin", _first_least, highest)
"""The least `value` and its `index` (int64); of equal values, -0 and +0 among them, the one of the lower index.

As NumPy's argmin: the first NaN wins. Identity: the greatest value, index 2^63 - 1.
"""
