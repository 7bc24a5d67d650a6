"""SUM, PROD and the bitwise operators. Each takes one array of any shape; every element is a row."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from topocomm.operators.builtins.elementwise import elementwise
from topocomm.operators.builtins.formula import Formula
from topocomm.operators.dtypes import kind, only
from topocomm.operators.layout import Field
from topocomm.operators.operator import Operator

VALUE = "value"


def _add_complex(left: Any, left_i: Any, right: Any, right_i: Any) -> tuple[Any, Any]:
    return left + right, left_i + right_i


def _multiply_complex(left: Any, left_i: Any, right: Any, right_i: Any) -> tuple[Any, Any]:
    """Return real and imaginary part of a product, with six roundings; libraries fuse some of them."""
    return left * right - left_i * right_i, left * right_i + left_i * right


SUMS = (
    Formula("sum", operator.add, ufunc=np.add, tiles="add"),
    Formula("sum", _add_complex, ufunc=np.add, tiles="add"),
)
PRODUCTS = (
    Formula("prod", operator.mul, ufunc=np.multiply, tiles="multiply"),
    Formula("prod", _multiply_complex, tiles="multiply_complex"),
)


def _of_numbers(name: str, formulas: Sequence[Formula], identity: int) -> Operator:
    return elementwise(
        name,
        [Field(VALUE)],
        lambda dtypes: formulas[kind(dtypes[0]) == "c"],
        {VALUE: identity},
        commutative=True,
        refuses=only("iu", "f", "c", remedy="use BOR or BAND for bool"),
    )


def _bitwise(name: str, formula: Formula, identity: int) -> Operator:
    return elementwise(
        name,
        [Field(VALUE)],
        lambda dtypes: formula,
        lambda dtypes: {VALUE: np.array(identity).astype(dtypes[VALUE])},
        commutative=True,
        refuses=only("iu", "b", remedy="bits of other numbers mean nothing"),
    )


SUM = _of_numbers("sum", SUMS, 0)
"""Elementwise a + b; identity 0. Integers wrap."""

PROD = _of_numbers("prod", PRODUCTS, 1)
"""Elementwise a * b; identity 1. Integers wrap."""

BAND = _bitwise("band", Formula("band", operator.and_, ufunc=np.bitwise_and, tiles="bitwise_and"), -1)
"""Elementwise a & b of integers or bool; identity: all bits set, True."""

BOR = _bitwise("bor", Formula("bor", operator.or_, ufunc=np.bitwise_or, tiles="bitwise_or"), 0)
"""Elementwise a | b of integers or bool; identity 0, False."""

BXOR = _bitwise("bxor", Formula("bxor", operator.xor, ufunc=np.bitwise_xor, tiles="bitwise_xor"), 0)
"""Elementwise a ^ b of integers or bool; identity 0, False."""
