import numpy as np
import pytest
import torch

from attention import Spec
from attention.gpu.prefill import prefill
from tests.attention.gpu.prefill_cases import ROUNDING, check, tensors, use_tile
from tests.thinning import thinned

CAUSAL = Spec(causal=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=[(16, 16), pytest.param((64, 32), marks=pytest.mark.soak)], ids=str)
def tile(request, monkeypatch):
    use_tile(monkeypatch, *request.param)
    return request.param


@pytest.mark.parametrize("n", [0, 1, 63, 65])
@pytest.mark.parametrize("q_len", [1, 17, 33])
def test_odd_shapes(tile, q_len, n):
    check(*tensors(1, 1, 2, q_len, n, 16, 24))


@pytest.mark.parametrize("spec", [Spec(), CAUSAL], ids=["plain", "causal"])
def test_many_blocks(monkeypatch, spec):
    use_tile(monkeypatch, 64, 64)
    check(*tensors(1, 1, 1, 130, 200, 32), spec=spec)


@pytest.mark.parametrize("d", thinned([8, 64, 80, 96, 128, 192, 256]))
def test_head_dims(monkeypatch, d):
    use_tile(monkeypatch, 32, 32)
    check(*tensors(1, 1, 1, 17, 33, d, dtype=torch.bfloat16), spec=CAUSAL)


@pytest.mark.parametrize("dims", [(192, 128), (64, 80), (24, 40)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_have_a_head_dim_of_their_own(monkeypatch, dims, dtype):
    use_tile(monkeypatch, 32, 32)
    check(*tensors(2, 1, 1, 17, 33, *dims, dtype=dtype))


@pytest.mark.parametrize("dims", [(24, 72), (40, 88)], ids=str)
def test_rows_that_are_no_multiples_of_16_are_copied_with_zeros(monkeypatch, dims):
    """Where loads are not wide ptxas 12.8 computes descriptors of matrix products from stale registers."""
    use_tile(monkeypatch, 32, 32)
    q, k, v = tensors(2, 2, 1, 17, 33, *dims, dtype=torch.bfloat16)
    check(q, k, v, spec=CAUSAL)
    for x in (q, k, v):
        copy = prefill._aligned(x)
        width = x.shape[-1]
        assert copy.shape[:3] == x.shape[:3] and copy.shape[-1] - width == -width % prefill.COLUMNS
        assert torch.equal(copy[..., :width], x) and not copy[..., width:].any()
        assert prefill._aligned(copy) is copy


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x[..., 1:17],  # begins within 16 bytes
        lambda x: x[..., :32],  # rows begin at multiples of 40
        lambda x: x.transpose(2, 3)[..., :16],
        lambda x: x[..., ::2][..., :16],
    ],
    ids=["pointer", "stride", "transposed", "sparse"],
)
def test_arrays_whose_rows_begin_elsewhere_are_copied(cut):
    x = cut(torch.randn(2, 3, 40, 40).bfloat16())
    copy = prefill._aligned(x)
    assert copy is not x and torch.equal(copy, x) and copy.data_ptr() % 16 == 0
    assert copy.stride(-1) == 1 and not any(stride % prefill.COLUMNS for stride in copy.stride()[:3])


def test_strides_of_one_head_do_not_count():
    """A cache with one head may have any stride there."""
    x = torch.randn(400).bfloat16().as_strided((1, 1, 8, 32), (7, 5, 48, 1))
    assert prefill._aligned(x) is x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accuracy_is_that_of_the_dtype_of_values(monkeypatch, dtype):
    use_tile(monkeypatch, 32, 32)
    q, k, v = tensors(1, 2, 2, 20, 65, 64, dtype=dtype)
    got = check(q, k, v)
    mixed = check(q.float(), k, v)  # weights are not rounded where queries are float32
    assert (got.lse - mixed.lse).abs().max() < 2e-6
    exact = check(q.float(), k.float(), v.float())
    assert (mixed.out - exact.out).abs().max() < 2e-6
    assert (got.out - exact.out).abs().max() < ROUNDING[dtype] * v.float().abs().max()


@pytest.mark.parametrize("group", [1, 3, 8])
def test_heads_share_keys(monkeypatch, group):
    use_tile(monkeypatch, 32, 32)
    check(*tensors(2, 2, group, 18, 20, 16), spec=CAUSAL)


