"""Every two features together, sharded: each method and way of `tree_decode` against the formula in float64."""

import numpy as np
import pytest
import torch

from attention import Spec, reference_attention, ring_decode, three_allreduce_decode, tree_decode
from tests.attention.cases import assert_close, covered, pairwise
from tests.attention.features import FEATURES, made
from tests.thinning import thinned
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
    **FEATURES,
    "shape": ((2, 3, 2, 1, 70, 16, 24), (3, 2, 5, 4, 131, 40, 8), (2, 1, 3, 19, 90, 24, 40)),
}
CASES = list(pairwise(FACTORS))


def test_pairs_are_covered():
    assert covered(CASES, FACTORS) and len(CASES) < 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_every_pair_of_features(case):
    this = made(case)
    method, options = METHODS[case["method"]]
    told = {**options, "shards": this.shards} if "order" in options else options

    def on_rank(comm):
        return method(*this.arguments(comm.rank), comm, return_lse=True, **this.given(comm.rank), **told)

    results = run_local(on_rank, ranks=case["ranks"])
    this.check(results, options, 2**-8 if case["method"] == "16 bits" else 0.0)


@pytest.mark.parametrize("method", [tree_decode, ring_decode])
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("q_len", thinned(range(1, 9)))
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
