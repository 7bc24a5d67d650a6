"""Every collective on values in device memory and on the same values in host memory, side by side on one communicator.

For real processes, whose torch tensors count as device memory by `count_tensors`.
"""

import threading

import torch

from attention import LOGSUMEXP
from tests.execute.fake_device import devices_of
from tests.execute.transports.recording_nccl import World
from topocomm import SUM
from topocomm.execute.device import device_library as device
from topocomm.operators.tensors import as_array


def count_tensors(rank, size):
    """Have torch's tensors of this process count as those of a device of its own; no NCCL goes with it."""
    threading.current_thread().name = f"rank{rank}"
    device.device_of = devices_of(World(size))


def same(found, expected):
    if expected is None:
        assert found is None
        return
    parts = [(found, expected)] if not isinstance(expected, dict) else [(found[k], expected[k]) for k in expected]
    for one, other in parts:
        assert isinstance(one, torch.Tensor)
        torch.testing.assert_close(one, torch.as_tensor(other), rtol=3e-6, atol=1e-6)


def compare(comm):
    """All collectives, twice, on one array and on several."""
    draw = torch.Generator().manual_seed(comm.rank)
    bare = torch.randn((comm.size + 2, 3), generator=draw)
    partial = {"out": torch.randn((6, 5), generator=draw), "lse": torch.randn(6, generator=draw)}
    for x, op in ((bare, SUM), (partial, LOGSUMEXP)):
        host = {name: as_array(part) for name, part in x.items()} if isinstance(x, dict) else as_array(x)
        for _ in range(2):
            same(comm.allreduce(x, op), comm.allreduce(host, op))
            same(comm.reduce(x, op, root=comm.size - 1), comm.reduce(host, op, root=comm.size - 1))
            same(comm.broadcast(x, root=0), comm.broadcast(host, root=0))
            same(comm.reduce_scatter(x, op), comm.reduce_scatter(host, op))
            same(comm.allgather(x), comm.allgather(host))
            same(comm.gather(x, root=comm.size - 1), comm.gather(host, root=comm.size - 1))
            same(comm.scatter(x, root=0), comm.scatter(host, root=0))
            same(comm.alltoall(x), comm.alltoall(host))
            rows = [len(host["lse"] if isinstance(host, dict) else host), *[0] * (comm.size - 1)]
            same(comm.alltoall(x, rows=rows), comm.alltoall(host, rows=rows))
            same(comm.scan(x, op), comm.scan(host, op))
            same(comm.exscan(x, op), comm.exscan(host, op))
    call = comm.prepare("allreduce", like=bare, operator=SUM)
    handle = call.start(bare)
    same(handle.wait(), comm.allreduce(as_array(bare), SUM))
    comm.synchronize()
