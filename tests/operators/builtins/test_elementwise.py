"""Operators by a formula: the same bits from either side, and on arrays and tensors."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.operators.packed import bits
from topocomm import LOGADDEXP, PROD, SUM

NUMBERS = {
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan]),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
}


@examples(150)
@given(a=NUMBERS["float"], b=NUMBERS["float"])
def test_commutative_in_bits(a, b):
    for operator in (SUM, PROD, LOGADDEXP):
        left, right = ({"value": np.array([x], np.float32)} for x in (a, b))
        assert bits(operator.combine(left, right)["value"]) == bits(operator.combine(right, left)["value"])
