"""Collectives that move values and combine none, beside MPI's own, by the bytes of a block: mpirun -n P.

A block is what one rank has for one other: a whole value of a broadcast, one rank's part of an all-gather, gather or
scatter, a rank's part for another of an alltoall; all that a rank sends to the next one of a sendrecv. Results are
compared bit by bit before anything is timed.

    topocomm prepared     a call made ready once, to given arrays
    topocomm              a plain call, to new arrays
    MPI_...               mpi4py on the same arrays
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mpi4py import MPI
from quartiles import compare

from topocomm import SUM, Communicator
from topocomm.bench.facts import way_of
from topocomm.bench.libraries import Call, MpiLibrary
from topocomm.bench.methods import LibraryCollective, Method, Ours
from topocomm.bench.problem import make_problem
from topocomm.planning.collectives import CARRYING, IN_PARTS

BLOCKS = "4096,65536,1048576"


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="Collectives that combine nothing, beside MPI's.")
    parser.add_argument("--collectives", default="alltoall", help=f"some of {','.join(CARRYING)},sendrecv")
    parser.add_argument("--bytes", default=BLOCKS, help=f"bytes of a block, with commas (default {BLOCKS})")
    parser.add_argument("--blocks", type=int, default=20, help="timed blocks of calls (default 20)")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    if world.size < 2:
        sys.exit("carrying.py compares calls between ranks: run it with mpirun -n 2 or more")
    comm, library = Communicator.from_mpi(world), MpiLibrary(world)
    for collective in options.collectives.split(","):
        for size_bytes in map(int, options.bytes.split(",")):
            if collective == "sendrecv":
                time_sendrecv(comm, library.comm, size_bytes, options.blocks)
            else:
                time_block(comm, library, collective, size_bytes, options.blocks)


def time_block(comm: Communicator, library: MpiLibrary, collective: str, size_bytes: int, blocks: int) -> None:
    """Compare the results of one collective on float32 blocks of this size, then time it."""
    rows = size_bytes // 4 * (comm.size if collective in IN_PARTS else 1)
    problem = make_problem(collective, SUM, rows, comm.size)
    ours, plain = (Ours(comm, problem, prepared=prepared) for prepared in (True, False))
    methods: list[Method] = [ours, plain, LibraryCollective(library, problem)]
    x, bits = problem.value(comm.rank), []
    for method in methods:
        method.prepare(x, problem.empty_result())
        method.run()
        result = method.result()
        bits.append(None if result is None else [array.tobytes() for array in result.values()])
    if bits[1:] != bits[:-1]:
        sys.exit(f"rank {comm.rank}: {collective} of {size_bytes} bytes: results differ")
    assert ours.call is not None
    title = f"{collective} of {size_bytes} byte blocks by {way_of(ours.call)}"
    compare(comm, title, {method.name: method.run for method in methods}, blocks)
    for method in methods:
        method.free()


def time_sendrecv(comm: Communicator, mpi: MPI.Comm, size_bytes: int, blocks: int) -> None:
    """The same for values of this size, each sent to the next rank."""
    dest, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = np.full(size_bytes // 4, comm.rank, np.float32)
    out, received = np.empty_like(x), np.empty_like(x)
    call = comm.prepare("alltoall", like=x, rows=[len(x) if rank == dest else 0 for rank in range(comm.size)])
    ways: dict[str, Call] = {
        "topocomm prepared": lambda: call(x, out=out),
        "topocomm": lambda: comm.sendrecv(x, dest),
        "MPI_Sendrecv": lambda: mpi.Sendrecv(x, dest, 0, received, source, 0),
    }
    given = [way() for way in ways.values()][1]
    if not out.tobytes() == received.tobytes() == np.asarray(given).tobytes():
        sys.exit(f"rank {comm.rank}: sendrecv of {size_bytes} bytes: results differ")
    compare(comm, f"sendrecv of {size_bytes} bytes by {way_of(call)}", ways, blocks)
    call.free()


if __name__ == "__main__":
    main()
