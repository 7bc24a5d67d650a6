"""One decode step's merge of partials, 32 heads x 128 float32 (16,512 bytes), beside its alternatives: mpirun -n P.

    topocomm            comm.allreduce({"out", "lse"}, LOGSUMEXP): value in, new value out
    topocomm prepared   the same call prepared, into arrays that are reused
    by MPI's messages   the same on a machine on which each rank is on a host of its own, so that none share memory
    topocomm, one SUM   comm.prepare_sum: one all-reduce of MPI's, relative to lse that all ranks know
    rows ...            each rank's rows alone: planned, as one SUM, and MPI_Reduce_scatter of as many floats
    floor               one persistent exchange of the same bytes with one neighbour, no merge

and the ways that `topocomm bench --operator attention.logsumexp` measures. Ranks of a machine with other load give
their core away while they wait (OMPI_MCA_mpi_yield_when_idle=1, as `make env` sets it) or keep it (0): try both.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from quartiles import compare

from attention import LOGSUMEXP, bench
from topocomm import Communicator, Device, Link, Topology
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


def one_sum(comm: Communicator, x: dict[str, Any], world: MPI.Comm, collective: str = "allreduce") -> Call:
    """The merge as one SUM, relative to the lse of the token before: here 1 more than the greatest of all ranks'."""
    reference = np.empty_like(x["lse"])
    world.Allreduce(x["lse"], reference, MPI.MAX)
    out = result(comm, x, collective)
    call = comm.prepare_sum(like=x, operator=LOGSUMEXP, collective=collective)
    return partial(call, x, reference=reference.astype(np.float64) + 1, out=out)


def result(comm: Communicator, x: dict[str, Any], collective: str) -> dict[str, Any]:
    """Arrays for what a rank gets."""
    own = slice(comm.rank * HEADS // comm.size, (comm.rank + 1) * HEADS // comm.size)
    return {name: np.empty_like(array[own] if collective == "reduce_scatter" else array) for name, array in x.items()}


def prepared(comm: Communicator, x: dict[str, Any], collective: str) -> Call:
    """The planned merge, prepared."""
    call = comm.prepare(collective, like=x, operator=LOGSUMEXP)
    return partial(call, x, out=result(comm, x, collective))


def reduce_scatter(comm: Communicator, x: dict[str, Any], world: MPI.Comm) -> Call:
    """MPI's sum of a merge's floats, each rank's rows alone: what the messages cost."""
    rows = [(rank + 1) * HEADS // comm.size - rank * HEADS // comm.size for rank in range(comm.size)]
    counts = [129 * own for own in rows]
    sent, received = np.ones(sum(counts), np.float32), np.empty(counts[comm.rank], np.float32)
    return partial(world.Reduce_scatter, sent, received, counts, MPI.SUM)


def apart(ranks: int) -> Topology:
    """A machine of as many hosts as ranks."""
    devices = [Device("network", "switch", host="network")]
    links = []
    for rank in range(ranks):
        devices.append(Device(f"h{rank}/CPU0", "cpu", host=f"h{rank}"))
        ends = ((devices[-1].id, "network"), ("network", devices[-1].id))
        links += [Link(src, dst, "ethernet", 1, 10.0, 10.0) for src, dst in ends]
    return Topology(f"{ranks} hosts", "tools/bench/merge.py", tuple(devices), tuple(links))


def main() -> None:
    """Measure, and print on rank 0."""
    world = MPI.COMM_WORLD
    if world.size < 2:
        sys.exit("merge.py compares ways to merge between ranks: run it with mpirun -n 2 or more")
    comm, library = Communicator.from_mpi(world), MpiLibrary(world)
    problem = make_problem("allreduce", with_values(LOGSUMEXP, bench), HEADS, world.size)
    x = problem.value(world.rank)
    methods: list[Method] = [Ours(comm, problem, prepared=is_prepared) for is_prepared in (False, True)]
    methods += [*bench.alternatives(library), GatherAndFold(library, problem), UserDefinedOp(library, problem)]
    ways: dict[str, Call] = {method.name: method.run for method in methods if method.prepare(x, problem.empty_result())}
    ways["topocomm by MPI's messages"] = prepared(Communicator.from_mpi(world, apart(world.size)), x, "allreduce")
    ways[ONE_SUM] = one_sum(comm, x, world)
    ways["rows: topocomm prepared"] = prepared(comm, x, "reduce_scatter")
    ways["rows: topocomm, one SUM"] = one_sum(comm, x, world, "reduce_scatter")
    ways["rows: MPI_Reduce_scatter"] = reduce_scatter(comm, x, world)
    ways["floor: one exchange"], requests = floor(world, problem.size_bytes)
    compare(comm, f"merge of {HEADS} x 128 float32 partials", ways, BLOCKS)
    for request in requests:
        request.Free()


if __name__ == "__main__":
    main()
