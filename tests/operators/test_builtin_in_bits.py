"""Laws that built-in operators keep to the last bit, whatever the values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operators.packed import DTYPES, FLOATS, INTEGERS, bits, chain, fold, layout_of
from topocomm import ARGMAX, ARGMIN, LOGADDEXP, MAX, MIN, PROD, SUM, TOPK, WELFORD, topk_value

ids = {"ids": str}
NUMBERS = {
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
}


def numbers(dtype):
    return NUMBERS["float"] if dtype in FLOATS else NUMBERS["integer"]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in FLOATS or d in INTEGERS], **ids)
@settings(max_examples=40, deadline=None)
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
@settings(max_examples=150, deadline=None)
@given(items=st.lists(st.tuples(NUMBERS["float"], st.integers(0, 3)), min_size=3, max_size=3))
def test_places_associate_and_commute_in_bits(operator, items):
    a, b, c = ({"value": np.array([value], np.float32), "index": np.array([at])} for value, at in items)
    made = [chain(operator, [a, b, c]), operator.combine(a, operator.combine(b, c)), chain(operator, [c, b, a])]
    assert len({bits(x["value"]) + bits(x["index"]) for x in made}) == 1


@settings(max_examples=150, deadline=None)
@given(items=st.lists(st.lists(st.tuples(NUMBERS["float"], st.integers(0, 9)), max_size=5), min_size=3, max_size=3))
def test_topk_associates_and_commutes_in_bits(items):
    a, b, c = (topk_value(np.array([x for x, _ in row], np.float32), 3, [p for _, p in row] or None) for row in items)
    operator = TOPK(3)
    made = [chain(operator, [a, b, c]), operator.combine(a, operator.combine(b, c)), chain(operator, [c, b, a])]
    assert len({bits(x["values"]) + bits(x["payload"]) for x in made}) == 1
    layout = operator.layout({name: (array.shape, array.dtype) for name, array in a.items()})
    folded = fold(operator, layout, [a, b, c])
    assert bits(folded["values"]) + bits(folded["payload"]) == bits(made[0]["values"]) + bits(made[0]["payload"])


@settings(max_examples=150, deadline=None)
@given(a=NUMBERS["float"], b=NUMBERS["float"])
def test_commutative_in_bits(a, b):
    for operator in (SUM, PROD, LOGADDEXP):
        left, right = ({"value": np.array([x], np.float32)} for x in (a, b))
        assert bits(operator.combine(left, right)["value"]) == bits(operator.combine(right, left)["value"])


MOMENTS = st.tuples(st.integers(0, 5), st.floats(-1e3, 1e3), st.floats(0, 1e3))


@settings(max_examples=200, deadline=None)
@given(left=MOMENTS, right=MOMENTS)
def test_welford_commutes_in_bits_and_is_never_nan(left, right):
    a, b = (dict(zip(("count", "mean", "m2"), map(np.array, value), strict=True)) for value in (left, right))
    one, other = WELFORD.combine(a, b), WELFORD.combine(b, a)
    for name in one:
        assert bits(one[name]) == bits(other[name])
        assert np.isfinite(one[name]).all()