@pytest.mark.parametrize("offset", thinned([-40, -17, -1, 0, 1, 14, 31, 200]))
@pytest.mark.parametrize(
    "spec", [CAUSAL, Spec(causal=True, window=9), Spec(window=21)], ids=["causal", "sliding", "both"]
)
def test_contiguous_positions_by_their_starts(tile, spec, offset):
    q, k, v = tensors(1, 1, 1, 33, 65, 16)
    k[:, :, (torch.arange(65) > 32 + offset)] = torch.nan if spec.causal else 1.0
    check(q, k, v, spec=spec, q_positions=1000 + offset, kv_positions=1000)


@pytest.mark.parametrize(
    "spec", [CAUSAL, Spec(causal=True, window=9), Spec(window=21)], ids=["causal", "sliding", "both"]
)
def test_starts_and_tensors_give_the_same(tile, spec):
    q, k, v = tensors(1, 1, 2, 33, 65, 16)
    by_start = check(q, k, v, spec=spec, q_positions=40, kv_positions=3)
    shuffle = torch.from_numpy(np.random.default_rng(0).permutation(65))
    in_any_order = check(q, k[:, :, shuffle], v[:, :, shuffle], spec=spec, q_positions=40, kv_positions=shuffle + 3)
    torch.testing.assert_close(by_start.out, in_any_order.out, rtol=0, atol=2e-6)
    torch.testing.assert_close(by_start.lse, in_any_order.lse, rtol=0, atol=4e-6)


def test_consecutive_tensors_need_no_lists(monkeypatch):
    monkeypatch.setattr(prefill, "block_lists_of", None)
    check(*tensors(1, 1, 1, 17, 33, 16), spec=CAUSAL, q_positions=torch.arange(17) + 20, kv_positions=list(range(33)))


@pytest.mark.parametrize("per_entry", [False, True])
@pytest.mark.parametrize(
    "spec", [CAUSAL, Spec(causal=True, window=9), Spec(window=5)], ids=["causal", "sliding", "both"]
)
def test_positions_in_any_order(tile, spec, per_entry):
    q, k, v = tensors(2, 1, 2, 33, 65, 16)
    rng = np.random.default_rng(1)
    lead = (2,) if per_entry else ()
    check(
        q,
        k,
        v,
        spec=spec,
        q_positions=torch.from_numpy(rng.integers(-2, 67, (*lead, 33))),
        kv_positions=rng.permuted(np.broadcast_to(np.arange(65), (*lead, 65)), axis=-1),
    )


def test_zigzag(monkeypatch):
    use_tile(monkeypatch, 16, 16)
    chunks = np.arange(8 * 20).reshape(8, 20)
    q, k, v = tensors(1, 1, 1, 40, 40, 16)
    for mine, theirs in ((0, 0), (1, 2), (2, 1), (3, 0)):
        at_q, at_k = (np.r_[chunks[rank], chunks[7 - rank]] for rank in (mine, theirs))
        check(q, k, v, spec=CAUSAL, q_positions=at_q, kv_positions=at_k)


def test_causal_without_positions_takes_the_queries_as_the_last(tile):
    check(*tensors(2, 1, 1, 17, 40, 16), spec=CAUSAL)
    check(*tensors(2, 1, 1, 40, 17, 16), spec=CAUSAL)  # the first rows see nothing
    check(*tensors(2, 1, 1, 17, 40, 16), spec=CAUSAL, kv_lengths=torch.tensor([40, 5]))


@pytest.mark.parametrize("spec", [Spec(), CAUSAL, Spec(window=4), Spec(alibi_slopes=(0.5, 0.1))], ids=str)
def test_masks_and_lengths(tile, spec):
    q, k, v = tensors(2, 1, 2, 20, 70, 16)
    mask = np.random.default_rng(2).random((2, 70)) < 0.5
    mask[:, 16:50] = False  # whole blocks
    for options in (
        {"kv_mask": torch.from_numpy(mask)},
        {"kv_mask": mask[0]},
        {"kv_lengths": [33, 0]},
        {"kv_lengths": np.array([70, 20]), "kv_mask": mask},
        {"kv_lengths": torch.tensor([34, 65], dtype=torch.int32), "q_positions": 50, "kv_positions": 0},
        {"kv_mask": mask, "q_positions": 30, "kv_positions": 2},
    ):
        check(q, k, v, spec=spec, **options)


@pytest.mark.parametrize("scale", [None, 0.25, 3.0, 0.0, -1.5])
def test_the_scale(monkeypatch, scale):
    use_tile(monkeypatch, 32, 32)
    check(*tensors(1, 1, 1, 17, 40, 16), spec=Spec(scale=scale, causal=True))


