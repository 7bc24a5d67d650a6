"""Partials of ranks and their merge by definition in float64, for tests on threads and under mpirun."""

import numpy as np

EMPTY = -np.inf


def partial(rank, shape, dim=5):
    """The partial of one rank. Some of its rows are empty, all of rank 2's; but for rank 0's they hold NaN."""
    rng = np.random.default_rng([rank, *shape])
    out = rng.standard_normal((*shape, dim), dtype=np.float32)
    lse = (3 * rng.standard_normal(shape)).astype(np.float32)
    empty = rng.random(shape) < (1.0 if rank == 2 else 0.2)
    out[empty], lse[empty] = np.nan if rank else 0, EMPTY
    return {"out": out, "lse": lse}


def exact(partials):
    """The merge of all, in float64; (0, -inf) where all are empty."""
    lse = np.stack([p["lse"] for p in partials]).astype(np.float64)
    out = np.stack([np.where(p["lse"][..., None] == EMPTY, 0.0, p["out"]) for p in partials]).astype(np.float64)
    top = lse.max(0)
    weights = np.exp(lse - np.where(top == EMPTY, 0.0, top))
    total = weights.sum(0)
    with np.errstate(divide="ignore"):
        return {
            "out": (weights[..., None] * out).sum(0) / np.where(total == 0, 1, total)[..., None],
            "lse": np.where(total == 0, EMPTY, top + np.log(total)),
        }


def assert_close(got, wanted, ranks, what):
    """Within the exact merge by one float32 rounding per rank, and empty exactly where that is."""
    empty = wanted["lse"] == EMPTY
    assert np.array_equal(got["lse"] == EMPTY, empty), what
    assert np.all(got["out"][empty] == 0), what
    np.testing.assert_allclose(got["out"], wanted["out"], atol=1e-6 + ranks * 1e-7, err_msg=what)
    np.testing.assert_allclose(got["lse"][~empty], wanted["lse"][~empty], atol=1e-6 + ranks * 6e-7, err_msg=what)
