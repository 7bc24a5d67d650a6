"""Run by test_mpi under mpirun -n 3: rank 1 does not come, and the others do not catch their errors."""

import time

import numpy as np
from mpi4py import MPI

from topocomm import SUM, Communicator

comm = Communicator.from_mpi(MPI.COMM_WORLD)
comm.barrier()
if comm.rank == 1:
    time.sleep(60)
comm.allreduce(np.zeros(2), SUM)
