"""Every known disagreement between ranks must raise an error on every rank, at once, that names the odd one.

    mpirun -n 3 python -m mpi4py tools/soak/disagreements.py [--seed 1]

Prints a table: the way, the kind of error on each rank, how long the last rank took, and the odd rank's neighbour's
text. Fails where a rank gets no error, one that does not name rank 1, or one that had to wait for its time limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np
from mpi4py import MPI
from streams import WAYS as TOPOLOGIES
from streams import topology
from ways_to_disagree import WAYS, Way

import topocomm

ODD = 1
LIMIT_S = 10.0
AT_ONCE_S = 5.0
"""Time limit of an error, in seconds: below the deadline, above what a busy machine needs."""


def outcome(world: MPI.Comm, where: str, way: Way) -> tuple[str, str, float]:
    """Run a disagreement and return this rank's error class, text and seconds."""
    comm = topocomm.Communicator.from_mpi(world, topology(where, world.size))
    world.Barrier()  # else a rank that is still in there hears of the error, on a busy machine
    began_s = time.monotonic()
    try:
        way(comm, world.rank == ODD)
        comm.barrier()  # a rank that had nothing to wait for finds out in the next call
    except Exception as error:  # noqa: BLE001 - what it is, is what is looked at
        took_s = time.monotonic() - began_s
        comm.session.fail(error)  # as `with comm:` does
        return type(error).__name__, str(error).splitlines()[0], took_s
    return "no error", "", time.monotonic() - began_s


def verdict(outcomes: list[tuple[str, str, float]]) -> str:
    """Check the errors of all ranks; empty if they are right."""
    for rank, (kind, text, took_s) in enumerate(outcomes):
        if kind in ("no error", "DeadlineError"):
            return f"rank {rank}: {kind}"
        if took_s > AT_ONCE_S:
            return f"rank {rank}: only after {took_s:.1f} s"
        told = text.removeprefix(f"rank {rank}: ")
        if rank != ODD and f"rank {ODD}" not in told:
            return f"rank {rank}: does not name rank {ODD}: {text}"
    return ""


def main() -> None:
    """Run all of them, in an order drawn from the seed."""
    parser = argparse.ArgumentParser(description="Ways to disagree.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="one way")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    os.environ["TOPOCOMM_TIMEOUT_S"] = str(LIMIT_S)
    seed = world.bcast(args.seed)
    names = list(WAYS) if args.only is None else [args.only]
    chosen = [names[index] for index in np.random.default_rng(seed).permutation(len(names))]
    wrong, began_s = [], time.monotonic()
    for number, name in enumerate(chosen):
        where = "messages" if name.startswith("plan") else TOPOLOGIES[(number + seed) % len(TOPOLOGIES)]
        outcomes = world.allgather(outcome(world, where, WAYS[name]))
        problem = verdict(outcomes)
        wrong += [name] * bool(problem)
        if world.rank == 0:
            kinds = ", ".join(kind for kind, _, _ in outcomes)
            took_s = max(took_s for _, _, took_s in outcomes)
            print(f"{name:42} {where:10} {kinds:58} {took_s:5.2f} s  {problem or outcomes[2][1][:160]}", flush=True)
    if world.rank == 0:
        print(
            f"disagreements: {len(chosen)} ways, seed {seed}, {time.monotonic() - began_s:.0f} s, an error on each of "
            f"{world.size} ranks that names rank {ODD}: {len(chosen) - len(wrong)}; not so: {wrong or 'none'}",
            flush=True,
        )
    MPI.Finalize()  # all ranks are here, whatever became of their communicators
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
