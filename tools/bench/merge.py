"""One decode step's merge of partials, 32 heads x 128 float32 (16,512 bytes), beside its alternatives: mpirun -n P.

    topocomm            comm.allreduce({"out", "lse"}, LOGSUMEXP): value in, new value out
    topocomm prepared   the same call prepared, into arrays that are reused
    topocomm, one SUM   comm.prepare_sum: one all-reduce of MPI's, relative to lse that all ranks know
    floor               one persistent exchange of the same bytes with one neighbour, no merge

and the ways that `topocomm bench --operator attention.logsumexp` measures.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from quartiles import compare

from attention import LOGSUMEXP, bench
from topocomm import Communicator
from topocomm.bench.libraries import Call, MpiLibrary
from topocomm.bench.measurement import with_values
from topocomm.bench.methods import GatherAndFold, Method, Ours, UserDefinedOp
from topocomm.bench.problem import make_problem

HEADS = 32
BLOCKS = 100
ONE_SUM = "topocomm, one SUM"


def floor(world: MPI.Comm, size_bytes: int) -> tuple[Call, list[Any]]:
    """Persistent exchange of `size_bytes` with rank ^ 1, and its requests; an odd last rank idles."""
    send, receive = np.zeros(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
    peer = world.rank ^ 1
    requests: list[Any] = []
    if peer < world.size:
        requests = [world.Recv_init(receive, peer), world.Send_init(send, peer)]

    def run() -> None:
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    return run, requests


def one_sum(comm: Communicator, x: dict[str, Any], world: MPI.Comm) -> Call:
    """The merge as one SUM, relative to the lse of the token before: here 1 more than the greatest of all ranks'."""
    reference = np.empty_like(x["lse"])
    world.Allreduce(x["lse"], reference, MPI.MAX)
    out = {name: np.empty_like(array) for name, array in x.items()}
    return partial(comm.prepare_sum(like=x, operator=LOGSUMEXP), x, reference=reference.astype(np.float64) + 1, out=out)


def main() -> None:
    """Measure, and print on rank 0."""
    world = MPI.COMM_WORLD
    if world.size < 2:
        sys.exit("merge.py compares ways to merge between ranks: run it with mpirun -n 2 or more")
    comm, library = Communicator.from_mpi(world), MpiLibrary(world)
    problem = make_problem("allreduce", with_values(LOGSUMEXP, bench), HEADS, world.size)
    x = problem.value(world.rank)
    methods: list[Method] = [Ours(comm, problem, prepared=prepared) for prepared in (False, True)]
    methods += [*bench.alternatives(library), GatherAndFold(library, problem), UserDefinedOp(library, problem)]
    ways: dict[str, Call] = {method.name: method.run for method in methods if method.prepare(x, problem.empty_result())}
    ways[ONE_SUM] = one_sum(comm, x, world)
    ways["floor: one exchange"], requests = floor(world, problem.size_bytes)
    compare(comm, f"merge of {HEADS} x 128 float32 partials", ways, BLOCKS)
    for request in requests:
        request.Free()


if __name__ == "__main__":
    main()
