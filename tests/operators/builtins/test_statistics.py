"""LOGADDEXP and WELFORD against float64 formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.operators.packed import BFLOAT16, FLOATS, bits, fold, layout_of
from topocomm import (
    LOGADDEXP,
    WELFORD,
)

UNIT = {np.dtype("f8"): 2.0**-53, np.dtype("f4"): 2.0**-24, np.dtype("f2"): 2.0**-11, BFLOAT16: 2.0**-8}
ids = {"ids": str}


def value_fold(operator, arrays, **names):
    layout = layout_of(operator, arrays[0].dtype, arrays[0].shape)
    return fold(operator, layout, [{"value": array} for array in arrays], **names)["value"]


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_logaddexp_against_its_formula(dtype):
    rng = np.random.default_rng(4)
    a, b = ((rng.normal(size=4001) * 5).astype(dtype) for _ in range(2))
    with np.errstate(under="ignore"):
        want = np.logaddexp(a.astype(np.float64), b.astype(np.float64))
    made = value_fold(LOGADDEXP, [a, b]).astype(np.float64)
    greatest = np.maximum(np.abs(want), np.maximum(np.abs(a), np.abs(b)).astype(np.float64))
    assert np.all(np.abs(made - want) <= 4 * UNIT[dtype] * greatest)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (-np.inf, -np.inf, -np.inf),
        (np.inf, np.inf, np.inf),
        (np.inf, -np.inf, np.inf),
        (np.inf, 3, np.inf),
        (-np.inf, 2.5, 2.5),
        (0, 0, math.log(2)),
        (np.nan, 1, np.nan),
        (np.nan, -np.inf, np.nan),
    ],
)
def test_logaddexp_of_infinities_goes_by_rule(dtype, a, b, want):
    for pair in ((a, b), (b, a)):
        made = value_fold(LOGADDEXP, [np.array([x], dtype) for x in pair])
        np.testing.assert_allclose(made.astype(np.float64), [want], rtol=2 * UNIT[dtype])


def test_logaddexp_is_exact_far_below_one():
    x = np.array([1.0, 30.0, 300.0, 700.0])
    made = value_fold(LOGADDEXP, [np.zeros(4), -x])
    np.testing.assert_allclose(made, np.log1p(np.exp(-x)), rtol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS, **ids)
@pytest.mark.parametrize("count", ["int64", "own"])
def test_welford_is_mean_and_variance(dtype, count):
    rng = np.random.default_rng(6)
    parts = [rng.normal(3, 2, (size, 5)) for size in (7, 0, 1, 20)]
    values = []
    for part in parts:
        mean = part.mean(axis=0) if len(part) else np.zeros(5)
        m2 = ((part - mean) ** 2).sum(axis=0) if len(part) else np.zeros(5)
        counted = np.full(5, len(part)).astype(np.int64 if count == "int64" else dtype)
        values.append({"count": counted, "mean": mean.astype(dtype), "m2": m2.astype(dtype)})
    layout = WELFORD.layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    made = fold(WELFORD, layout, values)
    whole = np.concatenate(parts)
    assert (made["count"] == len(whole)).all()
    np.testing.assert_allclose(
        made["mean"].astype(float), whole.mean(axis=0), rtol=8 * UNIT[dtype], atol=8 * UNIT[dtype]
    )
    np.testing.assert_allclose(made["m2"].astype(float), whole.var(axis=0) * len(whole), rtol=16 * UNIT[dtype])


def test_welford_ignores_what_empty_samples_hold():
    empty = {"count": np.array([0]), "mean": np.array([np.nan]), "m2": np.array([np.inf])}
    full = {"count": np.array([3]), "mean": np.array([0.1]), "m2": np.array([0.7])}
    for pair in ((empty, full), (full, empty)):
        made = WELFORD.combine(*pair)
        assert [made[name][0] for name in ("count", "mean", "m2")] == [3, 0.1, 0.7]
    made = WELFORD.combine(empty, empty)
    assert [made[name][0] for name in ("count", "mean", "m2")] == [0, 0, 0]


def test_welford_of_equal_values_is_exact():
    one = {"count": np.array([3]), "mean": np.array([0.1]), "m2": np.array([0.0])}
    many = {"count": np.array([10**9]), "mean": np.array([0.1]), "m2": np.array([0.0])}
    made = WELFORD.combine(one, many)
    assert (made["mean"][0], made["m2"][0]) == (0.1, 0)


def test_welford_with_an_infinite_mean_is_infinite_from_either_side():
    far = {"count": np.array([5.0]), "mean": np.array([np.inf]), "m2": np.array([0.0])}
    near = {"count": np.array([2.0]), "mean": np.array([1.0]), "m2": np.array([0.0])}
    for pair in ((far, near), (near, far)):
        assert WELFORD.combine(*pair)["mean"] == [np.inf]


MOMENTS = st.tuples(st.integers(0, 5), st.floats(-1e3, 1e3), st.floats(0, 1e3))


@examples(200)
@given(left=MOMENTS, right=MOMENTS)
def test_welford_commutes_in_bits_and_is_never_nan(left, right):
    a, b = (dict(zip(("count", "mean", "m2"), map(np.array, value), strict=True)) for value in (left, right))
    one, other = WELFORD.combine(a, b), WELFORD.combine(b, a)
    for name in one:
        assert bits(one[name]) == bits(other[name])
        assert np.isfinite(one[name]).all()
