"""Tiles of packed values, in Triton's interpreter: every shape, and rows of several programs."""

import numpy as np
import pytest

from tests.operators.kernels.device import device_fold
from tests.operators.packed import (
    BFLOAT16,
    NAMES,
    PAIRS,
    any_value,
    assert_same_bits,
    fold,
    layout_of,
)
from topocomm import (
    ARGMAX,
    MAX,
)
from topocomm.operators.builtin import READY

EACH = [pair for pair in zip(PAIRS, NAMES, strict=True) if pair[0][0] in READY]


def values_of(operator, layout, count, seed=0):
    rng = np.random.default_rng([seed, count])
    return [any_value(rng, operator, layout) for _ in range(count)]


@pytest.mark.parametrize("leading", [(), (0,), (1,), (3,), (2, 0), (129,), (3, 43)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "?", BFLOAT16], ids=str)
def test_shapes(leading, dtype):
    layout = layout_of(MAX, np.dtype(dtype), leading)
    values = values_of(MAX, layout, 3)
    assert_same_bits(device_fold(MAX, layout, values), fold(MAX, layout, values))


def test_rows_of_several_programs():
    layout = layout_of(ARGMAX, np.dtype("f4"), (3001,))
    values = values_of(ARGMAX, layout, 2)
    assert_same_bits(device_fold(ARGMAX, layout, values), fold(ARGMAX, layout, values))
