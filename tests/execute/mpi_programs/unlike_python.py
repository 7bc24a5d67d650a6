"""Rank 1 says that it runs another version of Python: rules cannot be compared, and the rest still is."""

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm.execute.setup import handshake

world = MPI.COMM_WORLD
if world.rank == 1:
    handshake.version_info = (3, 99)
comm = topocomm.Communicator.from_mpi(world)
rules = [lambda a, b: {"x": a["x"] + b["x"]}, lambda a, b: {"x": b["x"] + a["x"]}]
op = topocomm.Operator("own", (topocomm.Field("x"),), rules[world.rank], 0)
print(f"[{world.rank}] {comm.session.same_python} {comm.allreduce(np.ones(2), op).tolist()}", flush=True)
comm.close()
