"""Run by test_device_jobs under mpirun: values on devices that are staged through host memory, in every way it goes."""

import sys

from mpi4py import MPI

from tests.execute.device_cases import compare, count_tensors
from tests.machines import ways
from topocomm import Communicator

world = MPI.COMM_WORLD
count_tensors(world.rank, world.size)
for way in ("shared", "two levels"):
    topology = ways(world.size)[way]
    with Communicator.from_mpi(world, topology) as comm:
        compare(comm)
        assert comm.session.device_path.transport is None
        assert "rank 0: " in comm.session.device_path.reason
sys.stdout.write(f"[{world.rank}] ok\n")
