"""Allreduce of a JAX array inside jit: ours, mpi4jax where it is installed, and mpi4py by the same callback, in turns.

    mpirun -n P python tools/bench/jax_allreduce.py

Microseconds a call of the slowest rank, float32 sums: median and quartiles, the least time. `one` is a compiled
function with one call, awaited; `loop` a call of a compiled loop of 64, where starting a program does not count.
`callback` calls back and returns its argument.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from mpi4py import MPI

import topocomm
from topocomm.bench.timing import Pace, Timed, measure
from topocomm.jax import allreduce

try:
    import mpi4jax
except ImportError:
    mpi4jax = None

SIZES = (8, 64 << 10, 64 << 20)
TURNS = 64
LONG_BYTES = 4 << 20
"""Loops are for shorter values."""


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="Allreduce of JAX arrays, in turns.")
    parser.add_argument("--blocks", type=int, help="timed blocks (default: by time, 20 to 100)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="payloads in bytes")
    options = parser.parse_args()
    comm = topocomm.init()
    for size_bytes in options.sizes:
        x = jnp.zeros(max(1, size_bytes // 4), jnp.float32)
        for turns in (1, TURNS) if size_bytes < LONG_BYTES else (1,):
            calls = {name: program(call, x, turns) for name, call in methods(comm).items()}
            found = measure(comm, [Timed(call) for call in calls.values()], Pace(iterations=options.blocks))
            if comm.rank == 0:
                print(f"{comm.size} ranks, {size_bytes:,} B, {'one' if turns == 1 else 'loop'}:")
                for name, times in zip(calls, found, strict=True):
                    low, median, high = np.percentile(times.us, [25, 50, 75]) / turns
                    least = np.min(times.us) / turns
                    print(f"  {name:12} {median:,.1f} ({low:,.1f} to {high:,.1f}), {least:,.1f}", flush=True)


def methods(comm: Any) -> dict[str, Any]:
    """Return the calls by name."""
    world = MPI.COMM_WORLD.Dup()

    def by_mpi(x: Any) -> Any:
        sent = np.asarray(x)
        result = np.empty_like(sent)
        world.Allreduce(sent, result)
        return result

    def back(function: Any) -> Any:
        return lambda x: io_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)

    found = {"topocomm": lambda x: allreduce(x, topocomm.SUM, comm)}
    if mpi4jax is not None:
        found["mpi4jax"] = lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=world)
    return {**found, "mpi4py": back(by_mpi), "callback": back(np.asarray)}


def program(call: Any, x: Any, turns: int) -> Any:
    """Return what runs the compiled program with so many calls."""
    compiled = jax.jit(call if turns == 1 else lambda x: jax.lax.fori_loop(0, turns, lambda _, value: call(value), x))
    return lambda: compiled(x).block_until_ready()


if __name__ == "__main__":
    main()
