"""Affine maps, one after the other, against the recurrence that they stand for."""

import numpy as np
import pytest

from tests.operators.packed import FLOATS, fold, layout_of
from topocomm import (
    AFFINE,
    AFFINE_MATRIX,
)

ids = {"ids": str}


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i8"), np.dtype("c16")], **ids)
def test_affine_scans_a_recurrence(dtype):
    rng = np.random.default_rng(8)
    steps = [{"a": rng.integers(-1, 3, 5).astype(dtype), "b": rng.integers(-2, 3, 5).astype(dtype)} for _ in range(4)]
    h = start = np.arange(5).astype(dtype)
    for step in steps:
        h = step["a"] * h + step["b"]
    whole = fold(AFFINE, layout_of(AFFINE, dtype, (5,)), steps)
    np.testing.assert_array_equal(whole["a"] * start + whole["b"], h)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_affine_maps_of_vectors(dtype):
    rng = np.random.default_rng(9)
    operator = AFFINE_MATRIX(3)
    steps = [{"a": rng.integers(-1, 2, (2, 3, 3)).astype(dtype), "b": rng.integers(-2, 3, (2, 3)).astype(dtype)}]
    steps += [{name: array[::-1].copy() for name, array in steps[0].items()} for _ in range(2)]
    h = start = np.arange(6).reshape(2, 3).astype(np.float64)
    for step in steps:
        h = np.einsum("nij,nj->ni", step["a"].astype(float), h) + step["b"].astype(float)
    whole = fold(operator, layout_of(operator, dtype, (2,)), steps)
    np.testing.assert_array_equal(
        np.einsum("nij,nj->ni", whole["a"].astype(float), start) + whole["b"].astype(float), h
    )
