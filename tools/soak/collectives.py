"""Random collectives under mpirun, against NumPy, in shared memory, by messages and in two levels.

    mpirun -n 4 python -m mpi4py tools/soak/collectives.py --seconds 600 [--seed 1]

All ranks draw the same calls from one seed. Fails on a wrong result, on bits that differ between ranks where all get
the same, and where the resident memory of a rank goes on growing after the first half.
"""

from __future__ import annotations

import argparse
import resource
import time
from hashlib import blake2b
from typing import Any

from mpi4py import MPI
from streams import WAYS, Stream, topology

import topocomm

GROWTH_LIMIT_BYTES = 64 << 20
KINDS = 24
"""Calls on one communicator, which keeps prepared calls, before it is closed and replaced."""
CALLS = 3 * KINDS
LONGEST = 40_000
OTHER = 0.4
"""Probability that the next call is of another kind."""


def digest(result: Any) -> str:
    """Return the bits of a result."""
    return blake2b(b"".join(array.tobytes() for array in result.values())).hexdigest()


def series(world: MPI.Comm, seed: int) -> int:
    """Run calls on a new communicator and return their number."""
    with topocomm.Communicator.from_mpi(world, topology(WAYS[seed % len(WAYS)], world.size)) as comm:
        stream = Stream(comm, seed, KINDS, longest=LONGEST, other=OTHER)
        bits = []
        for _ in range(CALLS):
            collective, result = stream.step()
            if collective in ("allreduce", "canonical", "broadcast", "allgather") and result is not None:
                bits.append(digest(result))
        stream.settle()
        assert len(set(map(tuple, world.allgather(bits)))) == 1, "bits differ between ranks"
    return stream.made


def resident_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run until the time is over or a call fails."""
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
        print(f"collectives: {calls} calls of seeds {first}..{seed - 1} on {world.size} ranks, no failure", flush=True)


if __name__ == "__main__":
    main()
