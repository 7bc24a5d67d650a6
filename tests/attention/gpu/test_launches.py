"""Every kernel of attention goes through the launcher, which compiles and loads under one lock of the process."""

import pytest
import torch

from attention import Partial
from attention.gpu import gpu_merge
from attention.gpu.decode import decode
from attention.gpu.prefill import prefill
from tests.attention.gpu.inputs import made

OUTS = [Partial(torch.rand(3, 8), torch.rand(3)) for _ in range(2)]
CALLS = {
    "decode": (decode, lambda: decode.decode_partial(*made(0, 1, 2, 1, 1, 40, 16, 16))),
    "prefill": (prefill, lambda: prefill.prefill_partial(*made(0, 1, 2, 1, 20, 20, 16, 16))),
    "merge": (gpu_merge, lambda: gpu_merge.merge_on_device(*(tuple(part) for part in zip(*OUTS, strict=True)))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_is_launched_by_the_launcher(name, monkeypatch):
    module, call = CALLS[name]
    launched = []
    plain = module.launcher

    def launcher(kernel, grid):
        launched.append(kernel)
        return plain(kernel, grid)

    monkeypatch.setattr(module, "launcher", launcher)
    call()
    assert len(launched) == 1
