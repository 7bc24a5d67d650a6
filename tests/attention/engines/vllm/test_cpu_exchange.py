"""Queries to all ranks and partials back to the rank of each head, against the ranks' values side by side."""

import pytest
import torch

from attention import Partial, merge_states
from attention.engines.vllm.cpu_exchange import MOST_TOKENS, HeadExchange, message_parts
from topocomm import run_local

HEADS, D = 3, 8


def test_messages_have_few_sizes():
    assert message_parts(0) == []
    assert message_parts(1) == [(slice(0, 1), 1)]
    assert message_parts(5) == [(slice(0, 5), 8)]
    whole, rest = message_parts(MOST_TOKENS + 3)
    assert (whole, rest) == ((slice(0, MOST_TOKENS), MOST_TOKENS), (slice(MOST_TOKENS, MOST_TOKENS + 3), 4))
    assert {size for tokens in range(1, 3000) for _, size in message_parts(tokens)} == {1 << i for i in range(10)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, MOST_TOKENS, MOST_TOKENS + 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_the_queries_of_all_heads(ranks, tokens, dtype):
    q = torch.randn(tokens, ranks * HEADS, D, generator=torch.Generator().manual_seed(0)).to(dtype)

    def on_rank(comm):
        own = q[:, comm.rank * HEADS : (comm.rank + 1) * HEADS]
        return HeadExchange(comm).gather(own.transpose(0, 1))

    for found in run_local(on_rank, ranks=ranks):
        assert torch.equal(found, q.transpose(0, 1))


@pytest.mark.parametrize("tokens", [1, 4, 5, MOST_TOKENS + 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_rank_gets_its_heads_merged(ranks, tokens):
    """Some partials are empty; those that fill up a message change nothing."""
    random = torch.Generator().manual_seed(1)
    outs = torch.randn(ranks, ranks * HEADS, tokens, D, generator=random)
    lses = torch.randn(ranks, ranks * HEADS, tokens, generator=random) * 5
    lses[0, :, ::2], outs[0, :, ::2] = -torch.inf, 0

    def on_rank(comm):
        return HeadExchange(comm).merge(Partial(outs[comm.rank], lses[comm.rank]))

    whole = merge_states(outs, lses)
    for rank, found in enumerate(run_local(on_rank, ranks=ranks)):
        own = slice(rank * HEADS, (rank + 1) * HEADS)
        torch.testing.assert_close(found.out, whole.out[own], rtol=0, atol=1e-6)
        torch.testing.assert_close(found.lse, whole.lse[own], rtol=0, atol=1e-6)
