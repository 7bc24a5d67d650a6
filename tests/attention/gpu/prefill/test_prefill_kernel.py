import numpy as np
import pytest
import torch

from attention import Partial, Spec, merge_states
from attention.gpu.prefill.prefill import prefill_partial
from tests.attention.gpu.prefill_cases import assert_partial, expected, tensors, use_tile

pytestmark = pytest.mark.long
CAUSAL = Spec(causal=True)


def clone(partial):
    return Partial(partial.out.clone(), partial.lse.clone())


@pytest.fixture(autouse=True, params=[(16, 16), (64, 32)], ids=str)
def tile(request, monkeypatch):
    use_tile(monkeypatch, *request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "spec", [Spec(), CAUSAL, Spec(causal=True, window=11, softcap=3.0)], ids=["plain", "causal", "all"]
)
def test_hops_make_the_whole(spec, dtype):
    q, k, v = tensors(2, 1, 2, 33, 90, 16, 24, dtype=dtype)
    cuts = [(60, 90), (0, 25), (25, 25), (25, 60)]
    running = None
    for begin, end in cuts:
        shard = (q, k[:, :, begin:end], v[:, :, begin:end])
        found = prefill_partial(*shard, spec=spec, q_positions=57, kv_positions=begin, merge_into=running)
        assert running is None or found.out is running.out
        running = found
    assert_partial(running, expected(q, k, v, spec=spec, q_positions=57, kv_positions=0), v)


def test_it_is_the_merge_of_both():
    q, k, v = tensors(2, 2, 1, 20, 40, 16)
    rng = np.random.default_rng(0)
    before = Partial(
        torch.from_numpy(rng.standard_normal((2, 2, 20, 16), dtype=np.float32)),
        torch.from_numpy(rng.normal(0, 20, (2, 2, 20)).astype(np.float32)),
    )
    before.lse[:, :, ::7] = -torch.inf
    before.out[:, :, ::7] = torch.nan
    positions = {"q_positions": torch.arange(20) - 5, "kv_positions": torch.arange(40)}
    alone = prefill_partial(q, k, v, spec=CAUSAL, **positions)
    both = merge_states([before.out, alone.out], [before.lse, alone.lse])
    got = prefill_partial(q, k, v, spec=CAUSAL, **positions, merge_into=clone(before))
    torch.testing.assert_close(got.out, both.out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got.lse, both.lse, rtol=3e-7, atol=1e-6)
    unseen = alone.lse == -torch.inf
    there = before.lse != -torch.inf
    assert unseen.any() and (unseen & ~there).any()
    assert torch.equal(got.lse[unseen], before.lse[unseen])  # bit for bit
    assert torch.equal(got.out[unseen & there], before.out[unseen & there])
    assert (got.out[unseen & ~there] == 0).all()
    assert torch.equal(got.out[~there], alone.out[~there]) and torch.equal(got.lse[~there], alone.lse[~there])


def test_nothing_new_leaves_a_partial_as_it_is():
    q, k, v = tensors(1, 1, 2, 20, 30, 16)
    before = prefill_partial(q, k, v)
    for shard, options in (((k[:, :, :0], v[:, :, :0]), {}), ((k, v), {"kv_mask": torch.zeros(30, dtype=torch.bool)})):
        got = prefill_partial(q, *shard, **options, merge_into=clone(before))
        assert torch.equal(got.out, before.out) and torch.equal(got.lse, before.lse)


def test_a_part_of_no_weight_is_ignored_whatever_it_holds():
    q, k, v = tensors(1, 1, 1, 20, 30, 16)
    alone = prefill_partial(q, k, v)
    light = Partial(torch.full_like(alone.out, torch.nan), torch.full_like(alone.lse, -500.0))
    got = prefill_partial(q, k, v, merge_into=light)
    assert torch.equal(got.out, alone.out) and torch.equal(got.lse, alone.lse)
    heavy = Partial(torch.ones_like(alone.out), torch.full_like(alone.lse, 500.0))
    got = prefill_partial(q, k, torch.full_like(v, torch.nan), merge_into=clone(heavy))
    assert torch.equal(got.out, heavy.out) and torch.equal(got.lse, heavy.lse)
    unknown = Partial(torch.ones_like(alone.out), torch.full_like(alone.lse, torch.nan))
    got = prefill_partial(q, k, v, merge_into=unknown)
    assert got.out.isnan().all() and got.lse.isnan().all()


def test_into_parts_of_larger_arrays():
    q, k, v = tensors(1, 1, 2, 20, 30, 16)
    whole = Partial(torch.full((1, 2, 50, 20), torch.nan), torch.full((1, 2, 50), torch.nan))
    part = Partial(whole.out[:, :, 7:27, 2:18], whole.lse[:, :, 7:27])
    part.lse.fill_(-torch.inf)
    prefill_partial(q, k, v, spec=CAUSAL, merge_into=part)
    assert_partial(clone(part), expected(q, k, v, spec=CAUSAL), v)
    assert int(whole.out.isnan().sum()) == whole.out.numel() - part.out.numel()
    assert int(whole.lse.isnan().sum()) == whole.lse.numel() - part.lse.numel()
