"""Run by test_torch on 2 ranks: what attention takes as `comm` under torch.distributed."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from attention import tree_decode
from attention.decode.sharded import ShardedCall

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
q, k, v = torch.randn(1, 4, 1, 16), torch.randn(1, 2, 33, 16), torch.randn(1, 2, 33, 16)
own = slice(33 * rank // size, 33 * (rank + 1) // size)
shard = [x[:, :, own].contiguous() for x in (k, v)]
whole = torch.nn.functional.scaled_dot_product_attention(
    q.double(), *(x.double().repeat_interleave(2, 1) for x in (k, v))
)
mesh = init_device_mesh("cpu", (size,))
general, begin = [], ShardedCall.begin
ShardedCall.begin = lambda *given: general.append(given) or begin(*given)
results = [tree_decode(q, *shard, comm) for comm in (dist.group.WORLD, mesh) * 3]
assert len(general) == 2, "a step is prepared once for a communicator, and then takes the shortest way"
assert all(torch.equal(result, results[0]) for result in results)
torch.testing.assert_close(results[0].double(), whole, atol=1e-6, rtol=0)
sys.stdout.write(f"[{rank}] ok\n")  # in one piece, also where torchrun has Python write through
