"""Windows, soft caps, slopes, lengths, pages and masks, alone and in pairs, against the formula in float64."""

from itertools import product

import numpy as np
import pytest
import torch

from attention import Spec, local_attention, reference_attention
from tests.attention.cases import assert_close, covered, pairwise
from tests.attention.local.test_dispatch import only_blocks
from topocomm import OperatorError

FACTORS = {
    "causal": (False, True),
    "window": (None, 1, 9),
    "softcap": (None, 2.5),
    "slopes": (False, True),
    "hidden": ("none", "mask", "lengths", "pages", "holes in pages"),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
    "shape": ((2, 3, 2, 1, 70, 16, 24), (3, 2, 5, 4, 131, 40, 8), (2, 1, 3, 37, 90, 24, 40)),
    "path": ("kernel", "blocks"),
}


CASES = list(pairwise(FACTORS))


def paged(x, lengths, size, rng):
    """(pages [number, kv_heads, size, d], tables) that hold x; what no sequence uses is NaN."""
    batch, heads, n, d = x.shape
    count = -(-n // size)
    numbers = rng.permutation(batch * count + 2)[: batch * count].reshape(batch, count)
    pages = torch.full((batch * count + 2, heads, size, d), torch.nan, dtype=x.dtype)
    for b, page in product(range(batch), range(count)):
        part = x[b, :, page * size : min((page + 1) * size, lengths[b])]
        pages[numbers[b, page], :, : part.shape[1]] = part
    return pages, numbers


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_every_pair_of_features(case, monkeypatch):
    if case["path"] == "blocks":
        only_blocks(monkeypatch)
    batch, kv_heads, group, q_len, n, d, d_v = case["shape"]
    rng = np.random.default_rng(3)
    q, k, v = (
        torch.from_numpy(rng.normal(0, spread, size).astype(np.float32)).to(case["dtype"])
        for spread, size in (
            (1, (batch, kv_heads * group, q_len, d)), (2, (batch, kv_heads, n, d)), (1, (batch, kv_heads, n, d_v)),
        )
    )  # fmt: skip
    spec = Spec(
        causal=case["causal"],
        window=case["window"],
        softcap=case["softcap"],
        alibi_slopes=rng.uniform(0.05, 0.5, kv_heads * group) if case["slopes"] else None,
    )
    positions = rng.permutation(n + 5)[:n] if case["hidden"] in ("none", "mask") else np.arange(n)
    lengths = rng.integers(n // 2, n, batch)
    if case["hidden"] == "holes in pages":
        lengths[0] = 0
    asked = {"q_positions": rng.integers(n // 3, n, (batch, q_len)), "kv_positions": positions}
    mask = np.arange(n) < lengths[:, None]
    exact_mask = None
    given, exact_kv = dict(asked), (k, v)
    if case["hidden"] == "mask":
        exact_mask = given["kv_mask"] = rng.random((batch, n)) < 0.7
    elif case["hidden"] == "lengths":
        given["kv_lengths"], exact_mask = lengths, mask
    elif "pages" in case["hidden"]:
        size, seed = 7, 5
        (k, tables), (v, _) = (paged(x, lengths, size, np.random.default_rng(seed)) for x in (k, v))
        more = tables.shape[1] * size
        given |= {"kv_lengths": lengths, "block_tables": tables, "kv_positions": np.arange(more)}
        exact_mask = mask
    exact = reference_attention(
        q.double().numpy(), *(x.double().numpy() for x in exact_kv), spec=spec, kv_mask=exact_mask, **asked
    )
    got = local_attention(q, k, v, spec=spec, **given)
    assert_close(got.out, exact.out, atol=1e-5 * max(1.0, float(np.abs(exact.out).max())))
    assert_close(got.lse, exact.lse, atol=1e-5)


def test_pairs_are_covered():
    assert covered(CASES, FACTORS) and len(CASES) < 60


def plain(shape=(2, 2, 3, 1, 65, 16, 24)):
    batch, kv_heads, group, q_len, n, d, d_v = shape
    rng = np.random.default_rng(1)
    return tuple(
        rng.standard_normal(size, np.float32)
        for size in ((batch, kv_heads * group, q_len, d), (batch, kv_heads, n, d), (batch, kv_heads, n, d_v))
    )


def test_a_window_counts_the_keys_of_hugging_face():
    """`sliding_window=w` there: key j is seen by query i iff i - w < j <= i."""
    q, k, v = plain()
    got = local_attention(q, k, v, spec=Spec(causal=True, window=4))
    expected = local_attention(q, k[:, :, -4:], v[:, :, -4:])
    np.testing.assert_allclose(got.out, expected.out, atol=1e-6)


def test_what_lies_outside_the_window_is_never_read():
    q, k, v = plain()
    k, v = k.copy(), v.copy()
    k[:, :, :-4], v[:, :, :-4] = np.nan, np.nan
    got = local_attention(q, k, v, spec=Spec(causal=True, window=4))
    assert np.isfinite(got.out).all() and np.isfinite(got.lse).all()


def test_nan_that_is_seen_is_seen():
    """A NaN in a visible key or value is in the result of its rows, and in no other."""
    for which in (1, 2):
        arrays = [x.copy() for x in plain()]
        arrays[which][1, 0, 7, 3] = np.nan
        got = local_attention(*arrays)
        assert np.isnan(got.out[1, :3]).any() and np.isfinite(got.out[0]).all() and np.isfinite(got.out[1, 3:]).all()
    arrays[1][1, 0] = np.nan
    got = local_attention(*arrays)
    assert np.isnan(got.out[1, :3]).all() and np.isnan(got.lse[1, :3]).all()


@pytest.mark.parametrize("size", [1, 16, 64, 100])
def test_pages_give_the_bits_of_the_same_keys_in_a_row(size):
    q, k, v = (torch.from_numpy(x) for x in plain())
    lengths = [65, 41]
    (k_pages, tables), (v_pages, _) = (paged(x, lengths, size, np.random.default_rng(2)) for x in (k, v))
    got = local_attention(q, k_pages, v_pages, block_tables=tables, kv_lengths=lengths)
    expected = local_attention(q, k, v, kv_lengths=lengths)
    assert torch.equal(got.out, expected.out) and torch.equal(got.lse, expected.lse)


def test_pages_of_any_strides_as_vllm_lays_them():
    q, k, v = (torch.from_numpy(x) for x in plain())
    lengths = [65, 41]
    (k_pages, tables), (v_pages, _) = (paged(x, lengths, 16, np.random.default_rng(2)) for x in (k, v))
    turned = [
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k_pages, v_pages)
    ]  # [pages, size, heads, d] below
    got = local_attention(q, *turned, block_tables=tables, kv_lengths=lengths)
    assert torch.equal(got.out, local_attention(q, k, v, kv_lengths=lengths).out)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"block_tables": np.zeros((3, 4), int)}, ["block_tables must be integers [batch, pages", "batch 2", "[3, 4]"]),
        ({"block_tables": np.zeros((2, 4))}, ["block_tables must be integers", "float64"]),
        ({"kv_lengths": None}, ["block_tables need kv_lengths"]),
        ({"kv_lengths": [17, 5]}, ["kv_lengths must be 2 integers from 0 to 16", "[17, 5]"]),
        ({"block_tables": np.array([[0, 9, 0, 0], [0] * 4])}, ["block_tables[0, 1] is 9", "pages 0 to 4"]),
        ({"block_tables": np.array([[0] * 4, [-1] * 4])}, ["block_tables[1, 0] is -1"]),
    ],
)
def test_bad_pages_are_named(change, parts):
    given = {"block_tables": np.zeros((2, 4), int), "kv_lengths": [16, 5], **change}
    with pytest.raises(OperatorError) as raised:
        local_attention(*(np.zeros(s, np.float32) for s in ((2, 4, 1, 8), (5, 2, 4, 8), (5, 2, 4, 8))), **given)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"window": 0}, ["window must be a number of keys", "0"]),
        ({"window": 2.5}, ["window", "2.5"]),
        ({"softcap": -1.0}, ["softcap must be positive", "-1.0"]),
        ({"scale": float("nan")}, ["scale must be finite"]),
        ({"sinks": ["a"]}, ["sinks must be one number per head"]),
        ({"alibi_slopes": [float("nan")]}, ["alibi_slopes must be one number per head"]),
    ],
)
def test_bad_specs_are_named(options, parts):
    with pytest.raises(OperatorError) as raised:
        Spec(**options)
    for part in parts:
        assert part in str(raised.value)


def test_slopes_for_other_heads_are_refused():
    with pytest.raises(OperatorError, match=r"alibi_slopes has 2 values, q has 6 heads"):
        local_attention(*plain(), spec=Spec(alibi_slopes=[0.5, 0.25]))


def test_sinks_are_no_part_of_a_partial():
    with pytest.raises(OperatorError, match="add_sinks"):
        local_attention(*plain(), spec=Spec(sinks=[0.0] * 6))
