"""Many consecutive calls of mixed prepared collectives on one communicator: memory, requests and values.

    mpirun -n 4 python -m mpi4py tools/soak/growth.py --calls 100000 [--seed 1]

First in shared memory, then by messages. Fails on a wrong value, on a call or a request that is left, and where the
resident memory of a rank grows by a mebibyte after the warm-up.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from streams import COLLECTIVES, OPERATORS, Call, Value, topology

import topocomm
from topocomm import PreparedCall
from topocomm.execute.transports import mpi

GROWTH_LIMIT_BYTES = 1 << 20
WARM_UP = 2000
VALUES = 3
"""Distinct values per call, more than the memories of a prepared call."""
UNDER_WAY = 3


@dataclass
class Ready:
    """One prepared call with the values that it is given in turn and what must come of them."""

    call: Call
    prepared: PreparedCall
    given: list[Value | None]
    wanted: list[Value | None]
    turn: int = 0

    @classmethod
    def make(cls, comm: topocomm.Communicator, call: Call, rng: np.random.Generator) -> Ready:
        """Prepare the call; collective."""
        made: list[list[Value]] = [call.values(rng) for _ in range(VALUES)]
        gives = call.collective not in ("broadcast", "scatter") or call.root == comm.rank
        given = [values[comm.rank] if gives else None for values in made]
        return cls(call, call.prepare(comm), given, [call.expected(values, comm.rank) for values in made])

    def take(self) -> tuple[Value | None, Value | None]:
        """Return the next value and its result."""
        self.turn = (self.turn + 1) % VALUES
        return self.given[self.turn], self.wanted[self.turn]


def run(ready: list[Ready], rng: np.random.Generator, calls: int) -> None:
    """Run calls in random order, some in flight together by handles; check every result."""
    made = 0
    while made < calls:
        one, *others = (ready[index] for index in rng.permutation(len(ready))[:UNDER_WAY].tolist())
        if rng.random() < 0.8:
            given, wanted = one.take()
            one.call.check(one.prepared(given), wanted)
            made += 1
            continue
        begun: list[tuple[Any, Call, Value | None]] = []
        for other in (one, *others):
            given, wanted = other.take()
            begun.append((other.prepared.start(given), other.call, wanted))
        for handle, call, wanted in reversed(begun):
            call.check(handle.wait(), wanted)
        made += len(begun)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def series(world: MPI.Comm, way: str, calls: int, seed: int) -> None:
    """Run all calls over one transport; print the figures."""
    rng = np.random.default_rng(seed)
    with topocomm.Communicator.from_mpi(world, topology(way, world.size)) as comm:
        names = [name for name in COLLECTIVES if name != "barrier"] * 2
        roots = rng.integers(0, comm.size, len(names)).tolist()
        kinds = [
            Call(name, operator, (int(rng.integers(1, 40)),) * comm.size, int(rng.integers(1, 40)), root, "")
            for name, operator, root in zip(names, cycle(OPERATORS), roots, strict=False)
        ]
        ready = [Ready.make(comm, call, rng) for call in kinds]
        run(ready, rng, WARM_UP)
        comm.barrier()
        before, began_s = resident_bytes(), time.monotonic()
        run(ready, rng, calls)
        took_s, grown = time.monotonic() - began_s, resident_bytes() - before
        assert not comm.session.waiting.under_way, f"calls are left: {comm.session.waiting.under_way}"
    left = sum(not request.Test() for request, _ in mpi._under_way)
    assert left == 0, f"rank {world.rank}: {left} requests are left"
    most = max(world.allgather(grown))
    assert most < GROWTH_LIMIT_BYTES, f"{way}: memory grew by {most} bytes"
    if world.rank == 0:
        print(
            f"growth: {calls} calls, {way}, {world.size} ranks, seed {seed}: {took_s:.0f} s, resident memory grew by "
            f"{most / 1024:.0f} KiB; no wrong value, no request left",
            flush=True,
        )


def main() -> None:
    """Run over shared memory, then over messages."""
    parser = argparse.ArgumentParser(description="Memory over many calls.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    seed = MPI.COMM_WORLD.bcast(args.seed)
    for way in ("shared", "messages"):
        series(MPI.COMM_WORLD, way, args.calls, seed)


if __name__ == "__main__":
    main()
