"""Compiled folds give the bits of `combine`, whatever the dtype, the number of operands and the place of the result."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tests.operators.packed import (
    BFLOAT16,
    NAMES,
    PAIRS,
    any_value,
    any_values,
    assert_same_bits,
    bits,
    chain,
    fold,
    layout_of,
)
from topocomm import AFFINE_MATRIX, LOGADDEXP, MAX, PROD, SUM, TOPK
from topocomm.operators.builtin import READY
from topocomm.operators.builtins import elementwise

ON_NUMPY = {f"{name}-{dtype}" for name in ("topk(3)", "affine_matrix(3)") for dtype in ("float16", "bfloat16")}


@pytest.mark.parametrize(("operator", "dtype"), PAIRS, ids=NAMES)
def test_bits_are_those_of_combine(operator, dtype):
    rng = np.random.default_rng(len(operator.name) + dtype.num)
    for count, into in ((1, None), (1, 0), (2, None), (2, 0), (2, 1), (3, None), (3, 0), (5, 0)):
        layout = layout_of(operator, dtype, (37, 7))
        values = [any_value(rng, operator, layout) for _ in range(count)]
        assert_same_bits(fold(operator, layout, values, into=into), chain(operator, values))


@pytest.mark.parametrize(("operator", "dtype"), PAIRS, ids=NAMES)
def test_what_is_compiled_is_said(operator, dtype):
    layout = layout_of(operator, dtype)
    compiled = operator.compiled_fold(layout) is not None
    assert compiled == (f"{operator.name}-{dtype.name}" not in ON_NUMPY)
    assert operator.fold_version(layout).startswith("c." if compiled else "numpy")


@pytest.mark.parametrize("operator", READY, ids=lambda operator: operator.name)
@pytest.mark.parametrize("rows", [0, 1, 3, 17, 4095, 20001])
def test_odd_numbers_of_rows(operator, rows):
    """More than two operands go block by block; the last one is a part of one."""
    rng = np.random.default_rng(rows)
    dtype = np.dtype("i4") if operator.name in ("band", "bor", "bxor") else np.dtype("f4")
    layout = layout_of(operator, dtype, (rows,))
    values = [any_value(rng, operator, layout) for _ in range(4)]
    assert_same_bits(fold(operator, layout, values), chain(operator, values))


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BFLOAT16], ids=str)
@pytest.mark.parametrize("operator", [SUM, PROD, MAX, LOGADDEXP], ids=lambda operator: operator.name)
def test_every_float_of_16_bits(operator, dtype):
    """All 65,536 of them, with ordinary partners, and with others by an odd stride."""
    every = np.arange(1 << 16, dtype=np.uint16)
    layout = layout_of(operator, dtype, (1 << 16,))
    for partner in (np.zeros(1 << 16, np.uint16), every[::-1], every * np.uint16(40503)):
        values = [{"value": every.view(dtype)}, {"value": partner.copy().view(dtype)}]
        assert_same_bits(fold(operator, layout, values), chain(operator, values))


def test_16_bits_round_to_the_nearest_of_the_exact_sum():
    rng = np.random.default_rng(3)
    for dtype, digits in ((np.dtype("f2"), 11), (BFLOAT16, 8)):
        a, b = (rng.integers(-200, 200, 4000).astype(dtype) for _ in range(2))
        a, b = a * dtype.type(0.25), b * dtype.type(4)
        layout = layout_of(SUM, dtype, (4000,))
        made = fold(SUM, layout, [{"value": a}, {"value": b}])["value"].astype(np.float64)
        exact = a.astype(np.float64) + b.astype(np.float64)
        step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 1e-9))) - digits + 1)
        np.testing.assert_array_equal(made, np.round(exact / step) * step)  # ties to even


@pytest.mark.parametrize(("operator", "dtype"), [p for p in PAIRS if p[0] in READY][::5], ids=lambda x: str(x)[:9])
def test_without_the_compiled_part_numpy_folds_to_the_same_bits(monkeypatch, operator, dtype):
    rng = np.random.default_rng(5)
    layout = layout_of(operator, dtype, (elementwise.BLOCK_ROWS + 5,))
    values = [any_value(rng, operator, layout) for _ in range(3)]
    want = fold(operator, layout, values)
    compiled = operator.fold_version(layout)
    monkeypatch.setitem(sys.modules, "topocomm.native._native", None)
    monkeypatch.setattr(elementwise, "_kernel", elementwise._kernel.__wrapped__)
    assert operator.fold_version(layout) == compiled.replace("c.", "numpy.", 1)
    assert operator.compiled_fold(layout) is None
    assert_same_bits(fold(operator, layout, values), want)
    assert_same_bits(fold(operator, layout, values, into=0), want)
    one = values[:1]
    assert_same_bits(fold(operator, layout, one), one[0])


DIGEST = """
import hashlib
import numpy as np
from tests.operators.packed import EVERY, any_value, bits, fold, layout_of
digest = hashlib.sha256()
for operator in EVERY:
    dtype = np.dtype("i4") if operator.name in ("band", "bor", "bxor") else np.dtype("f4")
    layout = layout_of(operator, dtype, (501,))
    rng = np.random.default_rng(0)
    made = fold(operator, layout, [any_value(rng, operator, layout) for _ in range(3)])
    for array in made.values():
        digest.update(bits(array))
