"""Run by test_mpi under mpirun -n 4: rank 1 makes another call than the rest."""

import os
import sys
import time

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import switch
from tests.plans import every_plan
from topocomm import SUM

what = sys.argv[1]
world = MPI.COMM_WORLD
comm = topocomm.Communicator.from_mpi(world, switch(world.size))
x = np.zeros(4)
plans = every_plan(comm.topology, "allreduce", SUM, SUM.layout({"value": (x.shape, x.dtype)}))
call = comm.prepare("allreduce", like=x, operator=SUM, plan=next(p for p in plans if p.algorithm == "binomial"))
call(x)
call(x)
comm.barrier()
odd = world.rank == 1
try:
    if odd and what.startswith("call"):
        call(x)
    elif (odd and what.startswith("barrier")) or what.endswith("barrier"):
        comm.barrier()
    else:
        comm.prepare("allreduce", like=np.zeros(9), operator=SUM)
except topocomm.TopocommError as error:
    print(f"[{world.rank}] {type(error).__name__}: {error}", flush=True)
    time.sleep(1)
os._exit(0)
