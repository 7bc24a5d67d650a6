"""Every two features together, sharded: each method and way of `tree_decode` against the formula in float64."""

import numpy as np
import pytest
import torch

from attention import ShardMap, Spec, reference_attention, ring_decode, three_allreduce_decode, tree_decode
from attention.sharded import head_range
from tests.attention.cases import assert_close, covered, pairwise
from topocomm import run_local

METHODS = {
    "tree": (tree_decode, {}),
    "canonical": (tree_decode, {"order": "canonical"}),
    "heads": (tree_decode, {"result": "heads"}),
    "16 bits": (tree_decode, {"wire": "bfloat16"}),
    "ring": (ring_decode, {}),
    "three": (three_allreduce_decode, {}),
}
FACTORS = {
    "method": tuple(METHODS),
    "ranks": (1, 2, 3, 8),
    "layout": ("dealt", "ranges", "one rank has all"),
    "causal": (False, True),
    "window": (None, 11),
    "softcap": (None, 3.0),
    "slopes": (False, True),
    "sinks": (False, True),
    "hidden": ("none", "mask", "lengths"),
    "dtype": (torch.float32, torch.bfloat16, torch.float16),
    "shape": ((2, 3, 2, 1, 70, 16, 24), (3, 2, 5, 4, 131, 40, 8), (2, 1, 3, 19, 90, 24, 40)),
}
CASES = list(pairwise(FACTORS))
EPSILON = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def test_pairs_are_covered():
    assert covered(CASES, FACTORS) and len(CASES) < 60


def layout_of(case, n):
    ranks = case["ranks"]
    if case["layout"] == "dealt":
        return ShardMap(ranks, block_size=3)
    if case["layout"] == "ranges":
        return ShardMap(ranks, capacity=n + 30)
    return ShardMap(ranks, block_size=1 << 20)  # all keys lie in the first block


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_every_pair_of_features(case):
    batch, kv_heads, group, q_len, n, d, d_v = case["shape"]
    heads, rng = kv_heads * group, np.random.default_rng(3)
    q, k, v = (
        torch.from_numpy(rng.normal(0, spread, size).astype(np.float32)).to(case["dtype"])
        for spread, size in (
            (1, (batch, heads, q_len, d)),
            (2, (batch, kv_heads, n, d)),
            (1, (batch, kv_heads, n, d_v)),
        )
    )
    spec = Spec(
        causal=case["causal"],
        window=case["window"],
        softcap=case["softcap"],
        alibi_slopes=rng.uniform(0.05, 0.5, heads) if case["slopes"] else None,
        sinks=rng.normal(0, 2, heads) if case["sinks"] else None,
    )
    shards = layout_of(case, n)
    exists = rng.random((batch, n)) < 0.7 if case["hidden"] == "mask" else np.ones((batch, n), bool)
    if case["hidden"] == "lengths":  # the last keys of the first entry of every rank are not there
        for rank in range(case["ranks"]):
            exists[0, shards.owned(rank, 0, n)[-3:]] = False
    queries = np.arange(n - q_len, n)
    owned = [shards.owned(rank, 0, n).copy() for rank in range(case["ranks"])]
    method, options = METHODS[case["method"]]

    def on_rank(comm):
        mine = owned[comm.rank]
        given = {"q_positions": queries, "kv_positions": mine, "return_lse": True, **options}
        if case["hidden"] == "mask":
            given["kv_mask"] = exists[:, mine]
        if case["hidden"] == "lengths":
            given["kv_lengths"] = exists[:, mine].sum(1)
        if "order" in options:
            given["shards"] = shards
        return method(q, k[:, :, mine], v[:, :, mine], comm, spec=spec, **given)

    wide = [x.double().numpy() for x in (q, k, v)]
    exact = reference_attention(*wide, spec=spec, kv_mask=exists, q_positions=queries, kv_positions=np.arange(n))
    largest = max(1.0, float(v.double().abs().max()))
    tolerance = max(EPSILON[case["dtype"]], 2**-8 if case["method"] == "16 bits" else 0.0)
    for rank, one in enumerate(run_local(on_rank, ranks=case["ranks"])):
        mine = head_range(heads, case["ranks"], rank) if case["method"] == "heads" else slice(None)
        assert_close(one.out.double(), exact.out[:, mine], atol=tolerance * largest)
        assert_close(one.lse, exact.lse[:, mine], atol=2e-5)


@pytest.mark.parametrize("method", [tree_decode, ring_decode])
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("q_len", range(1, 9))
def test_several_queries_over_keys_dealt_one_by_one(method, ranks, q_len):
    """Interleaved causal bounds with fewer keys than ranks, and around multiples of the number of ranks."""
    for n in sorted({q_len, ranks - 1, ranks, ranks + 1, 3 * ranks - 1, 3 * ranks + 1} - set(range(q_len))):
        rng = np.random.default_rng(n)
        q, k, v = (rng.standard_normal((2, 2, length, 8), np.float32) for length in (q_len, n, n))
        given = {"spec": Spec(causal=True), "q_positions": np.arange(n - q_len, n)}
        exact = reference_attention(q, k, v, kv_positions=np.arange(n), **given)

        def on_rank(comm, q=q, k=k, v=v, n=n, given=given):
            mine = np.arange(comm.rank, n, comm.size)
            return method(q, k[:, :, mine], v[:, :, mine], comm, kv_positions=mine, **given)

        for one in run_local(on_rank, ranks=ranks):
            assert_close(one, exact.out, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_scores_of_many_keys_do_not_overflow(dtype):
    """lse = ln n; the sum of exponentials is beyond float16 (65,504)."""
    n = 70_000
    q, k = torch.zeros(1, 1, 1, 8, dtype=dtype), torch.zeros(1, 1, n, 8, dtype=dtype)
    v = torch.ones(1, 1, n, 8, dtype=dtype)

    def on_rank(comm):
        half = slice(n // 2 * comm.rank, n // 2 * (comm.rank + 1))
        return tree_decode(q, k[:, :, half], v[:, :, half], comm, return_lse=True)

    for one in run_local(on_rank, ranks=2):
        assert abs(float(one.lse) - np.log(n)) < 2e-6 * np.log(n) and torch.equal(one.out, torch.ones_like(one.out))


def test_scores_beyond_what_exp_can_hold():
    """Scores of 1,000 and -1,000: far above 88.7, where exp leaves float32."""
    q, k = np.full((1, 1, 1, 1), 1000, np.float32), np.array([1, -1, 0.999, -0.5], np.float32).reshape(1, 1, 4, 1)
    v = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    exact = reference_attention(q, k, v, spec=Spec(scale=1.0))
    one = run_local(
        lambda comm: tree_decode(
            q, k[:, :, comm.rank :: 2], v[:, :, comm.rank :: 2], comm, spec=Spec(scale=1.0), return_lse=True
        ),
        ranks=2,
    )[0]
    assert_close(one.out, exact.out, atol=1e-4)
    assert_close(one.lse, exact.lse, atol=1e-4)
