"""Tensors in host memory that play those of GPUs: every torch tensor counts as one, NumPy arrays do not.

Ranks are threads over the recording NCCL; kernels run in Triton's interpreter, one launch at a time.
"""

from tests.interpreted import interpreted  # isort: skip

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from attention import Partial, arrays
from attention.decode import canonical, local_kernels, reductions
from attention.gpu import placement as where
from attention.ring import ring_buffers
from tests.execute.device_jobs import fake_nccl, run_in

LAUNCH = threading.RLock()
run = interpreted.run

READS = ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__")


def one_at_a_time(self, *args, **kwargs):
    with LAUNCH, np.errstate(all="ignore"), torch._C.DisableTorchFunction():
        return run(self, *args, **kwargs)


def poisoned(shape, device):
    """Fresh partials begin as NaN: what is not written shows."""
    return Partial(torch.full(shape, torch.nan, device=device), torch.full(shape[:-1], torch.nan, device=device))


@contextmanager
def playing(ranks, **options):
    """The world of so many ranks, each with a GPU of its own."""
    with fake_nccl(ranks, **options) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreted, "run", one_at_a_time)
        patch.setattr(where, "_held", lambda x: True)
        for module in (arrays, local_kernels, reductions, canonical, ring_buffers):
            patch.setattr(module, "empty_partial", poisoned)
        patch.setattr(ring_buffers, "scratch_memory", lambda size, device: world.allocate(world.rank_here(), size))
        yield world


def run_on_gpus(body, ranks, **options):
    """What `body(comm)` returns on each rank, in order."""
    with playing(ranks, **options) as world:
        return run_in(world, body)


class NothingIsRead(torch.overrides.TorchFunctionMode):
    """Fails where a value is read back from a tensor, which on a GPU would wait for it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        assert name not in READS, f"{name} reads a value back"
        return function(*args, **(kwargs or {}))
