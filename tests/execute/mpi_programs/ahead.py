"""Run by test_faults with how ranks exchange data: how many broadcasts the root finishes while the last rank sleeps."""

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import topocomm
from tests.machines import ways

CALLS = 12
world = MPI.COMM_WORLD
last = world.size - 1
file = Path(sys.argv[2])
with topocomm.Communicator.from_mpi(world, ways(world.size)[sys.argv[1]]) as comm:
    call = comm.prepare("broadcast", like=np.zeros(5))
    call(np.zeros(5))
    comm.barrier()
    for number in range(1, CALLS + 1):
        if world.rank == last and number == 3:  # it has finished two calls
            time.sleep(0.5)
            finished = int(file.read_text())
            sys.stdout.write(f"ahead {finished - 2}\n")
        got = call(np.full(5, float(number)) if world.rank == 0 else None)
        assert got.tolist() == [number] * 5
        if world.rank == 0:
            beside = file.with_suffix(".new")
            beside.write_text(str(number))
            beside.replace(file)
