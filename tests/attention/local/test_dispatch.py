import math

import numpy as np
import pytest
import torch

import attention.local.dispatch
from attention import Partial, Spec, local_attention, reference_attention
from attention.arrays import check_inputs
from attention.local import blocks
from attention.local.choice import BLOCKS
from attention.visibility import Masking
from tests.attention.cases import SHAPES, arrays, assert_close
from tests.thinning import thinned
from topocomm import OperatorError

CAUSAL = Spec(causal=True)


def only_blocks(monkeypatch):
    monkeypatch.setattr(attention.local.dispatch, "covers", lambda inputs: False)
    monkeypatch.setattr(attention.local.dispatch, "_chosen", lambda call, device: BLOCKS)


@pytest.fixture(params=["kernel", "blocks", "tiny blocks"])
def path(request, monkeypatch):
    """Every way in which shards are attended; inputs that one does not cover go another way."""
    if request.param != "kernel":
        only_blocks(monkeypatch)
    if request.param == "tiny blocks":
        monkeypatch.setattr(blocks, "BLOCK_FLOATS", 2048)
    return request.param


def check(q, k, v, *, tolerance=1e-5, **options):
    """local_attention against the formula on the same rounded inputs."""
    exact = reference_attention(*(torch.as_tensor(x).double().numpy() for x in (q, k, v)), **options)
    got = local_attention(q, k, v, **options)
    largest = float(np.abs(np.nan_to_num(exact.out)).max(initial=0))
    assert_close(got.out, exact.out, atol=tolerance * max(largest, 1e-3))
    seen = np.abs(exact.lse[exact.lse > -np.inf]).max(initial=0)
    assert_close(got.lse, exact.lse, atol=max(1e-5, 2e-7 * seen))
    return got


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_odd_shapes(path, shape):
    q, k, v = arrays(shape)
    got = check(q, k, v)
    assert isinstance(got, Partial)
    assert got.out.dtype == got.lse.dtype == np.float32
    batch, kv_heads, group, q_len, _, _, d_v = shape
    assert got.out.shape == (batch, kv_heads * group, q_len, d_v)
    assert got.lse.shape == (batch, kv_heads * group, q_len)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_16_bit_inputs_are_computed_in_float32(path, dtype, shape):
    got = check(*(torch.from_numpy(x).to(dtype) for x in arrays(shape)))
    assert got.out.dtype == got.lse.dtype == torch.float32


@pytest.mark.parametrize("scale", [None, 0.25, 1.0, 3.0])
def test_the_scale(path, scale):
    check(*arrays(SHAPES[1], peak=1.0), spec=Spec(scale=scale))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("per_entry", [False, True])
def test_causal_with_positions_in_any_order(path, shape, per_entry):
    batch, _, _, q_len, n, _, _ = shape
    q, k, v = arrays(shape)
    rng = np.random.default_rng(1)
    lead = (batch,) if per_entry else ()
    check(
        q,
        k,
        v,
        spec=CAUSAL,
        q_positions=rng.integers(-2, n + 2, (*lead, q_len)),
        kv_positions=rng.permuted(np.broadcast_to(np.arange(n), (*lead, n)), axis=-1),
    )


@pytest.mark.parametrize("q_len", thinned(range(1, 9)))
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 63, 64, 65])
def test_interleaved_shards_of_a_causal_sequence(path, q_len, n):
    # Rank r of 3 holds the positions r, r + 3, ...; the queries are the last q_len positions.
    q, k, v = arrays((2, 2, 2, q_len, n, 8, 12), seed=n)
    positions = np.arange(n)
    for rank in range(3):
        mine = positions[rank::3]
        check(q, k[:, :, mine], v[:, :, mine], spec=CAUSAL, q_positions=np.arange(n - q_len, n), kv_positions=mine)


def test_causal_without_positions_takes_the_queries_as_the_last(path):
    q, k, v = arrays(SHAPES[2])
    positions = {"q_positions": np.arange(124, 129), "kv_positions": np.arange(129)}
    exact = reference_attention(q, k, v, spec=CAUSAL, **positions)
    assert_close(local_attention(q, k, v, spec=CAUSAL).out, exact.out, atol=2e-5)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
def test_hidden_keys_may_hold_anything(path, junk):
    q, k, v = arrays(SHAPES[3])
    n = k.shape[2]
    mask = np.random.default_rng(2).random((2, n)) < 0.5
    mask[:, 256:520] = False  # whole blocks
    for b in range(2):
        k[b, :, ~mask[b]] = junk
        v[b, :, ~mask[b]] = junk
    check(q, k, v, kv_mask=mask)
    # The same, hidden by position: later keys have no query yet.
    hidden = {"q_positions": np.full(7, n), "kv_positions": np.where(mask, 0, n + 1)}
    check(q, k, v, spec=CAUSAL, **hidden)


