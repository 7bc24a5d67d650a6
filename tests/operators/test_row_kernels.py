"""Kernels from a function of one row."""

import sys

import numpy as np
import pytest

from tests.operators.packed import assert_same_bits, chain, fold
from topocomm import Field, Operator, OperatorError, check_laws, row_kernel


def rotate_row(a, a_turns, b, b_turns, out, turns):
    """2 x 2 matrices and a count: reads what it has written to neither operand, in any order."""
    for i in range(2):
        for j in range(2):
            out[i, j] = b[i, 0] * a[0, j] + b[i, 1] * a[1, j]
    turns[0] = a_turns[0] + b_turns[0]


def rotate(a, b):
    left, right = a["m"], b["m"]
    m = right[..., :, :1] * left[..., :1, :] + right[..., :, 1:] * left[..., 1:, :]
    return {"m": m, "turns": a["turns"] + b["turns"]}


ROTATE = Operator(
    "rotate",
    (Field("m", ("*rows", "two", "two")), Field("turns", dtype=np.int64)),
    rotate,
    {"m": np.eye(2), "turns": 0},
    kernel=row_kernel(rotate_row),
    default_dims={"two": 2},
)


def values_of(layout, count, dtype):
    rng = np.random.default_rng(count)
    shape = (*layout.leading, 2, 2)
    return [
        {"m": rng.normal(size=shape).astype(dtype), "turns": rng.integers(0, 9, layout.leading)} for _ in range(count)
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("count", "into"), [(1, None), (2, None), (2, 0), (2, 1), (3, None), (5, 0)])
@pytest.mark.parametrize("leading", [(7,), (0,), (2, 3), ()])
def test_the_row_function_is_the_fold(dtype, count, into, leading):
    layout = ROTATE.layout({"m": ((*leading, 2, 2), dtype), "turns": (leading, np.int64)})
    assert ROTATE.compiled_fold(layout) is not None
    values = values_of(layout, count, dtype)
    assert_same_bits(fold(ROTATE, layout, values, into=into), chain(ROTATE, values))


def test_its_laws_hold_and_it_is_compared_with_combine():
    report = check_laws(ROTATE, dims={"two": 2}, samples=64)
    assert report.ok, report
    assert report.laws[-1].name == "kernel"
    assert report.laws[-1].detail.startswith("numba.rotate_row/")


def test_floats_of_16_bits_run_combine():
    layout = ROTATE.layout({"m": ((3, 2, 2), np.float16), "turns": ((3,), np.int64)})
    assert ROTATE.compiled_fold(layout) is None
    assert ROTATE.fold_version(layout) == "numpy"
    values = values_of(layout, 3, np.float16)
    assert_same_bits(fold(ROTATE, layout, values), chain(ROTATE, values))


def test_without_numba_combine_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "topocomm.operators.kernels.row_folds", None)
    kernel = row_kernel(rotate_row)
    assert kernel(ROTATE.default_layout(3)) is None


def test_operators_without_rows():
    def add_row(a, b, out):
        for i in range(out.size):
            out[i] = a[i] + b[i]

    vector = Operator(
        "vector", (Field("v", ("n",)),), lambda a, b: {"v": a["v"] + b["v"]}, {"v": 0}, kernel=row_kernel(add_row)
    )
    layout = vector.layout({"v": ((5,), np.float64)})
    values = [{"v": np.arange(5.0) * i} for i in range(3)]
    np.testing.assert_array_equal(fold(vector, layout, values)["v"], np.arange(5.0) * 3)
    assert check_laws(vector, dtype=np.float64, samples=10).ok


def test_what_numba_does_not_take_is_told_in_one_line():
    def odd_row(a, b, out):
        out[0] = a.no_such_thing

    def short_row(a, out):
        out[0] = a[0]

    for function, part in ((odd_row, "no_such_thing"), (short_row, "argument")):
        planted = Operator("odd", (Field("v"),), lambda a, b: a, {"v": 0}, kernel=row_kernel(function))
        with pytest.raises(OperatorError) as told:
            planted.fold_version(planted.default_layout(2))
        assert f"row_kernel: numba does not take {function.__qualname__}" in str(told.value)
        assert part in str(told.value)
        assert "\n" not in str(told.value)
