"""The reference from norms: above every score, the same on all ranks, and of use for merges as one SUM."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from attention.merge.key_norms import HEADROOM, KeyNorms
from tests.attention.merging import exact
from topocomm import OperatorError, run_local

BATCH, HEADS, KV_HEADS, D = 2, 4, 2, 8


def partial(q, k, v):
    """Softmax attention over the keys, by definition."""
    k, v = (x.repeat(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = np.einsum("bhqd,bhnd->bhqn", q, k) / np.sqrt(D)
    top = scores.max(-1, initial=-1e300, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top[..., 0]
    out = np.einsum("bhqn,bhnd->bhqd", weights, v) / np.where(total == 0, 1, total)[..., None]
    return {"out": out.astype(np.float32), "lse": np.where(total == 0, -np.inf, lse).astype(np.float32)}


@pytest.mark.parametrize("size", [0.1, 2, 5])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_merges_relative_to_it(ranks, size):
    rng = np.random.default_rng(ranks)
    q = size * rng.normal(0, 1, (BATCH, HEADS, 1, D))
    shards = [size * rng.normal(0, 1, (2, BATCH, KV_HEADS, 5 * rank, D)) for rank in range(ranks)]  # rank 0 has none
    token = size * rng.normal(0, 1, (BATCH, KV_HEADS, 1, D))

    def job(comm):
        k, v = shards[comm.rank]
        norms = KeyNorms(BATCH, KV_HEADS)
        norms.include_shards(k, comm)
        norms.include(token)
        reference = norms.reference(q)
        x = partial(q, k, v)
        assert np.all(x["lse"] <= reference + HEADROOM + np.log(max(1, k.shape[2])) + 1e-6)
        call = comm.prepare_sum(like=x, operator=LOGSUMEXP)
        return x, call(x, reference=reference), call.repeated

    results = run_local(job, ranks=ranks)
    wanted = exact([x for x, _, _ in results])
    for _, got, repeated in results:
        assert size > 2 or not repeated  # beyond, a lse may lie too far below the bound
        np.testing.assert_allclose(got["out"], wanted["out"], atol=2e-6 * size * 4)
        np.testing.assert_allclose(got["lse"], wanted["lse"], rtol=2e-6, atol=2e-6)


def test_a_key_that_is_no_number_is_left_to_the_planned_way():
    norms = KeyNorms(1, 1)
    norms.include(np.full((1, 1, 1, 2), np.nan))
    norms.include(np.ones((1, 1, 1, 2)))
    assert np.isnan(norms.reference(np.ones((1, 2, 1, 2)))).all()


def test_tensors_and_a_scale():
    torch = pytest.importorskip("torch")
    norms = KeyNorms(1, 1)
    norms.include(torch.tensor([[[[3.0, 4.0], [0.0, 1.0]]]], dtype=torch.bfloat16))
    assert norms.reference(torch.ones(1, 2, 1, 2), scale=-2.0).tolist() == [[[np.sqrt(2) * 2 * 5 - HEADROOM]] * 2]


def test_shapes_that_do_not_fit():
    norms = KeyNorms(2, 3)
    with pytest.raises(OperatorError, match=r"expected \[2, 3, n, d\]"):
        norms.include(np.ones((2, 2, 1, 4)))
    with pytest.raises(OperatorError, match="multiple of the KV heads"):
        norms.reference(np.ones((2, 4, 1, 4)))
