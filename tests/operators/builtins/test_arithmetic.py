"""Sums, products and bitwise operators against exact arithmetic."""

import math

import numpy as np
import pytest

from tests.operators.packed import BFLOAT16, FLOATS, INTEGERS, fold, layout_of
from topocomm import (
    BAND,
    BOR,
    BXOR,
    MAX,
    MIN,
    PROD,
    SUM,
)

UNIT = {np.dtype("f8"): 2.0**-53, np.dtype("f4"): 2.0**-24, np.dtype("f2"): 2.0**-11, BFLOAT16: 2.0**-8}
SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 17, 1)]
ids = {"ids": str}


def ordinary(rng, dtype, shape):
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def value_fold(operator, arrays, **names):
    layout = layout_of(operator, arrays[0].dtype, arrays[0].shape)
    return fold(operator, layout, [{"value": array} for array in arrays], **names)["value"]


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_products_of_floats(dtype, shape):
    rng = np.random.default_rng(1)
    arrays = [ordinary(rng, dtype, shape) for _ in range(4)]
    wide = [array.astype(np.float64) for array in arrays]
    size = sum(np.abs(array) for array in wide)
    assert np.all(np.abs(value_fold(SUM, arrays).astype(np.float64) - sum(wide)) <= 4 * UNIT[dtype] * size)
    exact = np.prod(wide, axis=0)
    assert np.all(np.abs(value_fold(PROD, arrays).astype(np.float64) - exact) <= 4 * UNIT[dtype] * np.abs(exact) + 1e-7)


@pytest.mark.parametrize("dtype", INTEGERS, **ids)
def test_integers_wrap(dtype):
    rng = np.random.default_rng(2)
    limits = np.iinfo(dtype)
    arrays = [rng.integers(limits.min, limits.max, 31, dtype, endpoint=True) for _ in range(3)]
    numbers = [[int(x) for x in array] for array in arrays]
    span = 1 << limits.bits
    for operator, exact in ((SUM, sum), (PROD, math.prod)):
        made = value_fold(operator, arrays)
        assert [int(x) % span for x in made] == [exact(triple) % span for triple in zip(*numbers, strict=True)]
    for operator, rule in ((BAND, np.bitwise_and), (BOR, np.bitwise_or), (BXOR, np.bitwise_xor)):
        np.testing.assert_array_equal(value_fold(operator, arrays), rule(rule(arrays[0], arrays[1]), arrays[2]))
    np.testing.assert_array_equal(value_fold(MAX, arrays), np.max(arrays, axis=0))
    np.testing.assert_array_equal(value_fold(MIN, arrays), np.min(arrays, axis=0))


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("c16")], **ids)
def test_complex_sums_and_products(dtype):
    rng = np.random.default_rng(3)
    arrays = [(rng.normal(size=9) + 1j * rng.normal(size=9)).astype(dtype) for _ in range(3)]
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(value_fold(SUM, arrays), np.sum(arrays, axis=0), rtol=8 * eps, atol=8 * eps)
    np.testing.assert_allclose(value_fold(PROD, arrays), np.prod(arrays, axis=0), rtol=16 * eps, atol=16 * eps)