print(digest.hexdigest(), EVERY[0].fold_version(layout_of(EVERY[0], np.dtype("f4"))))
"""


def test_folds_without_the_compiled_part_change_no_bit():
    found = {}
    for missing in ("", "import sys; sys.modules['topocomm.native._native'] = None\n"):
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", missing + DIGEST],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        found[bool(missing)] = run.stdout.split()
    assert found[False][0] == found[True][0]
    assert (found[False][1], found[True][1]) == ("c.sum/1", "numpy.sum/1")
    assert len(found[False][0]) == len(hashlib.sha256().hexdigest())


@pytest.mark.parametrize("operator", [TOPK(3), AFFINE_MATRIX(3)], ids=lambda operator: operator.name)
def test_without_the_compiled_part_rows_run_combine(monkeypatch, operator):
    layout = layout_of(operator, np.dtype("f4"))
    monkeypatch.setitem(sys.modules, "topocomm.native._native", None)
    assert operator.compiled_fold(layout) is None
    assert operator.fold_version(layout) == "numpy"


@pytest.mark.parametrize(
    "operator", [*(TOPK(k) for k in (1, 2, 600)), *(AFFINE_MATRIX(d) for d in (1, 2, 4, 7, 30))],
    ids=lambda operator: operator.name,
)  # fmt: skip
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_of_any_size(operator, rows):
    """Long rows do not fit in the memory that a fold has on the stack; small matrices have loops of their own."""
    rng = np.random.default_rng(rows)
    layout = layout_of(operator, np.dtype("f4"), (rows,))
    for count, into in ((1, None), (2, 0), (2, 1), (3, None), (4, 0)):
        values = [any_value(rng, operator, layout) for _ in range(count)]
        assert_same_bits(fold(operator, layout, values, into=into), chain(operator, values))


def test_nothing_warns_where_numbers_overflow():
    """The suite takes warnings for errors; NumPy would warn of all of these."""
    huge = np.full(3, np.finfo(np.float32).max)
    for operator in (SUM, PROD):
        assert np.isinf(operator.combine({"value": huge}, {"value": huge})["value"]).all()
    nans = SUM.combine({"value": np.array([np.inf])}, {"value": np.array([-np.inf])})
    assert np.isnan(nans["value"]).all()
    assert SUM.combine({"value": np.int8(100)}, {"value": np.int8(100)})["value"] == -56


def test_a_fold_may_write_to_other_arrays_every_time():
    layout = layout_of(SUM, np.dtype("f4"), (5,))
    rng = np.random.default_rng(0)
    buffer = np.zeros(128, np.uint8)
    for offset in (0, 64):
        layout.views(buffer, offset, 5)["value"][...] = any_values(rng, np.dtype("f4"), (5,))
    bound = SUM.bind_fold(layout, buffer, 5, [0, 64])
    first, second = np.zeros(5, np.float32), np.zeros(5, np.float32)
    for target in (first, first, second):
        bound({"value": target})
    assert bits(first) == bits(second)
    second[...] = 0
    del first
    bound({"value": second})
    assert second.any()


def test_topk_is_one_operator_per_k():
    assert TOPK(8) is TOPK(8)
    assert TOPK(8) is not TOPK(7)
    assert TOPK(np.int64(8)) is TOPK(8)
