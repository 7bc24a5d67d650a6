"""The formulas of the built-in operators on tiles, in Triton's interpreter: bit for bit those of the CPU."""

import numpy as np
import pytest

from tests.operators.kernels.device import device_fold
from tests.operators.packed import (
    FLOATS,
    NAMES,
    PAIRS,
    any_value,
    assert_same_bits,
    fold,
    layout_of,
)
from topocomm import (
    AFFINE_MATRIX,
    ARGMAX,
    ARGMIN,
    LOGADDEXP,
    MAX,
    MIN,
    PROD,
    TOPK,
    topk_value,
)
from topocomm.operators.builtin import READY
from topocomm.operators.kernels import gpu

EACH = [pair for pair in zip(PAIRS, NAMES, strict=True) if pair[0][0] in READY]


def values_of(operator, layout, count, seed=0):
    rng = np.random.default_rng([seed, count])
    return [any_value(rng, operator, layout) for _ in range(count)]


@pytest.mark.parametrize(("operator", "dtype"), [pair for pair, _ in EACH], ids=[name for _, name in EACH])
def test_every_operator_has_the_bits_of_the_cpu(operator, dtype):
    layout = layout_of(operator, dtype, (37,))
    assert gpu.device_fold_version(operator, layout, "cuda") == f"triton.{operator.name}/1"
    for count in (3, 9):  # 9 run in a loop
        values = values_of(operator, layout, count)
        assert_same_bits(device_fold(operator, layout, values), fold(operator, layout, values))


ROWS = [(TOPK, size, dtype) for size in (1, 5) for dtype in (*FLOATS, np.dtype("i1"), np.dtype("u8"))]


ROWS += [
    (TOPK, 8, np.dtype("f4")),
    *((AFFINE_MATRIX, 3, dtype) for dtype in FLOATS),
    (AFFINE_MATRIX, 1, np.dtype("f4")),
]


@pytest.mark.parametrize(("make", "size", "dtype"), ROWS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_operators_on_rows_have_the_bits_of_the_cpu(make, size, dtype):
    operator = make(size)
    layout = layout_of(operator, dtype, (7,))
    assert gpu.device_fold_version(operator, layout, "cuda") == f"triton.{operator.name.split('(')[0]}/1"
    for count, seed in ((2, 0), (3, 1)):  # ties, empty places, NaN, infinities
        values = values_of(operator, layout, count, seed)
        expected = fold(operator, layout, values)
        assert_same_bits(device_fold(operator, layout, values), expected)
        if make is TOPK:
            assert_same_bits(device_fold(operator, layout, values, into=count - 1), expected)


def test_items_that_tie_go_by_payload_and_empty_places_last():
    operator = TOPK(5)
    layout = layout_of(operator, np.dtype("f4"), (1,))
    left, right = (
        topk_value(np.array([values], "f4"), 5, np.array([places]))
        for values, places in (([7, -np.inf, np.nan, 7], [9, 4, 3, 1]), ([7, np.nan], [5, 0]))
    )
    for pair in ((left, right), (right, left)):
        found = device_fold(operator, layout, list(pair))
        np.testing.assert_array_equal(found["values"], [[np.nan, np.nan, 7, 7, 7]])
        assert found["payload"].tolist() == [[0, 3, 1, 5, 9]]
    nothing = topk_value(np.zeros((1, 0), "f4"), 5)
    assert device_fold(operator, layout, [nothing, right])["payload"].tolist() == [[0, 5, -1, -1, -1]]
    least = topk_value(np.full((1, 1), -np.inf, "f4"), 5, np.array([[4]]))
    assert device_fold(operator, layout, [nothing, least])["payload"].tolist() == [[4, -1, -1, -1, -1]]
    zero = device_fold(operator, layout, [nothing, {"values": np.full((1, 5), -0.0, "f4"), "payload": left["payload"]}])
    assert not np.signbit(zero["values"][np.isfinite(zero["values"])]).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operator", [MAX, MIN, ARGMAX, ARGMIN, LOGADDEXP, PROD], ids=lambda operator: operator.name)
def test_every_pair_of_edges(operator, dtype):
    with np.errstate(all="ignore"):
        edges = np.array(EDGES).astype(dtype)
    left, right = (side.ravel() for side in np.meshgrid(edges, edges))
    at = np.zeros(len(left), np.int64)
    for right_at in (at, at + 1):
        values = [{"value": left, "index": at}, {"value": right, "index": right_at}]
        layout = layout_of(operator, dtype, left.shape)
        assert_same_bits(device_fold(operator, layout, values), fold(operator, layout, values))


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, -708.5, -709, -745, 1e-310, 1e-40, 1e-7, 65504, 3e38]
