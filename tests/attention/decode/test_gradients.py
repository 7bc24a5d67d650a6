"""Gradients of tree_decode against autograd through the formula in float64."""

import numpy as np
import pytest
import torch

from attention import Spec, tree_decode
from tests.attention.cases import arrays, cuts
from topocomm import OperatorError, run_local

SPECS = [
    Spec(),
    Spec(causal=True, window=50),
    Spec(softcap=4.0, alibi_slopes=[0.01 * h for h in range(6)]),
    Spec(causal=True, scale=0.2),
]
SHAPE = (2, 3, 2, 4, 67, 16, 24)


def case(dtype=torch.float32):
    q, k, v = (torch.from_numpy(x).to(dtype) for x in arrays(SHAPE, peak=1.0))
    rng = np.random.default_rng(9)
    d_out = torch.from_numpy(rng.standard_normal((2, 6, 4, 24))).to(dtype)
    d_lse = torch.from_numpy(rng.standard_normal((2, 6, 4))).float()
    return q, k, v, d_out, d_lse


def formula(q, k, v, spec, positions):
    """(out, lse) in float64, differentiable."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    apart = (positions[:, None] - torch.arange(k.shape[2])).double()
    scores = q @ k.transpose(2, 3) * spec.scale_for(q.shape[3])
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if spec.alibi_slopes:
        scores = scores - torch.tensor(spec.alibi_slopes).double()[:, None, None] * apart.abs()
    hidden = ((apart < 0) & spec.causal) | (apart.abs() >= (spec.window or 10**9))
    scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def sharded(spec, ranks, dtype=torch.float32, *, with_lse=True):
    q, k, v, d_out, d_lse = case(dtype)
    positions, pieces = torch.tensor([63, 64, 65, 66]), cuts(67, ranks)

    def on_rank(comm):
        piece = pieces[comm.rank]
        mine = [x.clone().requires_grad_() for x in (q, k[:, :, piece], v[:, :, piece])]
        given = {"q_positions": positions, "kv_positions": torch.arange(67)[piece], "return_lse": True}
        out, lse = tree_decode(*mine, comm, spec=spec, **given)
        torch.autograd.backward([out, lse] if with_lse else [out], [d_out, d_lse] if with_lse else [d_out])
        return [x.grad for x in mine]

    return run_local(on_rank, ranks=ranks)


def exact_gradients(spec, *, with_lse=True):
    q, k, v, d_out, d_lse = case()
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = formula(*wide, spec, torch.tensor([63, 64, 65, 66]))
    loss = (out * d_out.double()).sum() + ((lse * d_lse.double()).sum() if with_lse else 0)
    return torch.autograd.grad(loss, wide)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradients_are_those_of_the_formula(spec, ranks):
    dq, dk, dv = exact_gradients(spec)
    found = sharded(spec, ranks)
    for one in found:
        torch.testing.assert_close(one[0].double(), dq, atol=2e-5, rtol=1e-5)
        assert torch.equal(one[0], found[0][0]), "ranks have other gradients of q"
    torch.testing.assert_close(torch.cat([one[1] for one in found], 2).double(), dk, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([one[2] for one in found], 2).double(), dv, atol=2e-5, rtol=1e-5)


def test_without_a_gradient_of_lse_and_in_bfloat16():
    dq, dk, _ = exact_gradients(SPECS[1], with_lse=False)
    found = sharded(SPECS[1], 2, with_lse=False)
    torch.testing.assert_close(found[1][0].double(), dq, atol=2e-5, rtol=1e-5)
    short = sharded(SPECS[1], 2, torch.bfloat16, with_lse=False)
    assert short[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(short[0][0].double(), dq, atol=0.06, rtol=0.06)
    torch.testing.assert_close(torch.cat([one[1] for one in short], 2).double(), dk, atol=0.06, rtol=0.06)


def test_only_what_wants_gradients_gets_them():
    q, k, v, d_out, _ = case()

    def on_rank(comm):
        keys = k.clone().requires_grad_()
        out = tree_decode(q, keys, v, comm)
        out.backward(d_out)
        with torch.no_grad():
            plain = tree_decode(q, keys, v, comm, order="canonical", kv_positions=torch.arange(67))
        return keys.grad, out.requires_grad, plain.requires_grad

    grad, wanted, plain = run_local(on_rank, ranks=1)[0]
    assert grad.abs().max() > 0 and wanted and not plain


@pytest.mark.parametrize(
    "options",
    [{"result": "heads"}, {"wire": "bfloat16"}, {"order": "canonical"}, {"out": torch.zeros(2, 6, 4, 24)}],
    ids=str,
)
def test_what_has_no_gradients_is_named(options):
    q, k, v, _, _ = case()
    with pytest.raises(OperatorError, match="gradients are there for"):
        run_local(lambda comm: tree_decode(q.clone().requires_grad_(), k, v, comm, **options), ranks=1)
    with pytest.raises(OperatorError, match="must all be torch tensors"):
        run_local(lambda comm: tree_decode(q.clone().requires_grad_(), k.numpy(), v.numpy(), comm), ranks=1)
