"""AFFINE and AFFINE_MATRIX: maps x -> a x + b, one after the other. They do not commute: plans keep the rank order."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.operators.builtins.elementwise import elementwise
from topocomm.operators.builtins.formula import Formula
from topocomm.operators.dtypes import computed, kind, only, whole
from topocomm.operators.kernels.cpu import compiled_kernel
from topocomm.operators.layout import Arrays, Field, Layout
from topocomm.operators.operator import Operator, TritonCombine

A, B = "a", "b"
MOST_ON_GPU = 16
"""The largest matrices with a Triton combine."""


def _compose(left_a: Any, left_b: Any, right_a: Any, right_b: Any) -> tuple[Any, Any]:
    return right_a * left_a, right_a * left_b + right_b


def _compose_complex(
    left_a: Any, left_a_i: Any, left_b: Any, left_b_i: Any, right_a: Any, right_a_i: Any, right_b: Any, right_b_i: Any
) -> tuple[Any, Any, Any, Any]:
    a, a_i = right_a * left_a - right_a_i * left_a_i, right_a * left_a_i + right_a_i * left_a
    b, b_i = right_a * left_b - right_a_i * left_b_i, right_a * left_b_i + right_a_i * left_b
    return a, a_i, b + right_b, b_i + right_b_i


FORMULAS = (
    Formula("affine", _compose, tiles="compose"),
    Formula("affine", _compose_complex, tiles="compose_complex"),
)

AFFINE = elementwise(
    "affine",
    [Field(A), Field(B)],
    lambda dtypes: FORMULAS[kind(dtypes[0]) == "c"],
    {A: 1, B: 0},
    commutative=False,
    refuses=only("iu", "f", "c"),
)
"""The map x -> a x + b of every element: first the left one, then the right: (a' a, a' b + b'). Identity (1, 0).

A linear recurrence h_t = a_t h_{t-1} + b_t is its scan over t: the `b` of the inclusive scan is h_t from h_0 = 0, and
h_t = a h_0 + b in general. `a` and `b` have one dtype; integers wrap.
"""


def AFFINE_MATRIX(d: int) -> Operator:
    """The operator that composes maps x -> a x + b of vectors of size `d`; the same object for the same d.

    First the left map, then the right one: (a' a, a' b + b'), as AFFINE. Fields: `a` [*rows, d, d] and `b`
    [*rows, d], floats of one dtype; identity: the unit matrix and 0. Sums run over ascending indices; floats of 16
    bits are computed with in float32.

    Raises:
        OperatorError: d is no whole number, or less than 1.
    """
    return _affine_matrix(whole("AFFINE_MATRIX", "d", d))


@cache
def _affine_matrix(d: int) -> Operator:
    def refuses(layout: Layout) -> str | None:
        size = dict(layout.dims)["d"]
        return only("f")(layout) if size == d else f"takes maps of vectors of size {d}, got {size}"

    def triton(layout: Layout) -> TritonCombine | None:
        if d > MOST_ON_GPU:  # a kernel takes minutes to compile
            return None
        from topocomm.operators.kernels.gpu_formulas import compose_matrices

        return TritonCombine("triton.affine_matrix/1", compose_matrices, (d,), long=True)

    return Operator(
        f"affine_matrix({d})",
        (Field(A, ("*rows", "d", "d")), Field(B, ("*rows", "d"))),
        _compose_matrices,
        {A: np.eye(d), B: 0},
        kernel=lambda layout: compiled_kernel("affine_matrix", 1, [f.dtype for f in layout.fields]),
        default_dims={"d": d},
        refuses=refuses,
        triton=triton,
    )


def _compose_matrices(left: Arrays, right: Arrays) -> dict[str, NDArray[Any]]:
    dtype = left[A].dtype
    left_a, left_b, right_a, right_b = (
        side[f].astype(computed(dtype, False)) for side in (left, right) for f in (A, B)
    )
    with np.errstate(all="ignore"):  # overflow, NaN and infinities go as IEEE 754 says
        a = right_a[..., :, :1] * left_a[..., :1, :]
        b = right_a[..., :, 0] * left_b[..., :1]
        for at in range(1, left_b.shape[-1]):  # a library's product rounds in an order of its own
            a = a + right_a[..., :, at : at + 1] * left_a[..., at : at + 1, :]
            b = b + right_a[..., :, at] * left_b[..., at : at + 1]
        return {A: a.astype(dtype), B: (b + right_b).astype(dtype)}
