"""Folds of functions of one row: where numba keeps them, and that it says when it compiles."""

import os
import subprocess
import sys

import numpy as np
from numba import types
from numba.core import caching
from numba.extending import intrinsic

from tests.operators.packed import fold
from topocomm import Field, Operator, row_kernel
from topocomm.operators.kernels import row_folds
from topocomm.operators.kernels.row_folds import fingerprint

SCALE = 2.0

PROGRAM = """
import numpy as np
from numba.core import caching
from topocomm import Field, Operator, row_kernel

def add_row(a, b, out):
    out[0] = a[0] + b[0]

own = Operator("own", (Field("v"),), lambda a, b: {"v": a["v"] + b["v"]}, {"v": 0}, kernel=row_kernel(add_row))
for dtype in (np.float64, np.float64, np.int32):
    assert own.compiled_fold(own.layout({"v": ((3,), dtype)}))
"""


def test_a_fold_is_announced_when_it_is_compiled_and_never_again(tmp_path):
    program = tmp_path / "own.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(program)]
    texts = [
        subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment).stderr
        for _ in range(2)
    ]
    dtypes = ("float64", "int32")
    assert texts[0] == "".join(f"topocomm: compiling, once: fold of add_row({dtype}[])\n" for dtype in dtypes)
    assert texts[1] == ""


def test_without_a_folder_to_keep_it_in_a_fold_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def subtract_row(a, b, out):
        out[0] = a[0] - b[0]

    own = Operator("own", (Field("v"),), lambda a, b: {"v": a["v"] - b["v"]}, {"v": 0}, kernel=row_kernel(subtract_row))
    layout = own.layout({"v": ((3,), np.float64)})
    assert own.compiled_fold(layout)
    values = [{"v": np.full(3, number)} for number in (5.0, 3.0)]
    np.testing.assert_array_equal(fold(own, layout, values)["v"], np.full(3, 2.0))


def test_floats_of_16_bits_are_not_covered():
    def bound(dtype):
        return Operator("own", (Field("v"),), max, {"v": 0}).layout({"v": ((3,), dtype)}).fields

    assert row_folds.covers(bound(np.float32)) and not row_folds.covers(bound(np.float16))


def double(x):
    return x * SCALE


def test_fingerprints_tell_functions_apart():
    def one(a, b):
        return a + double(b)

    def same(a, b):
        return a + double(b)

    def other(a, b):
        return a - double(b)

    def deeper(factor):
        return lambda a: a * factor

    assert fingerprint(one) == fingerprint(one) == fingerprint(same)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(deeper(1)) != fingerprint(deeper(2))
    assert fingerprint(deeper((1, 2))) != fingerprint(deeper((1, 3)))
    assert fingerprint(deeper(np.arange(2))) != fingerprint(deeper(np.arange(1, 3)))


def test_fingerprints_tell_intrinsics_apart():
    def number(value):
        @intrinsic
        def give(typingctx):
            return types.int64(), lambda context, builder, signature, args: context.get_constant(types.int64, value)

        return lambda: give()

    assert fingerprint(number(1)) == fingerprint(number(1)) != fingerprint(number(2))


def test_a_fingerprint_knows_what_a_function_names(monkeypatch):
    before = fingerprint(double)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    assert fingerprint(double) != before


def test_a_fingerprint_ends_where_functions_name_each_other():
    def ping(n):
        return pong(n - 1) if n else 0

    def pong(n):
        return ping(n - 1) if n else 1

    assert fingerprint(ping) != fingerprint(pong)
