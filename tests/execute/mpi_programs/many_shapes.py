"""More shapes than this process may have files, with a prepared call held and one under way meanwhile."""

import itertools
import math
import os
import resource
import statistics
import time

import numpy as np
from mpi4py import MPI

from topocomm import SUM, Communicator

ITEMS = 720
"""Of every array, so that one plan serves all shapes."""
SHAPES = 700
MOST_FILES = 256

resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
divisors = [n for n in range(1, ITEMS + 1) if ITEMS % n == 0]
thirds = [cut for cut in itertools.product(divisors, repeat=3) if ITEMS % math.prod(cut) == 0]
shapes = [(*cut, ITEMS // math.prod(cut)) for cut in thirds]
comm = Communicator.from_mpi(MPI.COMM_WORLD)
held = comm.prepare("allreduce", like=np.zeros(3), operator=SUM)
later = comm.prepare("reduce", like=np.zeros(5), operator=SUM, root=0)
took_s = []
handle = later.start(np.full(5, comm.rank + 1.0))
for number, shape in enumerate(shapes[:SHAPES]):
    x = np.full(shape, comm.rank + number + 0.5)
    began_s = time.perf_counter()
    result = comm.allreduce(x, SUM)
    took_s.append(time.perf_counter() - began_s)
    expected = sum(rank + number + 0.5 for rank in range(comm.size))
    assert result.shape == shape and (result == expected).all(), (shape, result.ravel()[0], expected)
    assert (held(np.full(3, float(number))) == comm.size * number).all(), number
total = handle.wait()
assert comm.rank != 0 or (total == comm.size * (comm.size + 1) / 2).all(), total
os.close(os.open(os.devnull, os.O_RDONLY))  # there are files left for the program
files, calls = len(os.listdir("/proc/self/fd")), len(comm._calls)
for result in comm.allgather_bytes(np.array([files, calls])[None].view(np.uint8)[0]):
    assert result.view(np.int64)[0] < MOST_FILES / 2, result.view(np.int64)
if comm.rank == 0:
    print(f"many shapes ok: {files} files, {calls} calls, median {1e3 * statistics.median(took_s):.2f} ms")
comm.close()
