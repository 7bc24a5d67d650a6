"""Extremes and their places, against IEEE 754 and NumPy; laws to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.operators.packed import DTYPES, FLOATS, INTEGERS, bits, chain, fold, layout_of
from topocomm import (
    ARGMAX,
    ARGMIN,
    MAX,
    MIN,
)

ids = {"ids": str}


def value_fold(operator, arrays, **names):
    layout = layout_of(operator, arrays[0].dtype, arrays[0].shape)
    return fold(operator, layout, [{"value": array} for array in arrays], **names)["value"]


@pytest.mark.parametrize("dtype", FLOATS, **ids)
def test_extremes_of_floats(dtype):
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan], dtype)
    left, right = (array.ravel() for array in np.meshgrid(special, special))
    for operator, sign in ((MAX, 1.0), (MIN, -1.0)):
        made = value_fold(operator, [left, right]).astype(np.float64)
        for a, b, x in zip(left.astype(float), right.astype(float), made, strict=True):
            if np.isnan(a) or np.isnan(b):
                assert np.isnan(x)
            else:  # by value, then by sign: -0 is below +0
                want = max((a, b), key=lambda y: (sign * y, sign * np.copysign(1, y)))
                assert (x, np.signbit(x)) == (want, np.signbit(want))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], **ids)
@pytest.mark.parametrize(("operator", "rule"), [(ARGMAX, np.argmax), (ARGMIN, np.argmin)], ids=["argmax", "argmin"])
def test_places_are_those_of_numpy(dtype, operator, rule):
    """Every rank holds 11 columns of its own; NumPy looks at all of them at once. Ties, zeros of both signs, NaN."""
    rng = np.random.default_rng(dtype.num)
    table = rng.integers(0, 3, (6, 11)).astype(dtype)
    if dtype in FLOATS:
        table[rng.random(table.shape) < 0.2] = -0.0
        table[:, 3:5][rng.random((6, 2)) < 0.5] = np.nan
    values = [{"value": row, "index": np.full(11, at)} for at, row in enumerate(table)]
    order = rng.permutation(len(values))
    layout = layout_of(operator, dtype, (11,))
    made = fold(operator, layout, [values[at] for at in order])
    want = rule(table.astype(np.float64), axis=0)
    np.testing.assert_array_equal(made["index"], want)
    assert bits(made["value"]) == bits(table[want, np.arange(11)])


def test_the_extreme_of_the_least_value_beats_nothing():
    neutral = {"value": np.array([-np.inf]), "index": np.array([np.iinfo(np.int64).max])}
    least = {"value": np.array([-np.inf]), "index": np.array([7])}
    for pair in ((neutral, least), (least, neutral)):
        assert ARGMAX.combine(*pair)["index"] == [7]


NUMBERS = {
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
}


def numbers(dtype):
    return NUMBERS["float"] if dtype in FLOATS else NUMBERS["integer"]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in FLOATS or d in INTEGERS], **ids)
@examples(40)
@given(data=st.data())
def test_extremes_associate_and_commute_in_bits(dtype, data):
    x, y, z = (np.array([data.draw(numbers(dtype))]).astype(np.float64).astype(np.float32) for _ in range(3))
    with np.errstate(all="ignore"):
        x, y, z = (array.astype(dtype) for array in (x, y, z))
    for operator in (MAX, MIN):
        a, b, c = ({"value": array} for array in (x, y, z))
        assert bits(chain(operator, [a, b, c])["value"]) == bits(operator.combine(a, operator.combine(b, c))["value"])
        assert bits(operator.combine(a, b)["value"]) == bits(operator.combine(b, a)["value"])
        layout = layout_of(operator, dtype, (1,))
        assert bits(fold(operator, layout, [a, b, c])["value"]) == bits(chain(operator, [a, b, c])["value"])


@pytest.mark.parametrize("operator", [ARGMAX, ARGMIN], ids=lambda operator: operator.name)
@examples(150)
@given(items=st.lists(st.tuples(NUMBERS["float"], st.integers(0, 3)), min_size=3, max_size=3))
def test_places_associate_and_commute_in_bits(operator, items):
    a, b, c = ({"value": np.array([value], np.float32), "index": np.array([at])} for value, at in items)
    made = [chain(operator, [a, b, c]), operator.combine(a, operator.combine(b, c)), chain(operator, [c, b, a])]
    assert len({bits(x["value"]) + bits(x["index"]) for x in made}) == 1
