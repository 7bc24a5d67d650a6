"""TOPK against sorting; laws to the last bit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.operators.packed import FLOATS, INTEGERS, bits, chain, fold
from topocomm import (
    TOPK,
    topk_value,
)

ids = {"ids": str}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], **ids)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_topk_is_the_head_of_the_sorted_whole(dtype, k):
    rng = np.random.default_rng(k)
    items = rng.integers(0, 6, (4, 10)).astype(dtype)
    if dtype in FLOATS:
        items[rng.random(items.shape) < 0.2] = np.nan
        items[rng.random(items.shape) < 0.2] = -np.inf
    payload = rng.permutation(40).reshape(4, 10)
    parts = [slice(0, 4), slice(4, 4), slice(4, 5), slice(5, 10)]
    values = [topk_value(items[:, part], k, payload[:, part]) for part in parts]
    layout = TOPK(k).layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    made = fold(TOPK(k), layout, values)
    for row in range(4):
        order = sorted(range(10), key=lambda at: (rank_of(items[row, at]), payload[row, at]))[:k]
        assert bits(made["values"][row]) == bits(items[row, order])
        assert list(made["payload"][row]) == list(payload[row, order])


def rank_of(x):
    return -math.inf if x != x else -float(x) if float(x) > -math.inf else 1e300


def test_topk_of_few_items():
    made = topk_value(np.float32([5, 7]), 4)
    assert made["values"].tolist() == [7, 5, -np.inf, -np.inf]
    assert made["payload"].tolist() == [1, 0, -1, -1]
    assert topk_value(np.zeros((3, 0), np.int8), 2)["values"].tolist() == [[-128, -128]] * 3
    real = topk_value(np.array([-np.inf]), 2, [9])
    empty = topk_value(np.zeros(0), 2)
    for pair in ((real, empty), (empty, real)):
        assert TOPK(2).combine(*pair)["payload"].tolist() == [9, -1]


NUMBERS = {
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
}


@examples(150)
@given(items=st.lists(st.lists(st.tuples(NUMBERS["float"], st.integers(0, 9)), max_size=5), min_size=3, max_size=3))
def test_topk_associates_and_commutes_in_bits(items):
    a, b, c = (topk_value(np.array([x for x, _ in row], np.float32), 3, [p for _, p in row] or None) for row in items)
    operator = TOPK(3)
    made = [chain(operator, [a, b, c]), operator.combine(a, operator.combine(b, c)), chain(operator, [c, b, a])]
    assert len({bits(x["values"]) + bits(x["payload"]) for x in made}) == 1
    layout = operator.layout({name: (array.shape, array.dtype) for name, array in a.items()})
    folded = fold(operator, layout, [a, b, c])
    assert bits(folded["values"]) + bits(folded["payload"]) == bits(made[0]["values"]) + bits(made[0]["payload"])
