"""Kernels run in Triton's interpreter here, on CPU tensors.

Triton decides at its import whether its own functions are interpreted, and at `triton.jit` whether a kernel is. So both
are imported with the variable set; what else runs in this process does not see it.
"""

import os
import sys

import numpy as np
import pytest
import torch

VARIABLE = "TRITON_INTERPRET"
_before = os.environ.get(VARIABLE)
if _before != "1" and "triton" in sys.modules:
    raise pytest.UsageError(
        "tests/attention/gpu: triton was imported before, not interpreted; run these tests first, in a process of "
        "their own, or with TRITON_INTERPRET=1"
    )
os.environ[VARIABLE] = "1"
try:
    from attention.gpu import prefill
finally:
    if _before is None:
        del os.environ[VARIABLE]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    with np.errstate(all="ignore"):  # the interpreter computes in NumPy, which warns of infinities
        yield


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Results begin as NaN: what a kernel does not write shows."""
    fresh = prefill._empty

    def poisoned(shape, like):
        partial = fresh(shape, like)
        for x in partial:
            x.fill_(torch.nan)
        return partial

    monkeypatch.setattr(prefill, "_empty", poisoned)
