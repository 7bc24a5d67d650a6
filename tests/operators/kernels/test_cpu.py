"""Folds of the built-in operators in C: which there are, and that no build of them fuses."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.operators.packed import BFLOAT16
from topocomm.native import _native
from topocomm.operators.kernels.cpu import compiled_kernel


def test_a_kernel_has_the_name_and_dtypes_of_its_fold():
    float32 = np.dtype(np.float32)
    kernel = compiled_kernel("sum", 1, [float32])
    assert kernel is not None
    assert kernel.version == "c.sum/1"
    assert kernel.compiled == _native.fold_address("sum", "f4") != 0
    names = {_native.fold_address("sum", code) for code in ("f2", "f2b", "f4", "f8")}
    assert len(names) == 4
    other = compiled_kernel("sum", 1, [BFLOAT16])
    assert other is not None
    assert other.compiled == _native.fold_address("sum", "f2b")


def test_what_has_no_fold_has_no_kernel(monkeypatch):
    assert compiled_kernel("sum", 1, [np.dtype(bool)]) is None
    assert compiled_kernel("mean", 1, [np.dtype("f4")]) is None
    monkeypatch.setitem(sys.modules, "topocomm.native._native", None)
    assert compiled_kernel("sum", 1, [np.dtype("f4")]) is None


@pytest.mark.parametrize(
    ("name", "functions"), [("topocomm.native._native", ""), ("attention.kernels._native", "merge_fold_")]
)
def test_no_product_and_sum_of_a_fold_are_fused(name, functions):
    """A fused multiply-add rounds once: machines with and without one would differ. Compilers slip them in.

    Attention has them on purpose, by its own name for each processor.
    """
    if shutil.which("objdump") is None:
        pytest.skip("needs objdump")
    __import__(name)
    path = Path(sys.modules[name].__file__ or "")
    code = subprocess.run(["objdump", "-d", str(path)], capture_output=True, text=True, timeout=120, check=True).stdout
    folds = "".join(part for part in re.split(r"^[0-9a-f]+ <", code, flags=re.M)[1:] if part.startswith(functions))
    assert len(folds) > 10_000
    assert not re.findall(r"\b(vf?n?m(?:add|sub)[0-9a-z]*|fmadd|fmla)\b", folds)
