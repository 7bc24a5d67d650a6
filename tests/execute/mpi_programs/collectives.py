"""Run by test_mpi: every collective on NumPy and torch, in shared memory, by messages and in two levels."""

import sys
import tracemalloc

import numpy as np
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP
from tests.execute.collective_cases import CASES, canonical
from tests.machines import ways
from topocomm import SUM

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
GROUPS = {"shared": 1, "messages": size, "two levels": min(2, size)}
WATCHED = {1: ("shared",), 2: ("shared", "messages"), 3: ("two levels",)}
"""Where thousands of calls are watched: every way once, on the fewest ranks that have it."""


def same_bits(comm):
    """Sums of random floats: equal bits on every rank and on every repetition."""
    x = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)
    results = [comm.allreduce(x, SUM).tobytes() for _ in range(20)]
    assert len(set(results)) == 1
    assert len(set(world.allgather(results[0]))) == 1


def no_growth(comm):
    """Prepared calls leave no object behind. (Without snapshots: they take blocks from free lists themselves.)

    Some bytes a call may stay: tuples of generators end up in the interpreter's free lists, up to 2,000 of a length.
    """
    calls = 300  # more than the recorder keeps
    partial = {"out": np.ones((32, 8), np.float32), "lse": np.zeros(32, np.float32)}
    for operator, x in ((SUM, {"value": np.ones((32, 8), np.float32)}), (LOGSUMEXP, partial)):
        out = {name: np.empty_like(array) for name, array in x.items()}
        call = comm.prepare("allreduce", like=x, operator=operator)
        for _ in range(2000):  # until the interpreter's free lists are full
            call(x, out=out)
        tracemalloc.start()
        kept = np.zeros(3, np.int64)  # an int in a list would be a block of its own
        for window in range(3):
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(calls):
                call(x, out=out)
            kept[window] = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert min(kept) < 8 * calls, f"{operator.name}: {kept} bytes stay after {calls} prepared calls each"


def measured(comm):
    """Every rank has the same figures of all pairs."""
    found = topocomm.measure(comm)
    assert len(set(world.allgather(found.digest))) == 1
    pairs = found.facts["ping_pong"]["rank_pairs"]
    assert len(pairs) == size * (size - 1) // 2 and min(pair["gb_per_s"] for pair in pairs) > 0


def shift(comm):
    held, other = np.full(100_000, rank, np.uint8), np.empty(100_000, np.uint8)
    exchange = comm.prepare_shift()
    exchange.start([held], [other])
    exchange.wait()
    assert np.all(other == (rank - 1) % size)


bits = set()
for way, topology in ways(size).items():
    if size > 4 and way == "messages":  # between the hosts of the two levels there are messages too
        continue
    with topocomm.Communicator.from_mpi(world, topology) as comm:
        assert len(set(comm.session.transport.hosts)) == GROUPS[way], comm.session.transport.hosts
        for case in CASES:
            case(comm)
        bits.add(canonical(comm))
        same_bits(comm)
        if way in WATCHED.get(size, ()):
            no_growth(comm)
        shift(comm)
with topocomm.Communicator.from_mpi(world) as comm:
    if size > 1:
        measured(comm)
assert len(set().union(*world.allgather(bits))) == 1
if rank == 0:
    print(f"collectives: {size} ranks ok")
sys.exit(0)
