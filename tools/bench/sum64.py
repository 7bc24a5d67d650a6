"""64 MiB of float32: SUM beside MPI_Allreduce, and an operator of the user's own beside MPI's: mpirun -n P.

The operator's combine is NumPy's addition, so that it is one arithmetic in every way:

    SUM                     our compiled sum, prepared and as a plain call
    own operator            the same numbers by a combine in NumPy
    MPI user-defined op     the same combine, called back by MPI
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mpi4py import MPI
from quartiles import compare

from topocomm import SUM, Communicator, Field, Operator
from topocomm.bench.libraries import Call, MpiLibrary
from topocomm.bench.methods import LibraryCollective, Method, Ours, UserDefinedOp
from topocomm.bench.problem import make_problem

MIB = 1 << 20
OWN = Operator(
    "own",
    (Field("value", dtype=np.float32),),
    lambda left, right: {"value": left["value"] + right["value"]},
    {"value": 0},
    commutative=True,
)


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description="64 MiB allreduces beside MPI's.")
    parser.add_argument("--mib", type=int, default=64, help="payload (default 64)")
    parser.add_argument("--blocks", type=int, default=20, help="timed blocks (default 20)")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    if world.size < 2:
        sys.exit("sum64.py compares allreduces between ranks: run it with mpirun -n 2 or more")
    comm, library = Communicator.from_mpi(world), MpiLibrary(world)
    for operator in (SUM, OWN):
        problem = make_problem("allreduce", operator, options.mib * MIB // 4, world.size)
        x, out = problem.value(world.rank), problem.empty_result()
        methods: list[Method] = [Ours(comm, problem, prepared=prepared) for prepared in (True, False)]
        methods.append(LibraryCollective(library, problem) if operator is SUM else UserDefinedOp(library, problem))
        ways: dict[str, Call] = {method.name: method.run for method in methods if method.prepare(x, out)}
        compare(comm, f"{options.mib} MiB float32, {operator.name}", ways, options.blocks)


if __name__ == "__main__":
    main()
