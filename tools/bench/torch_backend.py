"""dist.all_reduce on our backend and on gloo, in turns.

    torchrun --standalone --nproc-per-node P tools/bench/torch_backend.py

Microseconds a call of the slowest rank, median and quartiles, and gloo's median over ours; the least times beside them,
which say most on a machine that others use. `--handles` takes calls with `async_op=True`, awaited at once.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import topocomm.torch
from topocomm.bench.timing import Pace, Timed, measure

SIZES = (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 64 << 20)
LIMIT = timedelta(seconds=300)
BLOCK_US = 10_000.0
"""Of short calls; 8 ranks on 2 cores are 0.4 ms apart at its ends."""


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="dist.all_reduce on our backend and on gloo.")
    parser.add_argument("--blocks", type=int, help="timed blocks (default: by time, 20 to 100)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="payloads in bytes")
    parser.add_argument("--handles", action="store_true", help="calls with a handle, awaited at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(topocomm.torch.NAME, timeout=LIMIT)
    groups = {"topocomm": dist.group.WORLD, "gloo": dist.new_group(backend="gloo", timeout=LIMIT)}
    world: Any = groups["topocomm"]
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, us a call: median (quartiles), least")
    for size_bytes in options.sizes:
        x = torch.zeros(max(1, size_bytes // 4))
        methods = [Timed(call(x, group, options.handles)) for group in groups.values()]
        ours, gloo = measure(world.communicator, methods, Pace(iterations=options.blocks, block_us=BLOCK_US))
        if dist.get_rank() == 0:
            least = [float(np.min(times.us)) for times in (ours, gloo)]
            print(
                f"{size_bytes:>10} B  topocomm {ours}, {least[0]:,.2f}  gloo {gloo}, {least[1]:,.2f}  "
                f"{gloo.median_us / ours.median_us:.1f} times, {least[1] / least[0]:.1f}",
                flush=True,
            )
    dist.destroy_process_group()


def call(x: torch.Tensor, group: Any, handles: bool) -> Any:
    """Return the call that is timed."""
    if handles:
        return lambda: dist.all_reduce(x, group=group, async_op=True).wait()
    return lambda: dist.all_reduce(x, group=group)


if __name__ == "__main__":
    main()
