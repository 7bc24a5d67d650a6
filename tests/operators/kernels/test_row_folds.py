"""Folds of functions of one row: where numba keeps them, and that it says when it compiles."""

import os
import subprocess
import sys

import numpy as np
from numba.core import caching

from tests.operators.packed import fold
from topocomm import Field, Operator, row_kernel
from topocomm.operators.kernels import row_folds

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
