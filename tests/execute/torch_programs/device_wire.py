"""Run by test_device_jobs on 3 ranks: values on devices over a process group of torch, with gloo in nccl's place."""

import sys

import torch
import torch.distributed as dist

import topocomm
from attention import LOGSUMEXP
from tests.execute.device_cases import compare, count_tensors
from tests.torch_jobs import round_trip
from topocomm.execute.transports.device import torch_device as torch_device

torch.set_num_threads(1)
dist.init_process_group("gloo")
me, size = dist.get_rank(), dist.get_world_size()
count_tensors(me, size)
torch_device.device_backend = lambda group: None if group is None else "gloo"


def as_one_sum(comm):
    """Merges on devices by one SUM, precise and repeated."""
    x = {"out": torch.full((4, 3), float(me)), "lse": torch.arange(4.0) - me}
    x["lse"][3] = -torch.inf
    call = comm.prepare_sum(like=x, operator=LOGSUMEXP)
    planned = comm.allreduce(x, LOGSUMEXP)
    for reference, repeated in ((torch.zeros(4), 0), (600.0, 1), (torch.ones(4), 1)):
        out = {name: torch.empty_like(part) for name, part in x.items()}
        got = call(x, reference=reference, out=out)
        assert got is out and call.repeated == repeated and call.moved_by == "plan"
        for name, part in planned.items():
            torch.testing.assert_close(got[name], part, rtol=2e-6, atol=0)


def rows_of_one_sum(comm):
    """Each rank's rows alone, precise and repeated, of equal and of other lengths."""
    x = {"out": torch.full((6, 2), 1.0 + me), "lse": torch.arange(6.0) * me}
    planned = comm.allreduce(x, LOGSUMEXP)
    for rows in (None, [1, 0, 5]):
        call = comm.prepare_sum(like=x, operator=LOGSUMEXP, collective="reduce_scatter", rows=rows)
        first, end = (sum((rows or [2, 2, 2])[:rank]) for rank in (me, me + 1))
        for reference, repeated in ((torch.arange(6.0), 0), (torch.full((6,), 300.0), 1), (5.0, 1)):
            got = call(x, reference=reference)
            assert call.repeated == repeated
            for name, part in planned.items():
                torch.testing.assert_close(got[name], part[first:end], rtol=2e-6, atol=1e-6)


with topocomm.Communicator.from_torch() as comm:
    compare(comm)
    assert comm.session.device_path.transport.name == "torch"
    own = torch.arange(6.0).view(3, 2) + me
    reduced, scattered, gathered = torch.empty(3, 2), torch.empty(1, 2), torch.empty(9, 2)
    for name, target in (("allreduce", reduced), ("reduce_scatter", scattered), ("allgather", gathered)):
        comm.session.device_path.transport.native(name, "float32", "sum")(own, target, None)
    assert torch.equal(reduced, 3 * torch.arange(6.0).view(3, 2) + 3)
    assert torch.equal(scattered, reduced[me : me + 1])
    as_one_sum(comm)
    rows_of_one_sum(comm)
    assert torch.equal(gathered[3:6], torch.arange(6.0).view(3, 2) + 1)
    part = comm.split(me % 2)
    compare(part)  # what is split off has no process group of its own
    assert part.session.device_path.transport is None or part.size == 1
    part.close()
total = torch.ones(1)
dist.all_reduce(total)  # the program's own traffic goes on
assert total.item() == size
group = dist.new_group([1, 2])
if me:
    with topocomm.Communicator.from_torch(group) as comm:  # whose ranks are not those of the default group
        compare(comm)
        assert comm.session.device_path.transport.name == "torch"
round_trip()
sys.stdout.write(f"[{me}] ok\n")
sys.exit(0)
