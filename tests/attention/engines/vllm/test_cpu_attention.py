"""One layer of one step on several ranks, against float64 attention of every request."""

import pytest
import torch

from attention import Spec
from attention.engines.vllm.cpu_attention import attend_step, keep, split_cache
from attention.engines.vllm.cpu_exchange import HeadExchange
from attention.engines.vllm.cpu_slots import Share
from tests.attention.engines.vllm.steps import batch_on, cache_on, exact_step, requests_of
from topocomm import run_local

HEADS, D = 2, 16

STEPS = {
    "decodes": [(5, 1), (61, 1), (0, 1), (23, 1)],
    "prompts": [(0, 9), (0, 2), (0, 40)],
    "a part of a prompt": [(33, 17)],
    "all at once": [(0, 9), (30, 1), (13, 20), (1, 2), (0, 1), (7, 1)],
}


@pytest.mark.parametrize("spec", [Spec(), Spec(scale=0.7, softcap=3.0)], ids=["plain", "softcap"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (2, 1), (2, 4), (3, 8)])
def test_a_step_is_attention_over_all_ranks_caches(ranks, interleave, step, spec):
    """Caches hold NaN where nothing was written, and each rank's a part of the tokens, the new ones included."""
    requests = requests_of(*STEPS[step])
    random = torch.Generator().manual_seed(2)
    tokens = int(requests.starts[-1])
    q = torch.randn(tokens, ranks * HEADS, D, generator=random) * 2
    keys, values = ([torch.randn(n, 1, D, generator=random) for n in requests.lengths] for _ in range(2))
    new = [torch.cat([x[row][before:] for row, (before, _) in enumerate(requests.sizes)]) for x in (keys, values)]

    def on_rank(comm):
        own = slice(comm.rank * HEADS, (comm.rank + 1) * HEADS)
        share = Share(ranks, comm.rank, interleave)
        batch, cache = batch_on(requests, share), cache_on(requests, share, keys, values)
        pages = split_cache(cache)
        keep(pages, new, batch)
        out = torch.full((tokens + 2, HEADS, D), torch.nan)
        padded = torch.cat([q[:, own], torch.full((2, HEADS, D), torch.nan)])
        attend_step(padded, new, pages, batch, HeadExchange(comm), spec, out)
        return out, (~cache.isnan()).sum().item() // (2 * D)

    found = run_local(on_rank, ranks=ranks)
    exact = exact_step(requests, q, keys, values, spec)
    for rank, (out, _) in enumerate(found):
        own = exact[:, rank * HEADS : (rank + 1) * HEADS]
        torch.testing.assert_close(out[:tokens].double(), own, rtol=0, atol=1e-5)
        assert out[tokens:].isnan().all()  # padding is left alone
    kept = [count for _, count in found]
    assert sum(kept) == int(requests.lengths.sum())  # each token on one rank
    assert max(kept) - min(kept) <= interleave * len(requests.lengths)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_rounded_once(dtype):
    requests = requests_of((40, 1), (16, 24), (0, 18))
    random = torch.Generator().manual_seed(3)
    q, *pairs = (torch.randn(43, n, D, generator=random).to(dtype) for n in (2 * HEADS, 1, 1))
    keys, values = ([torch.randn(n, 1, D, generator=random).to(dtype) for n in requests.lengths] for _ in range(2))
    for x, of in zip(pairs, (keys, values), strict=True):
        for row, (before, new) in enumerate(requests.sizes):
            start = int(requests.starts[row])
            x[start : start + new] = of[row][before:]

    def on_rank(comm):
        share = Share(2, comm.rank, 1)
        batch, pages = batch_on(requests, share), split_cache(cache_on(requests, share, keys, values))
        keep(pages, pairs, batch)
        out = torch.empty(43, HEADS, D, dtype=dtype)
        own = q[:, comm.rank * HEADS : (comm.rank + 1) * HEADS]
        attend_step(own, pairs, pages, batch, HeadExchange(comm), Spec(), out)
        return out

    exact = exact_step(requests, q, keys, values, Spec())
    out = torch.cat(run_local(on_rank, ranks=2), 1).double()
    largest = max(x.abs().max() for x in values).item()
    torch.testing.assert_close(out, exact, rtol=0, atol=2 * torch.finfo(dtype).eps * largest)
