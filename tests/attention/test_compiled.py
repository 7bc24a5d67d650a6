"""Attention calls in functions that torch.compile has compiled give the bits that they give in plain ones."""

import pytest
import torch

from attention import (
    ShardedKVCache,
    ShardMap,
    Spec,
    add_sinks,
    local_attention,
    prepare_decode,
    ring_attention,
    ring_decode,
    three_allreduce_decode,
    tree_decode,
)
from tests.thinning import covering
from topocomm import run_local

CAUSAL = Spec(causal=True, sinks=[0.5, -1.0, 0.0, 2.0])


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def arrays(comm):
    """q, k and v of this rank, and the positions of its tokens."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 12, 8, generator=generator) for heads in (4, 2, 2))
    mine = torch.arange(comm.rank, 12, comm.size)
    return q[:, :, mine], k[:, :, mine], v[:, :, mine], mine


def decoded(comm, q, k, v, mine):
    """Every sharded call, and what computes the shard alone, with torch's operations before and after."""
    q, at = comm.broadcast(q[:, :, -1:] * 2), torch.tensor([11])
    options = {"spec": CAUSAL, "q_positions": at, "kv_positions": mine}
    ways = [decode(q + 1, k, v, comm, **options) * 2 for decode in (tree_decode, ring_decode, three_allreduce_decode)]
    step = prepare_decode(comm, q, CAUSAL, like_kv=(k, v), like_positions=(at, mine)).step
    stepped = step(q + 1, k, v, q_positions=at, kv_positions=mine, return_lse=True)
    alone = add_sinks(local_attention(q + 1, k, v), CAUSAL.sinks)
    cache = ShardedKVCache(ShardMap(1), 0)
    cache.append(k * 2, v)
    return [*ways, stepped.out - 1, stepped.lse, alone.out * alone.lse[..., None], cache.k + 1]


def trained(comm, q, k, v, mine):
    """Gradients of what is computed with them, taken inside."""
    own = [x.clone().requires_grad_() for x in (q, k, v)]
    ring_attention(*own, comm, spec=Spec(causal=True), positions=mine).square().sum().backward()
    same = comm.broadcast(q[:, :, -1:]).requires_grad_()
    tree_decode(same * 2, own[1], own[2], comm).square().sum().backward()
    return [x.grad for x in (*own, same)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo looks at all it can reach
@pytest.mark.parametrize(
    ("call", "ranks", "backend"), covering([decoded, trained], [1, 2, 3], ["eager", "aot_eager"], long=["aot_eager"])
)
def test_calls_in_a_compiled_function(call, ranks, backend):
    def work(comm):
        inputs = comm, *arrays(comm)
        return call(*inputs), torch.compile(call, backend=backend)(*inputs)

    for plain, compiled in run_local(work, ranks=ranks):
        assert len(plain) == len(compiled) > 3
        assert all(torch.equal(*pair) for pair in zip(plain, compiled, strict=True))
