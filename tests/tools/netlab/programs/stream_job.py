"""Run by test_lab_jobs: sums one after the other, until something happens to the network or to a host.

Arguments: BYTES CALLS LIMIT_S [shrink]. Every rank prints `begun` after the third call, then how it ends.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm import SUM

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
n_bytes, calls, limit_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def say(text):
    sys.stdout.write(f"[{rank}] {text}\n")
    sys.stdout.flush()


comm = topocomm.Communicator.from_mpi(world)
comm.session.waiting.timeout_s = limit_s
x = np.full(n_bytes // 4, rank + 1.0, np.float32)
began_s = time.monotonic()
try:
    for call in range(calls):
        began_s = time.monotonic()
        result = comm.allreduce(x, SUM)
        assert (result == size * (size + 1) // 2).all()
        say(f"call {call} {time.monotonic() - began_s:.3f} s")
        if call == 2:
            say("begun")
except topocomm.TopocommError as error:
    say(f"{time.monotonic() - began_s:.1f} s {type(error).__name__}: {error}")
    if "shrink" not in sys.argv:
        world.Abort(3)
    comm = comm.shrink()
    left = sum(old + 1 for old in comm.parent_ranks)
    for _ in range(3):
        assert (comm.allreduce(x, SUM) == left).all()
    say(f"goes on as {comm.rank} of {comm.size}, before {comm.parent_ranks}")
comm.close()
