"""The merge of segments with and without the compiled part."""

import sys

import numpy as np
import torch

from attention.local.compiled_attention import _folded
from attention.partial import Partial


def test_segments_merge_without_the_compiled_part(monkeypatch):
    rng = np.random.default_rng(0)
    out = torch.from_numpy(rng.normal(size=(3, 2, 4, 1, 8)).astype(np.float32))
    lse = torch.from_numpy(rng.normal(size=(3, 2, 4, 1)).astype(np.float32))
    lse[1, 0, 0] = -torch.inf
    want = _folded(Partial(out.clone(), lse.clone()))
    monkeypatch.setitem(sys.modules, "attention.kernels.cpu_merge", None)
    made = _folded(Partial(out.clone(), lse.clone()))
    torch.testing.assert_close(made.out, want.out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(made.lse, want.lse, rtol=1e-6, atol=1e-6)
