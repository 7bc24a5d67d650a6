"""Partials of several ranks, some of them empty in the ways of kernels, and the formula in float64."""

import math

import numpy as np
import torch

LN2 = math.log(2.0)
MARKS = (-math.inf, math.inf, math.nan)
"""What kernels give as lse of a row without keys."""
EMPTY = ("none", "some", "a rank", "a row", "all")


def partials(ranks, shape, dtype, *, empty="some", seed=0):
    """(out [rows, heads, dim], lse [rows, heads] with rows innermost) of each rank; out is NaN where it is empty."""
    rows, heads, dim = shape
    made = []
    for rank in range(ranks):
        rng = np.random.default_rng((seed, rank))
        out = torch.from_numpy(rng.standard_normal((rows, heads, dim)).astype(np.float32))
        lse = torch.from_numpy((rng.standard_normal((heads, rows)) * 6 + 300).astype(np.float32)).t()
        gone = torch.from_numpy(rng.random((rows, heads)) < 0.4)
        if empty != "some":
            gone = torch.full((rows, heads), empty == "all" or (empty == "a rank" and rank == ranks - 1))
            gone[:1] |= empty == "a row"
        marks = torch.tensor(MARKS)[torch.from_numpy(rng.integers(0, len(MARKS), (rows, heads)))]
        out, lse = torch.where(gone[..., None], math.nan, out), torch.where(gone, marks, lse)
        made.append((out.to(dtype), lse.t().contiguous().t()))
    return made


def formula(made, base, empties=None):
    """(out, lse) of all heads in float64; lse of the base given."""
    outs = np.stack([out.double().numpy() for out, _ in made])
    lses = np.stack([lse.double().numpy() for _, lse in made]) * (LN2 if base == 2 else 1)
    lses = np.where(np.isfinite(lses), lses, -np.inf)
    if empties is not None:
        lses = np.where(np.stack(empties)[..., None], -np.inf, lses)
    high = lses.max(0)
    high = np.where(high == -np.inf, 0, high)
    weights = np.exp(lses - high)
    total = weights.sum(0)
    outs = np.where(weights[..., None] == 0, 0, outs)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + high
    out = (outs * weights[..., None]).sum(0) / np.where(total == 0, 1, total)[..., None]
    return out, lse / (LN2 if base == 2 else 1)


def assert_merged(out, lse, exact, dtype):
    """out and lse of all heads are those of the formula: rounded once to the dtype, lse within some roundings."""
    assert out.dtype == dtype and out.is_contiguous()
    wanted_out, wanted_lse = exact
    # weights are exp of lse, each of which is rounded by 2^-24 of 300 at most
    bound = (torch.finfo(dtype).eps / 2 + 4e-5) * np.abs(wanted_out) + 2e-4
    assert (np.abs(out.double().numpy() - wanted_out) <= bound).all()
    if lse is not None:
        assert lse.dtype == torch.float32
        np.testing.assert_allclose(lse.double().numpy(), wanted_lse, rtol=3e-7, atol=0)
