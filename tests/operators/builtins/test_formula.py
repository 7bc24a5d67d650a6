"""What formulas are made of: selection on arrays and tensors, and the series of exp and ln."""

import math

import numpy as np
import pytest

from topocomm.operators.builtins import formula
from topocomm.operators.builtins.formula import EXPONENTIAL, INVERSE_TANH, LN2_HIGH, LN2_LOW, ROUNDING, select


def horner(coefficients, x):
    value = 0.0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def test_the_series_are_as_close_as_they_say():
    for x in np.linspace(-math.log(2) / 2, math.log(2) / 2, 101):
        assert abs(horner(EXPONENTIAL, x) - math.exp(x)) <= 4e-16
    for x in np.linspace(1e-3, 1 / 3, 101):
        assert abs(horner(INVERSE_TANH, x * x) - math.atanh(x) / x) <= 4e-16


def test_ln_2_is_in_two_parts_and_the_high_one_times_an_integer_is_exact():
    assert math.log(2) == LN2_HIGH + LN2_LOW
    assert all(math.fmod(LN2_HIGH * power, 2.0**-42) == 0 for power in (1, 1021, 2047))


def test_adding_the_rounding_constant_finds_the_nearest_integer():
    assert [(x + ROUNDING) - ROUNDING for x in (2.4, 2.6, -7.5, 0.5)] == [2.0, 3.0, -8.0, 0.0]


def test_selection_on_tensors_is_that_on_arrays():
    torch = pytest.importorskip("torch")
    left, right = np.arange(4.0), -np.arange(4.0)
    chosen = select(left > 1, left, right)
    assert chosen.tolist() == [0.0, -1.0, 2.0, 3.0]
    tensors = [torch.from_numpy(x) for x in (left > 1, left, right)]
    assert torch.equal(select(*tensors), torch.from_numpy(chosen))
    assert math.log(np.finfo(np.float64).tiny) < formula.LEAST