def test_rows_that_see_nothing(path):
    q, k, v = arrays((2, 2, 3, 4, 40, 8, 16))
    k[1], v[1] = np.nan, np.inf
    mask = np.array([[True] * 40, [False] * 40])
    got = check(q, k, v, kv_mask=mask)
    assert (got.out[1] == 0).all()
    assert (got.lse[1] == -np.inf).all()
    # Some rows of a block see keys, others none.
    k, v = arrays((2, 2, 3, 4, 40, 8, 16))[1:]
    got = check(q, k, v, spec=CAUSAL, q_positions=[-1, 0, 39, -5], kv_positions=np.arange(40))
    assert (got.lse[:, :, [0, 3]] == -np.inf).all()


@pytest.mark.parametrize("options", [{}, {"kv_mask": np.zeros(0, bool)}, {"spec": CAUSAL}])
def test_no_keys(path, options):
    q, k, v = arrays((2, 3, 2, 3, 0, 8, 16))
    got = local_attention(q, k, v, **options)
    assert got.out.shape == (2, 6, 3, 16)
    assert (got.out == 0).all()
    assert (got.lse == -np.inf).all()


def test_a_key_hidden_from_one_row_has_weight_0_there(path):
    q, k, v = arrays((1, 1, 1, 2, 9, 8, 8))
    v[:, :, 8] = 3e38  # seen by the second query only; the least float32 times this is no longer small
    got = local_attention(q, k, v, spec=CAUSAL, q_positions=[7, 8], kv_positions=np.arange(9))
    exact = reference_attention(q[:, :, :1], k[:, :, :8], v[:, :, :8])
    assert_close(got.out[:, :, :1], exact.out, atol=1e-5)


def test_a_visible_nan_is_not_hidden(path):
    q, k, v = arrays(SHAPES[1])
    k[0, 1, 5, 3] = np.nan
    v[1, 2, 6, 4] = np.nan
    got = local_attention(q, k, v)
    assert np.isnan(got.out[0, 4:8]).all()
    assert np.isnan(got.lse[0, 4:8]).all()
    assert np.isnan(got.out[1, 8:, :, 4]).all()
    assert not np.isnan(got.out[:, :4]).any()


def test_scores_of_hundreds_do_not_overflow(path):
    q, k, v = arrays(SHAPES[1], peak=100.0)
    check(q * 10, k, v, tolerance=2e-4)  # a score near 10^4 is itself rounded by 10^-3


