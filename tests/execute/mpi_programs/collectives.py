"""Run by test_mpi under mpirun: every collective on NumPy and torch, in shared memory and by messages."""

import sys
import tracemalloc

import numpy as np
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP
from tests.concatenation import CONCAT, in_order, spelled, word
from topocomm import MAX, SUM

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def check(comm):
    x = np.arange(12.0).reshape(3, 4) + rank
    base = np.arange(12.0).reshape(3, 4)
    total = base * size + size * (size - 1) / 2
    for _ in range(5):
        np.testing.assert_array_equal(comm.allreduce(x, SUM), total)
        np.testing.assert_array_equal(comm.allreduce(x, MAX), base + size - 1)
        reduced = comm.reduce(x, SUM, root=size - 1)
        assert (reduced is None) == (rank != size - 1)
        np.testing.assert_array_equal(comm.broadcast(x, root=size // 2), base + size // 2)
        comm.barrier()
    assert spelled(comm.allreduce(word(rank, 3), CONCAT)) == [in_order(size)] * 3
    large = np.full(3_000_000, rank + 1.0)  # above the shared-memory limit: by messages, in chunks
    result = comm.allreduce(large, SUM, out=large)
    assert result is large and np.all(large == size * (size + 1) / 2)
    same_bits(comm)


def same_bits(comm):
    """Sums of random floats: equal bits on every rank and on every repetition."""
    x = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)
    results = [comm.allreduce(x, SUM).tobytes() for _ in range(20)]
    assert len(set(results)) == 1
    assert len(set(world.allgather(results[0]))) == 1


def no_growth(comm):
    """1,000 prepared calls leave nothing behind. (Without snapshots: they take blocks from free lists themselves.)"""
    partial = {"out": np.ones((32, 8), np.float32), "lse": np.zeros(32, np.float32)}
    for operator, x in ((SUM, {"value": np.ones((32, 8), np.float32)}), (LOGSUMEXP, partial)):
        out = {name: np.empty_like(array) for name, array in x.items()}
        call = comm.prepare("allreduce", like=x, operator=operator)
        tracemalloc.start()
        kept = np.zeros(5, np.int64)  # an int in a list would be a block of its own
        for window in range(5):
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(1000):
                call(x, out=out)
            kept[window] = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert min(kept) <= 0, f"{operator.name}: {kept} bytes stay after 1,000 prepared calls each"


def shift(comm):
    held, other = np.full(100_000, rank, np.uint8), np.empty(100_000, np.uint8)
    exchange = comm.prepare_shift(held, other)
    exchange.start()
    exchange.wait()
    assert np.all(other == (rank - 1) % size)


with topocomm.Communicator.from_mpi(world) as shared:
    assert shared.transport.one_host
    check(shared)
    no_growth(shared)
    shift(shared)
topocomm.execute.make_lanes.SHARED_LIMIT_BYTES = -1
with topocomm.Communicator.from_mpi(world) as messages:
    check(messages)
    no_growth(messages)
if rank == 0:
    print(f"collectives: {size} ranks ok")
sys.exit(0)
