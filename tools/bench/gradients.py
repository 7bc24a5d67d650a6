"""Steps of DistributedDataParallel over gloo: plain, with torch's allreduce hook, and with ours, in turns.

    torchrun --standalone --nproc-per-node P tools/bench/gradients.py

Microseconds a step (forward, backward, the wait for the gradients) of the slowest rank: median and quartiles, the least
time, and how many times ours the others take.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from topocomm import Communicator
from topocomm.bench.timing import Pace, Timed, measure
from topocomm.torch import HookState, ddp_hook

WIDTHS = (64, 512, 2048)
"""Of models of four square layers: 66 KB, 4.2 MB and 67 MB of gradients."""
LAYERS, ROWS = 4, 8


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="Steps of DDP with and without hooks.")
    parser.add_argument("--blocks", type=int, help="timed blocks (default: by time, 20 to 100)")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, help="width of the layers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comms = [Communicator.from_torch() for _ in range(3)]
    for width in options.widths:
        steps = {
            "ddp_hook": step(width, comms[0], ddp_hook),
            "plain DDP": step(width),
            "allreduce_hook": step(width, None, allreduce_hook),
            "ddp_hook, bf16": step(width, HookState(comms[1], wire_dtype=torch.bfloat16), ddp_hook),
        }
        times = measure(comms[2], [Timed(call) for call in steps.values()], Pace(iterations=options.blocks))
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks, {LAYERS * width * (width + 1) * 4 / 1e6:.2f} MB of gradients:")
            ours = times[0]
            for name, found in zip(steps, times, strict=True):
                least, own_least = np.min(found.us), np.min(ours.us)
                print(
                    f"  {name:16} {found}, {least:,.1f} us   {found.median_us / ours.median_us:.2f} times, "
                    f"{least / own_least:.2f}",
                    flush=True,
                )
    dist.barrier()


def step(width: int, state: Any = None, hook: Any = None) -> Any:
    """Return a training step without an optimizer: its time would be the same for all."""
    torch.manual_seed(0)
    module = DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(LAYERS)]))
    if hook is not None:
        module.register_comm_hook(state, hook)
    batch = torch.randn(ROWS, width)

    def run() -> None:
        module.zero_grad(set_to_none=False)
        module(batch).square().mean().backward()

    for _ in range(3):  # buckets are formed anew after the first step
        run()
    return run


if __name__ == "__main__":
    main()