def test_numpy_and_torch_strides(path):
    shape = (2, 3, 2, 2, 50, 16, 8)
    q, k, v = arrays(shape)
    exact = local_attention(q, k, v)

    def same(*given):
        got = local_attention(*given)
        assert_close(got.out, exact.out, atol=2e-6)
        assert_close(got.lse, exact.lse, atol=2e-6)

    room = torch.full((2, 3, 80, 16), torch.nan)
    room[:, :, 7:57] = torch.from_numpy(k)
    same(torch.from_numpy(q), room[:, :, 7:57], torch.from_numpy(v))
    seq_first = np.ascontiguousarray(v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    same(q, k, seq_first)
    same(q, np.asfortranarray(k), v)
    same(q[:, ::-1].copy()[:, ::-1], k, v)
    frozen = [x.copy() for x in (q, k, v)]
    for x in frozen:
        x.flags.writeable = False
    same(*frozen)


def test_one_key_head_shared_by_expansion(path):
    q, k, v = arrays((2, 1, 6, 1, 33, 16, 16))
    wide = [torch.from_numpy(x).expand(2, 3, 33, 16) for x in (k, v)]
    assert_close(local_attention(torch.from_numpy(q), *wide).out, local_attention(q, k, v).out, atol=1e-6)


def test_the_result_is_written_where_the_caller_wants(path):
    q, k, v = arrays(SHAPES[2])
    expected = local_attention(q, k, v)
    packed = np.full(3 * 2 * 5 * 17, np.nan, np.float32)
    views = Partial(packed[: 3 * 2 * 5 * 16].reshape(3, 2, 5, 16), packed[-3 * 2 * 5 :].reshape(3, 2, 5))
    got = local_attention(q, k, v, out=views)
    assert got is views
    assert packed.tobytes() == expected.out.tobytes() + expected.lse.tobytes()
    strided = Partial(torch.empty(3, 5, 2, 16).transpose(1, 2), torch.empty(3, 5, 2).transpose(1, 2))
    local_attention(*(torch.from_numpy(x) for x in (q, k, v)), out=strided)
    np.testing.assert_array_equal(strided.out.numpy(), expected.out)
    np.testing.assert_array_equal(strided.lse.numpy(), expected.lse)


def test_the_caller_is_called_between_pieces(path):
    calls = []
    inputs = check_inputs("test", *arrays(SHAPES[1]), spec=Spec(), masking=Masking())
    attention.local.dispatch.attend(inputs, inputs.empty_partial(), between=lambda: calls.append(1))
    assert len(calls) > 1


def test_slips_of_layout_and_base_would_be_seen():
    q, k, v = arrays(SHAPES[1])
    right = local_attention(q, k, v)
    # Query heads dealt out to key heads round robin instead of in groups.
    batch, _, q_len, d = q.shape
    dealt = q.reshape(batch, 4, 3, q_len, d).swapaxes(1, 2).reshape(q.shape)
    assert np.abs(local_attention(dealt, k, v).lse - right.lse).max() > 0.1
    # Base 2.
    assert np.abs(right.lse / math.log(2) - right.lse).max() > 0.1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"q": np.zeros((2, 8))}, ["local_attention: q must be [batch, heads, q_len, d]", "[2, 8]"]),
        ({"k": np.zeros((2, 3, 4, 8))}, ["k must be float32, float16 or bfloat16", "float64", "convert"]),
        ({"v": [[1.0]]}, ["v must be a NumPy array or torch tensor", "list"]),
        ({"v": np.zeros((2, 3, 6, 8), np.float32)}, ["k and v must agree in [batch, kv_heads, n]", "[2, 3, 6, 8]"]),
        ({"q": np.zeros((1, 6, 4, 8), np.float32)}, ["q and k must agree in batch and head dim", "[1, 6, 4, 8]"]),
        ({"q": np.zeros((2, 6, 4, 9), np.float32)}, ["q and k must agree in batch and head dim"]),
        ({"q": np.zeros((2, 7, 4, 8), np.float32)}, ["heads of q must be a multiple", "[2, 7, 4, 8]"]),
        ({"v": np.zeros((2, 3, 5, 8), np.float16)}, ["k and v must have one dtype", "float16"]),
        ({"q": torch.zeros(2, 6, 4, 8, requires_grad=True)}, ["q requires gradients", "detach"]),
        (
            {"q": torch.zeros(2, 6, 4, 8, device="meta")},
            ["q is on meta", "or all on one GPU"],
        ),
        ({"kv_mask": np.ones(4, bool)}, ["kv_mask must be [5] or [batch, 5] with batch 2", "[4]"]),
        ({"kv_mask": np.ones(5)}, ["kv_mask must be bool", "float64"]),
        ({"spec": CAUSAL, "kv_positions": np.arange(5)}, ["q_positions is missing"]),
        ({"spec": CAUSAL, "q_positions": np.arange(4)}, ["kv_positions is missing"]),
        (
            {"spec": CAUSAL, "q_positions": np.arange(4.0), "kv_positions": np.arange(5)},
            ["q_positions must be integers", "float64"],
        ),
        (
            {"spec": CAUSAL, "q_positions": np.arange(4), "kv_positions": np.zeros((3, 5), int)},
            ["kv_positions must be [5] or [batch, 5]", "[3, 5]"],
        ),
        (
            {"out": Partial(np.empty((2, 6, 4, 8)), np.empty((2, 6, 4), np.float32))},
            ["out.out must be torch.float32 [2, 6, 4, 8]", "float64"],
        ),
        (
            {"out": Partial(np.empty((2, 6, 4, 8), np.float32), np.empty((2, 4, 6), np.float32))},
            ["out.lse must be torch.float32 [2, 6, 4]", "[2, 4, 6]"],
        ),
    ],
)
def test_what_does_not_fit_is_named(change, parts):
    given = {
        "q": np.zeros((2, 6, 4, 8), np.float32),
        "k": np.zeros((2, 3, 5, 8), np.float32),
        "v": np.zeros((2, 3, 5, 8), np.float32),
        **change,
    }
    with pytest.raises(OperatorError) as raised:
        local_attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)
    for part in parts:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "empty", [(0, 2, 3, 1, 5, 8, 4), (2, 2, 3, 0, 5, 8, 4), (2, 2, 3, 1, 0, 8, 4), (0, 1, 1, 0, 0, 8, 4)]
)
def test_no_batch_entry_no_query_and_no_key(path, empty):
    got = local_attention(*arrays(empty))
    assert got.out.shape == (empty[0], empty[1] * empty[2], empty[3], 4) and (got.out == 0).all()
    assert got.lse.shape == got.out.shape[:3] and (got.lse == -np.inf).all()
