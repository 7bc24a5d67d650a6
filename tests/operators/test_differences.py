"""Where arrays differ, and how a counterexample is shown."""

import ml_dtypes
import numpy as np
import pytest

from topocomm.operators.differences import LONGEST, differs, first_row, real, show, wide, widest_difference


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_nan_is_nan_and_zeros_differ_by_sign_where_asked(dtype):
    one = np.array([np.nan, 0.0, 1.0, np.inf, 2.0]).astype(dtype)
    other = np.array([np.nan, -0.0, 1.0, -np.inf, np.nan]).astype(dtype)
    assert differs(one, other).tolist() == [False, True, False, True, True]
    assert differs(one, other, zeros=False).tolist() == [False, False, False, True, True]


def test_parts_of_complex_numbers_are_compared_each():
    one = np.array([1 + 2j, 1 + 2j, complex(0.0, np.nan)])
    other = np.array([1 + 2j, 1 - 2j, complex(0.0, np.nan)])
    assert differs(one, other).tolist() == [False, True, False]
    assert real(one.dtype) == np.float64 and wide(one.astype(np.complex64)).dtype == np.complex128


def test_whole_numbers_are_compared_as_they_are():
    top = np.iinfo(np.int64).max
    assert differs(np.array([top, top]), np.array([top, top - 1])).tolist() == [False, True]  # equal in float64


def test_the_widest_difference_is_found_beside_rounding():
    one = {"x": np.array([[1.0, 2.0]]), "n": np.array([3]), "y": np.array([[5.0, 6.0]])}
    other = {"x": np.array([[1.0 + 1e-16, 2.0 + 1e-15]]), "n": np.array([3]), "y": np.array([[5.0, 7.0]])}
    assert widest_difference(one, other, 0) == ("y", (1,))
    assert widest_difference(one, {**other, "n": np.array([4])}, 0) == ("n", ())
    assert widest_difference(one, {**other, "x": np.array([[np.nan, 2.0]])}, 0) == ("x", (0,))
    assert widest_difference({"x": np.zeros((2, 2))}, {"x": np.array([[0.0, 0.0], [-0.0, 0.0]])}, None) == ("x", (1, 0))


def test_a_row_is_shown_and_cut_where_it_is_long():
    bad = np.array([[False, False], [False, True], [True, True]])
    assert first_row(bad, True) == 1 and first_row(bad, False) is None
    table = np.arange(400).reshape(2, 200)
    assert show(table[:, :2], 1) == "[200, 201]" and show(table[:, :1], None) == "[[0], [200]]"
    assert show(table, 0) == str(table[0].tolist())[:LONGEST] + " ..."
