"""DDP with `ddp_hook` beside DDP without, both over gloo: the same parameters after some steps.

    torchrun --nproc-per-node N gradients.py CASE...    cases by name, or all

With 2 ranks every sum has two terms, and results must be equal bit by bit; with more they may differ by rounding.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

from topocomm import Communicator
from topocomm.torch import HookState, ddp_hook

WIDTH, STEPS = 24, 4
SEVERAL = {"bucket_cap_mb": 0.005}
"""Buckets of some layers each."""


class Branches(nn.Module):
    """A model of which some steps use one branch only, and some parameters are used by none."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.never = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, branch=0):
        return self.last((self.first, self.second)[branch](x).relu())


def layers():
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)])


def data(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(5, WIDTH, generator=generator).to(dtype)


def trained(module, *, dtype=torch.float32, accumulate=False, branches=False):
    """The parameters after plain gradient descent: torch's optimizers take seconds to import."""
    for step in range(STEPS):
        if accumulate:
            with module.no_sync():
                module(data(step + 50, dtype)).square().mean().backward()
        where = (step % 2,) if branches else ()
        (module(data(step, dtype), *where) - data(step, dtype).roll(1, 1)).square().mean().backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.1 * p.grad if p.grad is not None else 0
        module.zero_grad()
    return [p.detach().clone() for p in module.parameters()]


CASES = {
    # name: model, dtype, arguments of DDP, arguments of `trained`
    "one_bucket": (layers, torch.float32, {}, {}),
    "buckets": (layers, torch.float32, SEVERAL, {}),
    "views": (layers, torch.float32, {**SEVERAL, "gradient_as_bucket_view": True}, {}),
    "no_sync": (layers, torch.float32, SEVERAL, {"accumulate": True}),
    "static": (layers, torch.float32, {**SEVERAL, "static_graph": True}, {}),
    "unused": (Branches, torch.float32, {**SEVERAL, "find_unused_parameters": True}, {"branches": True}),
    "double": (layers, torch.float64, SEVERAL, {}),
    "bfloat": (layers, torch.bfloat16, SEVERAL, {}),
    "half": (layers, torch.float16, SEVERAL, {}),
}


def compare(name, comms):
    make, dtype, of_ddp, of_training = CASES[name]

    def run(state=None, hook=ddp_hook):
        torch.manual_seed(0)
        module = DistributedDataParallel(make().to(dtype), **of_ddp)
        if state is not None:
            module.register_comm_hook(state, hook)
        return trained(module, dtype=dtype, **of_training)

    expected = run()
    near = {"rtol": 0.01, "atol": 1e-3} if dtype.itemsize == 2 else {}
    exact = {"rtol": 0, "atol": 0} if dist.get_world_size() == 2 else near
    for state in (comms[0], HookState(comms[1], order="canonical")):
        torch.testing.assert_close(run(state), expected, **exact)
    if name == "buckets":
        rough = {"rtol": 0.05, "atol": 0.02}
        short = run(HookState(comms[0], wire_dtype=torch.bfloat16))
        torch.testing.assert_close(short, expected, **rough)
        assert any(not torch.equal(a, b) for a, b in zip(short, expected, strict=True)), "it was not rounded"
        torch.testing.assert_close(run(comms[1], fp16_compress_wrapper(ddp_hook)), expected, **rough)


def uneven(comm):
    """Ranks with different numbers of batches, under `join`."""

    def run(hooked):
        torch.manual_seed(0)
        module = DistributedDataParallel(layers(), **SEVERAL)
        if hooked:
            module.register_comm_hook(comm, ddp_hook)
        with module.join():
            for step in range(2 + dist.get_rank()):
                module(data(step)).square().mean().backward()
        return [p.grad.clone() for p in module.parameters()]

    torch.testing.assert_close(run(True), run(False))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comms = [Communicator.from_torch() for _ in range(2)]
    for name in sys.argv[1:] or [*CASES, "uneven"]:
        uneven(comms[0]) if name == "uneven" else compare(name, comms)
    dist.barrier()
    print(f"[{dist.get_rank()}] ok\n", end="", flush=True)
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends while they put away what a collective used


if __name__ == "__main__":
    main()
