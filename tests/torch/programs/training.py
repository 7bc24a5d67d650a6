"""DDP, FSDP2, DTensor, compiled functional collectives and a transformers model: on our backend as on gloo.

    torchrun --nproc-per-node N training.py PART...    parts by name, or all

With 2 ranks every sum has two terms, and results must be equal bit by bit; with more they may differ by rounding.
"""

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import topocomm.torch  # noqa: F401 - registers the backend

WIDTH, STEPS = 32, 3


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def trained(module, group):
    """The parameters after a few steps on this rank's data, and the losses."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank(group))
        batch = torch.randn(5, WIDTH, generator=generator)
        loss = (module(batch) - batch.roll(1, 1)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
    return [*[p.detach().clone() for p in whole], torch.stack(losses)]


def ddp(group, mesh):
    """Two buckets at least, one of unused parameters; and gradients accumulated without synchronisation."""
    module = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.01, find_unused_parameters=True)
    with module.no_sync():
        module(torch.ones(1, WIDTH)).sum().backward()
    return trained(module, group)


def fsdp(group, mesh):
    module = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return trained(fully_shard(module, mesh=mesh), group)


def dtensor(group, mesh):
    torch.manual_seed(1)
    whole = torch.randn(8, 12)
    rows, columns = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(whole, mesh, [Shard(1)])
    partial = DTensor.from_local(whole * (dist.get_rank(group) + 1), mesh, [Partial()])
    results = [
        rows.redistribute(mesh, [Replicate()]).to_local(),
        rows.redistribute(mesh, [Shard(1)]).to_local(),
        partial.redistribute(mesh, [Shard(0)]).full_tensor(),
        partial.full_tensor(),
        (rows + columns.redistribute(mesh, [Shard(0)])).full_tensor(),
        (rows @ columns.T.redistribute(mesh, [Replicate()])).full_tensor(),
        rows.sum().full_tensor(),
        torch.nn.functional.softmax(columns, 1).full_tensor(),
    ]
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    sharded = parallelize_module(model()[:3], mesh, plan)
    sharded(torch.ones(2, WIDTH)).sum().backward()
    return [*results, *[p.grad.full_tensor() for p in sharded.parameters()]]


def compiled(group, mesh):
    """Functional collectives as torch.compile traces them, and dist.all_reduce, which it turns into one."""

    def step(x):
        x = functional.all_reduce(x * 2, "sum", group)
        x = functional.all_gather_tensor(x + 1, 0, group)
        x = functional.reduce_scatter_tensor(x, "max", 0, group)
        y = functional.all_to_all_single(x, None, None, group)
        z = functional.broadcast(y + dist.get_rank(group), 0, group)
        dist.all_reduce(z, op=dist.ReduceOp.AVG, group=group) if group is dist.group.WORLD else None
        return x.sin() + y, z

    size = dist.get_world_size(group)
    x = torch.arange(6.0 * size).reshape(2 * size, 3) + dist.get_rank(group)
    plain, fast = step(x.clone()), torch.compile(step, backend=os.environ.get("COMPILER", "aot_eager"))(x.clone())
    for left, right in zip(plain, fast, strict=True):
        torch.testing.assert_close(left, right)
    return list(plain[:1])


def tensor_parallel(group, mesh):
    """A small model of transformers with `tp_plan="auto"`, loaded from a folder that rank 0 writes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=128,
    )  # fmt: skip
    places = [tempfile.mkdtemp() if dist.get_rank(group) == 0 else None]
    dist.broadcast_object_list(places, group_src=0, group=group)
    tokens = torch.arange(10)[None] * 7 % 128
    if dist.get_rank(group) == 0:
        LlamaForCausalLM(config).save_pretrained(places[0])
    dist.barrier(group)
    with torch.inference_mode():
        expected = LlamaForCausalLM.from_pretrained(places[0])(tokens).logits
        sharded = LlamaForCausalLM.from_pretrained(places[0], tp_plan="auto", device_mesh=mesh)
        logits = sharded(tokens).logits
        written = sharded.generate(tokens, max_new_tokens=8, do_sample=False)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    return [logits, written]


PARTS = {f.__name__: f for f in (ddp, fsdp, dtensor, compiled, tensor_parallel)}


def main():
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("topocomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    meshes = init_device_mesh("cpu", (size,)), DeviceMesh.from_group(gloo, "cpu")
    for name in sys.argv[1:] or PARTS:
        ours, theirs = (PARTS[name](g, mesh) for g, mesh in zip((dist.group.WORLD, gloo), meshes, strict=True))
        for left, right in zip(ours, theirs, strict=True):
            tight = {"rtol": 0, "atol": 0} if size == 2 else {}
            torch.testing.assert_close(left, right, **tight)
        dist.barrier()
    dist.destroy_process_group()
    print(f"[{rank}] ok\n", end="", flush=True)


if __name__ == "__main__":
    main()
