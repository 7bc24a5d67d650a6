"""Kernels run in Triton's interpreter here, on CPU tensors."""

from importlib.util import find_spec

import pytest

if find_spec("triton") is None:  # not importorskip: it would import Triton before its interpreter is chosen
    pytest.skip("needs triton", allow_module_level=True)

from tests import interpreted  # noqa: F401, I001 before anything that imports triton

import numpy as np
import torch

from attention.gpu.decode import decode
from attention.gpu.prefill import prefill


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):  # the interpreter computes in NumPy, which warns of infinities
        yield


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Results begin as NaN: what a kernel does not write shows."""
    fresh = prefill.empty_partial

    def poisoned(shape, device):
        partial = fresh(shape, device)
        for x in partial:
            x.fill_(torch.nan)
        return partial

    monkeypatch.setattr(prefill, "empty_partial", poisoned)


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    """No test launches what another chose, with other patches."""
    monkeypatch.setattr(decode, "_ready", {})
