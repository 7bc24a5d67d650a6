"""Run by test_peer_mapping on 3 ranks: values on devices inside a host by one kernel, in Triton's interpreter."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import mmap
import os
import sys

import numpy as np
import torch
import torch.distributed as dist

import topocomm
from attention import LOGSUMEXP
from tests.execute.device_cases import compare, count_tensors
from topocomm import SUM
from topocomm.execute.device.peer import peer_engine
from topocomm.execute.device.peer.peer_engine import PeerEngine
from topocomm.execute.transports.device import peer_mapping
from topocomm.execute.transports.device.peer_mapping import PeerFacts


class SharedMapping(peer_mapping.Mapping):
    """Memory files that processes of one host map."""

    def offer(self):
        self.file = os.memfd_create("peer")
        os.truncate(self.file, self.size_bytes)
        return f"/proc/{os.getpid()}/fd/{self.file}"

    def open(self, offers, facts):
        self.mapped = []
        for path in offers:
            with open(path, "r+b") as file:
                self.mapped.append(np.frombuffer(mmap.mmap(file.fileno(), self.size_bytes), np.uint8))
        return [memory.ctypes.data for memory in self.mapped]

    def leave(self):
        events.append("leave")

    def free(self):
        events.append("free")
        os.close(self.file)


assert interpreted
events = []
torch.set_num_threads(1)
dist.init_process_group("gloo")
me, size = dist.get_rank(), dist.get_world_size()
count_tensors(me, size)
peer_mapping.MAPPINGS["shared"] = SharedMapping
peer_mapping.peer_facts = lambda device, group: PeerFacts(
    "host", os.getpid(), str(me), 0, f"GPU {me}", 2, ["shared"], []
)

with topocomm.Communicator.from_torch() as comm:
    compare(comm)
    assert comm.session.device_path.transport is None and comm.session.device_path.peer is not None
    x = torch.arange(6.0).reshape(2, 3) + me
    call = comm.prepare("allreduce", like=x, operator=SUM)
    assert isinstance(call.engines[0], PeerEngine)
    assert call.input is not None
    call.input.copy_(x)
    assert torch.equal(call(call.input), sum(torch.arange(6.0).reshape(2, 3) + rank for rank in range(size)))
    odd = torch.randn((2, 3), generator=torch.Generator().manual_seed(me)) * 10.0 ** (3 * me)
    in_host_memory = comm.prepare("allreduce", like=odd.numpy(), operator=SUM, plan=call.plan)
    assert torch.equal(call(odd), torch.from_numpy(in_host_memory(odd.numpy())))  # the same bits
    total = call(x)
    assert call(x, out=x) is x and torch.equal(x, total)
    shifted = torch.zeros(13)[1:7].view(2, 3)  # memory that the kernel does not read as it is
    shifted.copy_(torch.ones(2, 3))
    assert torch.equal(call(shifted, out=shifted), torch.full((2, 3), float(size)))
    strided = torch.ones(3, 2).T
    assert torch.equal(call(strided, out=torch.empty(3, 2).T), torch.full((2, 3), float(size)))
    rows = torch.arange(6.0)
    part = rows[1:3]  # lies under the value
    third = comm.reduce_scatter(rows, SUM, out=part)
    assert torch.equal(third, size * torch.arange(6.0)[2 * me : 2 * me + 2])
    partial = {"out": torch.ones(4, 5), "lse": torch.full((4,), -torch.inf)}
    merged = comm.allreduce(partial, LOGSUMEXP, order="canonical", shards=None)
    assert torch.equal(merged["out"], torch.zeros(4, 5))
    sharded = {name: part.repeat(me + 1, *[1] * part.dim()) for name, part in partial.items()}
    first = me * (me + 1) // 2
    merged = comm.allreduce(sharded, LOGSUMEXP, order="canonical", shards=(first, first + me + 1))
    assert torch.equal(merged["lse"], partial["lse"])
    long = torch.ones(peer_engine.MOST_BYTES // 4 + 1)
    by_host = comm.prepare("allreduce", like=long, operator=SUM)
    assert not isinstance(by_host.engines[0], PeerEngine)
    assert torch.equal(by_host(long), torch.full_like(long, size))
    comm.synchronize()
assert events == ["leave", "free"]
sys.stdout.write(f"[{me}] ok\n")
sys.exit(0)
