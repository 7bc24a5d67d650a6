"""Run by test_faults with how ranks exchange data: rank 1 stops in a stream of calls; rank 0 ends it afterwards."""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways
from topocomm import SUM

world = MPI.COMM_WORLD
comm = topocomm.Communicator.from_mpi(world, ways(world.size)[sys.argv[1]])
x = np.full(3, 1.0)
processes = world.allgather(os.getpid())
for _ in range(3):
    comm.allreduce(x, SUM)
comm.session.waiting.timeout_s = 1.0
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    comm.allreduce(x, SUM)
except topocomm.TopocommError as error:
    sys.stdout.write(f"[{world.rank}] {type(error).__name__}: {error}\n")
    sys.stdout.flush()
    time.sleep(1)
if world.rank == 0:
    os.kill(processes[1], signal.SIGKILL)
os._exit(1)
