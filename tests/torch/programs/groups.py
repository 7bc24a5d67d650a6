"""Several groups at once, handles and futures in any order, and what gloo has no counterpart for."""

import random
import warnings

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions, _make_nccl_premul_sum
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout, timedelta

import topocomm.torch

Op = dist.ReduceOp


def reductions(rank, size):
    """Averages, scaled sums, bools, complex numbers, int16, and tensors that are not in one piece."""
    total = sum(range(1, size + 1))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32):
        x = torch.full((5,), 6 * (rank + 1), dtype=dtype)
        dist.all_reduce(x, Op.AVG)
        assert x.dtype == dtype and torch.equal(x, torch.full((5,), 6 * total / size).to(dtype)), x
    x = torch.ones(4) * (rank + 1)
    dist.all_reduce(x, _make_nccl_premul_sum(0.5))
    assert torch.equal(x, torch.full((4,), total / 2)), x
    given = torch.ones(2 * size) * (rank + 1)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, given, _make_nccl_premul_sum(torch.tensor([2.0])))
    assert torch.equal(out, torch.full((2,), 2.0 * total)) and torch.equal(given, torch.ones(2 * size) * (rank + 1))
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, Op.SUM)
    assert flags.tolist() == [True, True, False] and flags.view(torch.uint8).max() == 1
    z = torch.tensor([1 + 1j * rank, 2.0])
    dist.all_reduce(z)
    assert torch.equal(z, torch.tensor([size + 1j * (total - size), 2.0 * size]))
    short = torch.ones(3, dtype=torch.int16)
    dist.all_reduce(short)
    assert torch.equal(short, torch.full((3,), size, dtype=torch.int16))
    whole = torch.zeros(4, 6)
    whole[:, ::2] = rank + 1
    dist.all_reduce(whole[:, ::2])
    assert torch.equal(whole[:, ::2], torch.full((4, 3), float(total))) and whole[:, 1::2].abs().sum() == 0
    grid = torch.empty(2, 3).t()
    dist.broadcast(grid.copy_(torch.full((3, 2), float(rank))), src=size - 1)
    assert torch.equal(grid, torch.full((3, 2), size - 1.0))
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(parameter)
    assert torch.equal(parameter.detach(), torch.full((3,), float(size)))


def uneven(rank, size):
    outputs = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1, 2), float(rank)))
    assert all(torch.equal(out, torch.full((r + 1, 2), float(r))) for r, out in enumerate(outputs))
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [torch.ones(r + 1) * r for r in range(size)])
    assert torch.equal(out, torch.full((rank + 1,), float(rank * size)))
    given = [torch.full((r + 1,), float(rank)) for r in range(size)]
    got = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(got, given)
    assert all(torch.equal(part, torch.full((rank + 1,), float(r))) for r, part in enumerate(got))
    eighths = torch.full((2,), rank, dtype=torch.float32).to(torch.float8_e4m3fn)  # no NumPy dtype: moved as bytes
    places = [torch.empty_like(eighths) for _ in range(size)]
    dist.all_gather(places, eighths)
    assert [place.float().tolist() for place in places] == [[float(r)] * 2 for r in range(size)]


def handles(rank, size):
    """Calls under way on two groups, issued in opposite orders by odd ranks, awaited in any order."""
    groups = [dist.new_group(), dist.new_group(use_local_synchronization=True)]
    chance = random.Random(rank)
    for round_ in range(10):
        tensors = [torch.full((n,), float(rank + i)) for i, n in enumerate((3, 50_000))]
        works = {}
        for i in (0, 1) if rank % 2 else (1, 0):
            works[i] = [dist.all_reduce(tensors[i], group=groups[i], async_op=True)]
            works[i].append(dist.broadcast(tensors[i], 0, group=groups[i], async_op=True))
        order = [work for pair in works.values() for work in pair]
        chance.shuffle(order)
        for work in order:
            assert work.wait() and work.is_completed() and work.is_success()
        for i, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full_like(tensor, sum(r + i for r in range(size)))), (round_, i)
    seen = []
    x = torch.ones(2)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: seen.append(f.value()[0].clone()))
    future.wait()
    assert torch.equal(seen[0], torch.full((2,), float(size)))
    again = torch.ones(2)  # a call that another one's future makes
    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: dist.all_reduce(again)).wait()
    assert torch.equal(again, torch.full((2,), float(size)))


def direct_calls(rank, size):
    """Calls of a group's methods, as some programs and torch's own test cases make them."""
    group = dist.new_group()
    assert group._get_sequence_number_for_group() == 0
    x = torch.tensor([float(rank)])
    assert group.broadcast(x, root=size - 1).get_future().wait()[0].item() == size - 1
    places = [torch.empty(1) for _ in range(size)]
    assert group.allgather([places], [x]).get_future().wait() == [torch.tensor([size - 1.0])] * size
    gathered = group.gather([places] if rank == 0 else [], [x], root=0).get_future().wait()
    assert len(gathered) == (size if rank == 0 else 0)
    assert group._get_sequence_number_for_group() == 3
    wrong = BroadcastOptions()
    wrong.rootTensor = 1
    for call, words in (
        (lambda: group.allreduce_coalesced([]), "expected tensors, got an empty list"),
        (lambda: group.broadcast([x], wrong), "got root tensor 1"),
        (lambda: group.gather([places], [x], root=(rank + 1) % (size + 1)).wait(), "gather"),
    ):
        with pytest.raises(topocomm.TopocommError, match=words):
            call()


def subgroups(rank, size):
    mesh = init_device_mesh("cpu", (max(1, size // 2), min(2, size)), mesh_dim_names=("outer", "inner"))
    for name in ("outer", "inner"):
        group = mesh.get_group(name)
        assert dist.get_backend(group) == "topocomm" and isinstance(group, topocomm.torch.TopocommProcessGroup)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == mesh[name].size()
    last = dist.new_group([size - 1])
    if rank == size - 1:
        dist.barrier(last)
        dist.destroy_process_group(last)
    with dist._coalescing_manager(async_ops=True) as manager:
        a, b = torch.ones(3), torch.ones(5) * 2
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    assert a[0].item() == size and b[0].item() == 2 * size


def limits(rank, size):
    world = dist.group.WORLD
    _set_pg_timeout(timedelta(seconds=77), world)
    assert world.communicator.session.waiting.timeout_s == 77


def main():
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group("topocomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    for part in (reductions, uneven, handles, direct_calls, subgroups, limits):
        part(rank, size)
        dist.barrier()
    dist.destroy_process_group()
    print(f"[{rank}] ok\n", end="", flush=True)


if __name__ == "__main__":
    main()
