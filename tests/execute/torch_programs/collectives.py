"""Run by test_torch_group on 8 ranks: every collective on groups of several sizes, in shared memory and by messages."""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import topocomm
from attention import LOGSUMEXP
from tests.concatenation import CONCAT, in_order, spelled, word
from topocomm import MAX, SUM

torch.set_num_threads(1)
dist.init_process_group("gloo")
me, world = dist.get_rank(), dist.get_world_size()


def check(comm):
    rank, size = comm.rank, comm.size
    x = np.arange(12.0).reshape(3, 4) + rank
    base = np.arange(12.0).reshape(3, 4)
    for _ in range(3):
        np.testing.assert_array_equal(comm.allreduce(x, SUM), base * size + size * (size - 1) / 2)
        np.testing.assert_array_equal(comm.allreduce(x, MAX), base + size - 1)
        reduced = comm.reduce(x, SUM, root=size - 1)
        assert (reduced is None) == (rank != size - 1)
        np.testing.assert_array_equal(comm.broadcast(x, root=size // 2), base + size // 2)
        comm.barrier()
    assert spelled(comm.allreduce(word(rank, 3), CONCAT)) == [in_order(size)] * 3
    for rows in (0, 1, 7):  # fewer rows than ranks, and not a multiple
        np.testing.assert_array_equal(comm.allreduce(np.full(rows, rank + 1.0), SUM), size * (size + 1) / 2)
    assert torch.equal(comm.allreduce(torch.ones(5, 3), SUM), torch.full((5, 3), float(size)))
    large = np.full(1_500_000, rank + 1.0)  # by messages in any case
    assert comm.allreduce(large, SUM, out=large) is large
    assert np.all(large == size * (size + 1) / 2)


def merged(comm):
    """A merge of partials of this rank's making: its bits do not depend on the way."""
    rng = np.random.default_rng(comm.rank)
    x = {"out": rng.standard_normal((32, 128), np.float32), "lse": rng.standard_normal(32).astype(np.float32)}
    result = comm.allreduce(x, LOGSUMEXP)
    return result["out"].tobytes() + result["lse"].tobytes()


def shift(comm):
    sizes = [17 + (rank % 3) for rank in range(comm.size)]
    held, other = np.full(sizes[comm.rank], comm.rank, np.uint8), np.full(20, 255, np.uint8)
    held.flags.writeable = False
    exchange = comm.prepare_shift(held, other)
    for _ in range(2):
        exchange.start()
        exchange.advance()
        exchange.wait()
    before = (comm.rank - 1) % comm.size
    assert np.all(other[: sizes[before]] == before)


def records(comm):
    """Notes longer than one part."""
    record = np.random.default_rng(comm.rank).integers(0, 256, 150_000, np.uint8)
    for rank, found in enumerate(comm.allgather_bytes(record)):
        np.testing.assert_array_equal(found, np.random.default_rng(rank).integers(0, 256, 150_000, np.uint8))


limit = topocomm.execute.make_lanes.SHARED_LIMIT_BYTES
for size in sorted({1, 2, 3, 4, world}):
    group = dist.new_group(list(range(size)))
    if me < size:
        bits = []
        for shared in (True, False):
            topocomm.execute.make_lanes.SHARED_LIMIT_BYTES = limit if shared else -1
            with topocomm.Communicator.from_torch(group) as comm:
                assert (comm.rank, comm.size) == (me, size)
                assert comm.transport.shares_memory == (size > 1)
                assert len(comm.topology.ranks) == size
                check(comm)
                bits.append(merged(comm))
            if shared:
                shift(again := topocomm.Communicator.from_torch(group))
                records(again)
                again.close()
        assert bits[0] == bits[1]
    dist.barrier()

mesh = topocomm.Communicator.from_torch(init_device_mesh("cpu", (world,)))  # not closed: it ends with the process
assert np.all(mesh.allreduce(np.ones(2), SUM) == world)
total = torch.ones(1)
dist.all_reduce(total)  # the program's own traffic goes on
assert total.item() == world
print(f"[{me}] ok", flush=True)
sys.exit(0)
