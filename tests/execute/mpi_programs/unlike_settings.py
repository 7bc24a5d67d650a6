"""Run by test_meeting under mpirun: rank 1 has another TOPOCOMM_CHECK than the others."""

import os

from mpi4py import MPI

from topocomm import Communicator, MismatchError

world = MPI.COMM_WORLD
if world.rank == 1:
    os.environ["TOPOCOMM_CHECK"] = "always"
try:
    Communicator.from_mpi(world)
except MismatchError as error:
    print(f"[{world.rank}] {error}", flush=True)
