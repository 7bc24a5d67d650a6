"""Run by test_torch_collectives: every collective on groups of several sizes, in shared memory and by messages."""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import topocomm
from tests.execute.collective_cases import CASES, canonical
from tests.machines import ways
from tests.torch_jobs import round_trip
from topocomm import SUM

torch.set_num_threads(1)
dist.init_process_group("gloo")
me, world = dist.get_rank(), dist.get_world_size()


def shift(comm):
    sizes = [17 + (rank % 3) for rank in range(comm.size)]
    held, other = np.full(sizes[comm.rank], comm.rank, np.uint8), np.full(20, 255, np.uint8)
    held.flags.writeable = False
    exchange = comm.prepare_shift()
    before = (comm.rank - 1) % comm.size
    for _ in range(2):
        exchange.start([held], [other[: sizes[before]]])
        exchange.advance()
        exchange.wait()
    assert np.all(other[: sizes[before]] == before)


def records(comm):
    """Notes longer than one part."""
    record = np.random.default_rng(comm.rank).integers(0, 256, 150_000, np.uint8)
    for rank, found in enumerate(comm.allgather_bytes(record)):
        np.testing.assert_array_equal(found, np.random.default_rng(rank).integers(0, 256, 150_000, np.uint8))


for size in sorted({1, 2, 3, world}):
    group = dist.new_group(list(range(size)))
    if me < size:
        bits = set()
        for way, topology in ways(size).items():
            with topocomm.Communicator.from_torch(group, topology) as comm:
                assert (comm.rank, comm.size) == (me, size)
                assert (
                    len(set(comm.session.transport.hosts))
                    == {"shared": 1, "messages": size, "two levels": min(2, size)}[way]
                )
                for case in CASES:
                    case(comm)
                bits.add(canonical(comm))
                shift(comm)
                records(comm)
        assert len(bits) == 1
    dist.barrier()
total = torch.ones(1)
dist.all_reduce(total)  # the program's own traffic goes on
assert total.item() == world

mesh = topocomm.Communicator.from_torch(init_device_mesh("cpu", (world,)))  # not closed: it ends with the process
assert np.all(mesh.allreduce(np.ones(2), SUM) == world)
round_trip()
sys.stdout.write(f"[{me}] ok\n")  # in one piece, also where torchrun has Python write through
sys.exit(0)
