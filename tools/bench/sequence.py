"""Attention over a sharded sequence by `ring_attention` and by `ulysses_attention` with rings of every size.

mpirun -n 4 python tools/bench/sequence.py [--lengths 1024,4096] [--heads 8] [--kv-heads 2] [--dim 64] [--repeats 5]

Causal, zigzag, float32 or --dtype; the slowest rank's time, medians of calls in turns, beside what `sequence_costs`
predicts of the forward pass. Every result is compared with that of the ring.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import topocomm
from attention import Spec, ring_attention, sequence_slices, ulysses_attention
from attention.ulysses.sequence_cost import SequenceShape, sequence_costs
from topocomm.bench.timing import in_turns

AGREE = {"float32": 1e-4, "bfloat16": 2.0**-5, "float16": 2.0**-8}
"""Tolerance, relative to the largest |out|."""


def compare(comm: topocomm.Communicator, options: argparse.Namespace, length: int) -> None:
    """Print a line for every way on rank 0; collective."""
    dtype, heads, kv_heads, dim = getattr(torch, options.dtype), options.heads, options.kv_heads, options.dim
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, count, length, dim, generator=generator).to(dtype) for count in (heads, kv_heads, kv_heads)]
    mine = torch.from_numpy(np.r_[*sequence_slices("zigzag", length, comm.size, comm.rank)])
    q, k, v = own = [x[:, :, mine].requires_grad_() for x in whole]
    given: dict[str, Any] = {"spec": Spec(causal=True), "layout": "zigzag"}
    shape = SequenceShape(length, 1, heads, kv_heads, dim, dim, dtype, "cpu")
    costs = sequence_costs(comm.topology, comm.places, shape)
    ways: list[tuple[str, Callable[[], torch.Tensor]]] = [("ring", partial(ring_attention, q, k, v, comm, **given))]
    for cost in costs[:-1]:
        name = "heads" if cost.ring == 1 else f"heads, rings of {cost.ring}"
        ways.append((name, partial(ulysses_attention, q, k, v, comm, ring=cost.ring, **given)))
    predicted = [costs[-1].total_us, *(cost.total_us for cost in costs[:-1])]
    exact = ways[0][1]()
    for name, way in ways:
        off = float((way() - exact).detach().abs().max() / exact.detach().abs().max()) if len(mine) else 0.0
        if not off <= AGREE[options.dtype]:
            raise SystemExit(f"rank {comm.rank}: {name} and the ring differ by {off:.1e}")

    def forward_us(index: int) -> float:
        with torch.no_grad():
            return _slowest_us(comm, ways[index][1])

    def both_us(index: int) -> float:
        return _slowest_us(comm, lambda: torch.autograd.grad(ways[index][1]().sum(), own))

    figures = [np.median(in_turns(len(ways), options.repeats, block), axis=1) for block in (forward_us, both_us)]
    if comm.rank == 0:
        for (name, _), forward, both, expected in zip(ways, *figures, predicted, strict=True):
            print(f"{length:>7} {name:20} {forward / 1e3:10.2f} {both / 1e3:14.2f} {expected / 1e3:12.2f}", flush=True)


def _slowest_us(comm: topocomm.Communicator, work: Callable[[], object]) -> float:
    """Microseconds of the rank that takes longest; collective."""
    comm.barrier()
    began_ns = time.perf_counter_ns()
    work()
    took = np.array([(time.perf_counter_ns() - began_ns) / 1e3])
    return float(comm.allreduce(took, topocomm.MAX)[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,4096", help="tokens of all ranks, separated by commas")
    parser.add_argument("--heads", type=int, default=8, help="query heads (default 8)")
    parser.add_argument("--kv-heads", type=int, default=2, help="key heads (default 2)")
    parser.add_argument("--dim", type=int, default=64, help="width of a head (default 64)")
    parser.add_argument("--dtype", choices=tuple(AGREE), default="float32", help="of q, K and V (default float32)")
    parser.add_argument("--repeats", type=int, default=5, help="turns (default 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with topocomm.init() as comm:
        if comm.rank == 0:
            print(
                f"{comm.size} ranks, {options.heads}/{options.kv_heads} heads x {options.dim}, {options.dtype}, "
                f"causal, zigzag, medians of {options.repeats} turns\n"
                f"{'tokens':>7} {'way':20} {'forward ms':>10} {'+ backward ms':>14} {'predicted ms':>12}",
                flush=True,
            )
        for length in map(int, options.lengths.split(",")):
            compare(comm, options, length)


if __name__ == "__main__":
    main()