@pytest.mark.parametrize(
    "options", [{}, {"q_positions": 30, "kv_positions": 0}, {"kv_positions": "any order"}], ids=str
)
@pytest.mark.parametrize(
    "spec",
    [
        Spec(softcap=2.0),
        Spec(causal=True, alibi_slopes=(0.5, 0.03)),
        Spec(alibi_slopes=(0.5, 0.03)),
        Spec(causal=True, window=12, softcap=1.5, alibi_slopes=(0.2, 0.4), scale=0.7),
    ],
    ids=["softcap", "slopes", "slopes both ways", "all"],
)
def test_softcap_and_slopes(monkeypatch, spec, options):
    use_tile(monkeypatch, 16, 32)
    if options == {"kv_positions": "any order"}:
        options = {"q_positions": torch.arange(33).flip(0), "kv_positions": np.random.default_rng(0).permutation(70)}
    check(*tensors(1, 1, 2, 33, 70, 16), spec=spec, **options)


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_hidden_keys_may_hold_anything(tile, junk):
    q, k, v = tensors(2, 2, 1, 17, 70, 16)
    mask = torch.from_numpy(np.random.default_rng(2).random((2, 70)) < 0.5)
    mask[:, 16:50] = False
    for x in (k, v):
        x.masked_fill_(~mask[:, None, :, None], junk)
    check(q, k, v, kv_mask=mask)
    hidden = torch.where(mask, 0, 71)
    check(q, k, v, spec=CAUSAL, q_positions=torch.full((17,), 70), kv_positions=hidden)
    k, v = tensors(2, 2, 1, 17, 70, 16)[1:]
    for x in (k, v):
        x[0, :, 33:], x[1, :, 64:] = junk, junk
    check(q, k, v, kv_lengths=[33, 64])
    k, v = tensors(2, 2, 1, 17, 70, 16)[1:]
    for x in (k, v):
        x[:, :, :20], x[:, :, 45:] = junk, junk
    check(q, k, v, spec=Spec(causal=True, window=9), q_positions=28, kv_positions=0)


@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_see_nothing_are_empty_beside_rows_that_see_nan(tile, shared):
    q, k, v = tensors(1, 1, 1, 20, 40, 16)
    v[:, :, 5] = torch.nan
    at_q = torch.where(torch.arange(20) % 3 == 0, -1, 30)
    got = prefill.prefill_partial(q, k, v, spec=CAUSAL, q_positions=at_q, kv_positions=torch.arange(40))
    nothing = at_q < 0
    assert (got.out[:, :, nothing] == 0).all() and (got.lse[:, :, nothing] == -torch.inf).all()
    assert got.out[:, :, ~nothing].isnan().all() and got.lse[:, :, ~nothing].isfinite().all()


def test_nan_that_is_seen_shows(tile):
    q, k, v = tensors(1, 1, 1, 20, 40, 16)
    k[:, :, 7] = torch.nan
    got = prefill.prefill_partial(q, k, v)
    assert got.out.isnan().all() and got.lse.isnan().all()


def test_strides_do_not_matter(monkeypatch):
    use_tile(monkeypatch, 32, 32)
    q, k, v = tensors(2, 2, 2, 17, 40, 16, 24)
    check(q.transpose(1, 2).contiguous().transpose(1, 2), k[:, :, ::2], v[:, :, ::2])
    check(q.transpose(2, 3).contiguous().transpose(2, 3), k.transpose(0, 2).contiguous().transpose(0, 2), v)


def test_nothing_to_do():
    for shape in ((0, 1, 2, 20, 5, 16), (2, 1, 2, 0, 5, 16)):
        got = prefill.prefill_partial(*tensors(*shape))
        assert got.out.numel() == got.lse.numel() == 0
    got = prefill.prefill_partial(*tensors(2, 1, 2, 20, 0, 16), spec=CAUSAL, kv_mask=torch.ones(0, dtype=torch.bool))
    assert (got.out == 0).all() and (got.lse == -torch.inf).all()


def test_the_order_of_programs_covers_every_block(monkeypatch):
    # Sections of one, two and all heads, the last one not full.
    q, k, v = tensors(2, 3, 1, 40, 20, 16)
    use_tile(monkeypatch, 16, 32)
    whole = check(q, k, v, spec=CAUSAL)
    for limit in (1, 3 * 20 * 32 * 4, 1 << 40):
        monkeypatch.setattr(prefill, "CACHE_BYTES", limit)
        again = prefill.prefill_partial(q, k, v, spec=CAUSAL)
        assert torch.equal(again.out, whole.out) and torch.equal(again.lse, whole.lse)
