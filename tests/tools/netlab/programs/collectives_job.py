"""Run by test_lab_jobs: every collective over the hosts of a lab, on discovered and on given topologies."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import topocomm
from attention import LOGSUMEXP
from tests.execute.collective_cases import CASES
from tools.netlab.commands import read_topology
from topocomm import MAX, SUM
from topocomm.operators.builtin import AFFINE

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
hosts = len(set(world.allgather(MPI.Get_processor_name())))
TERMS = size * (size + 1) // 2


def operators(comm, rows):
    """Operators on values whose results are known, long enough to be cut on the network."""
    ramp = np.arange(rows, dtype=np.float32) % 512
    np.testing.assert_array_equal(comm.allreduce(ramp + rank, SUM), size * ramp + size * (size - 1) // 2)
    np.testing.assert_array_equal(comm.allreduce(ramp * (rank + 1), MAX), ramp * size)
    # x -> 2x + k of every rank k in rank order: 2^size, and the sum of k 2^k in the order that does not commute
    maps = {"a": np.full(rows, 2.0), "b": np.full(rows, float(rank))}
    folded = comm.allreduce(maps, AFFINE)
    np.testing.assert_array_equal(folded["a"], np.full(rows, 2.0**size))
    orders = {sum(k * 2.0 ** (size - 1 - k) for k in range(size)), sum(k * 2.0**k for k in range(size))}
    assert len(set(folded["b"].tolist())) == 1 and folded["b"][0] in orders, folded["b"][:3]
    partial = {
        "out": np.full((rows // 64, 64), float(rank), np.float32),
        "lse": np.full(rows // 64, np.log(rank + 1.0), np.float32),
    }
    merged = comm.allreduce(partial, LOGSUMEXP)
    expected = sum(k * (k + 1) for k in range(size)) / TERMS
    np.testing.assert_allclose(merged["out"], expected, rtol=1e-5)
    np.testing.assert_allclose(merged["lse"], np.log(TERMS), rtol=1e-5)


for topology in (None, read_topology(Path(sys.argv[1]))):
    with topocomm.Communicator.from_mpi(world, topology) as comm:
        assert len(set(comm.session.transport.hosts)) == hosts, comm.session.transport.hosts
        for case in CASES:
            case(comm)
        for rows in (64, 1 << 16):
            operators(comm, rows)
        # bits: the same on every rank, and in every repetition
        x = np.random.default_rng(rank).standard_normal(100_000).astype(np.float32)
        results = {comm.allreduce(x, SUM).tobytes() for _ in range(3)}
        assert len(results) == 1 and len(set(world.allgather(results.pop()))) == 1
print(f"[{rank}] ok on {hosts} hosts", flush=True)
