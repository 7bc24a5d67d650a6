"""What dtypes and arguments operators take, and what they say of others."""

import numpy as np
import pytest

from topocomm import (
    AFFINE,
    AFFINE_MATRIX,
    ARGMAX,
    BAND,
    LOGADDEXP,
    MAX,
    SUM,
    TOPK,
    WELFORD,
    OperatorError,
    topk_value,
)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: topk_value(np.float64(3), 2), r"topk_value: expected values \[\*rows, n\] of floats or integers"),
        (lambda: topk_value(np.zeros(3, complex), 2), "got complex128"),
        (lambda: topk_value(np.zeros(3), 2, [0, -1, 2]), "payload must be integers, 0 or more, got -1"),
        (lambda: topk_value(np.zeros(3), 2, [0.5, 1, 2]), "payload must be integers, 0 or more, got float64"),
        (lambda: topk_value(np.zeros(3), 2, [0, 1]), r"payload \[2\] does not broadcast to the shape of values, \[3\]"),
        (lambda: topk_value(np.zeros(3), 0), "topk_value: k must be 1 or more, got 0"),
        (lambda: TOPK(2.5), "TOPK: k must be a whole number, 1 or more, got 2.5"),
        (lambda: AFFINE_MATRIX("2"), "AFFINE_MATRIX: d must be a whole number, 1 or more, got '2'"),
        (lambda: TOPK(0), "TOPK: k must be 1 or more, got 0"),
        (lambda: AFFINE_MATRIX(0), "AFFINE_MATRIX: d must be 1 or more, got 0"),
        (
            lambda: TOPK(8).layout({"values": ((5,), "f4"), "payload": ((5,), "i8")}),
            r"operator 'topk\(8\)' takes rows of 8 items, got 5; topk_value\(values, 8\) makes them",
        ),
        (
            lambda: AFFINE_MATRIX(2).layout({"a": ((3, 3), "f4"), "b": ((3,), "f4")}),
            r"operator 'affine_matrix\(2\)' takes maps of vectors of size 2, got 3",
        ),
        (
            lambda: BAND.layout({"value": ((3,), "f4")}),
            "operator 'band' takes integers and bool, got float32; bits of other numbers mean nothing",
        ),
        (lambda: SUM.layout({"value": ((3,), "?")}), "got bool; use BOR or BAND for bool"),
        (
            lambda: SUM.layout({"value": ((3,), ">f4")}),
            "got float32 in another byte order; convert it first",
        ),
        (lambda: SUM.layout({"value": ((3,), "O")}), "takes integers, floats and complex numbers, got object"),
        (lambda: MAX.layout({"value": ((3,), "c8")}), "operator 'max' takes integers, floats and bool, got complex64"),
        (lambda: LOGADDEXP.layout({"value": ((3,), "i4")}), "operator 'logaddexp' takes floats, got int32"),
        (
            lambda: AFFINE.layout({"a": ((3,), "f4"), "b": ((3,), "f8")}),
            "takes one dtype, got float32 in field 'a' and float64 in field 'b'; convert one of them",
        ),
        (
            lambda: WELFORD.layout({"count": ((3,), "i4"), "mean": ((3,), "f4"), "m2": ((3,), "f4")}),
            "operator 'welford' takes int64 or a float in field 'count', got int32; convert it first",
        ),
        (
            lambda: ARGMAX.layout({"value": ((3,), "f4"), "index": ((3,), "i4")}),
            "field 'index' must be int64, got int32; convert it first",
        ),
    ],
)
def test_what_is_not_taken_is_named(act, message):
    with pytest.raises(OperatorError, match=message):
        act()


def test_a_dtype_of_a_new_style_is_refused_in_words():
    with pytest.raises(OperatorError, match=r"got StringDType\(\); convert it first"):
        SUM.layout({"value": ((3,), np.dtypes.StringDType())})
