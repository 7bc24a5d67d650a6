"""Random collectives under mpirun, against NumPy, in shared memory and by messages, with memory watched.

    mpirun -n 4 python -m mpi4py tools/soak/collectives.py --seconds 600 [--seed 1]

All ranks draw the same calls from one seed. Fails on a wrong result, on bits that differ between ranks, and where
the resident memory of a rank goes on growing after the first half.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP

GROWTH_LIMIT_BYTES = 64 << 20
LIVE_CALLS = 24
"""A communicator keeps a prepared call per shape; after this many kinds of call it is closed and made anew."""


def partials(rng: np.random.Generator, size: int) -> list[dict[str, Any]]:
    """One partial per rank, some rows empty."""
    rows, dim = int(rng.integers(0, 200)), int(rng.integers(1, 200))
    return [
        {
            "out": rng.standard_normal((rows, dim), dtype=np.float32),
            "lse": np.where(rng.random(rows) < 0.1, -np.inf, 3 * rng.standard_normal(rows)).astype(np.float32),
        }
        for _ in range(size)
    ]


def merged(values: list[dict[str, Any]]) -> dict[str, Any]:
    """The merge of partials in float64."""
    lse = np.stack([v["lse"] for v in values]).astype(np.float64)
    top = np.where(np.isneginf(lse.max(0)), 0, lse.max(0))
    weights = np.exp(lse - top)
    total = weights.sum(0)
    out = np.einsum("pr,prd->rd", weights, np.stack([v["out"] for v in values]))
    with np.errstate(divide="ignore"):
        return {"out": out / np.where(total == 0, 1, total)[:, None], "lse": top + np.log(total)}


def one_call(comm: topocomm.Communicator, rng: np.random.Generator) -> bytes:
    """A random call, checked; the result's bytes, empty where this rank gets none."""
    kind = int(rng.integers(4))
    if kind == 0:
        values = partials(rng, comm.size)
        result = comm.allreduce(values[comm.rank], LOGSUMEXP)
        for name, want in merged(values).items():
            np.testing.assert_allclose(result[name], want, atol=1e-4)
        return bytes(result["out"].tobytes() + result["lse"].tobytes())
    shape = (int(rng.integers(0, 4)), int(rng.integers(1, 3000)))
    whole = rng.integers(-1000, 1000, (comm.size, *shape)).astype(np.float64)
    mine, root = whole[comm.rank].copy(), int(rng.integers(comm.size))
    if kind == 1:
        result, want = comm.allreduce(mine, topocomm.SUM, out=mine if rng.random() < 0.5 else None), whole.sum(0)
    elif kind == 2:
        result, want = comm.reduce(mine, topocomm.MAX, root=root), whole.max(0)
    else:
        result, want = comm.broadcast(mine, root=root), whole[root]
    if kind == 2 and comm.rank != root:
        assert result is None
        return b""
    np.testing.assert_array_equal(result, want)
    return b"" if kind == 2 else bytes(result.tobytes())


def resident_bytes() -> int:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def series(world: MPI.Comm, seed: int) -> int:
    """Calls on a communicator of their own; how many."""
    rng = np.random.default_rng(seed)
    apart = topocomm.catalog("cpu-2-socket", hosts=max(2, world.size // 2)) if seed % 2 else None
    with topocomm.Communicator.from_mpi(world, apart) as comm:
        for _ in range(LIVE_CALLS):
            state = rng.bit_generator.state
            for _ in range(3):  # the first use, then the prepared call in both its memories
                rng.bit_generator.state = state
                bits = world.allgather(one_call(comm, rng))
                assert len({b for b in bits if b}) <= 1, "bits differ between ranks"
    return 3 * LIVE_CALLS


def main() -> None:
    """Until the time is over, or something fails."""
    parser = argparse.ArgumentParser(description="Random collectives under mpirun.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    first = seed = world.bcast(args.seed)
    began, calls, half = time.monotonic(), 0, 0
    while world.bcast(time.monotonic() - began) < args.seconds:
        try:
            calls += series(world, seed)
        except BaseException:
            print(f"rank {world.rank} FAILED; again with --seed {seed} --seconds 1", flush=True)
            raise
        seed += 1
        if not half and world.bcast(time.monotonic() - began) > args.seconds / 2:
            half = resident_bytes()
    grown = world.allreduce(resident_bytes() - half if half else 0, op=MPI.MAX)
    assert grown < GROWTH_LIMIT_BYTES, f"memory grew by {grown} bytes in the second half"
    if world.rank == 0:
        print(f"collectives: {calls} calls of seeds {first}..{seed - 1} on {world.size} ranks, no failure")


if __name__ == "__main__":
    main()
