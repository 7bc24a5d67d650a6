"""Packed values in memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topocomm import Field, Operator

PAIR = Operator(
    "pair",
    (Field("weights", ("*rows", "dim"), np.float32), Field("count", ("*rows",), np.int64)),
    lambda a, b: {name: a[name] + b[name] for name in a},
    {"weights": 0, "count": 0},
    default_dims={"dim": 3},
)


def layout(weights=(4, 3), count=(4,), dtype=np.float32):
    return PAIR.layout({"weights": (weights, dtype), "count": (count, np.int64)})


def test_fields_bind_by_name():
    bound = layout((2, 5, 7), (2, 5))
    assert (bound.leading, bound.rows, bound.row_bytes) == ((2, 5), 10, 7 * 4 + 8)
    assert dict(bound.dims) == {"dim": 7}
    assert str(bound) == "weights float32 [2, 5, 7], count int64 [2, 5]"


@given(rows=st.integers(0, 9), dim=st.integers(1, 9))
def test_packed_fields_are_aligned_and_apart(rows, dim):
    bound = layout((rows, dim), (rows,))
    size = bound.packed_bytes(rows)
    buffer = np.zeros(size + 16, np.uint8)
    views = bound.views(buffer, 8, rows)
    views["weights"][...] = 1
    views["count"][...] = 2
    assert views["count"].ctypes.data % 8 == buffer.ctypes.data % 8
    assert np.all(views["weights"] == 1)
    assert not buffer[:8].any() and not buffer[8 + size :].any()
