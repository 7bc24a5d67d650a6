"""The energy: its gradient is attention, its Hessian the covariance of the values, and shards of it merge."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pytest
import torch

import topocomm
from attention import LOGSUMEXP, Spec, reference_attention
from attention.energy import attention_energy, attention_from_energy, value_covariance
from tests.attention.cases import assert_close, cuts

# batch, kv_heads, query heads per key head, q_len, n, d, d_v: sizes differ, so that swapped axes cannot pass.
SHAPES = [(2, 3, 4, 5, 37, 8, 6), (3, 2, 1, 4, 29, 5, 7), (2, 1, 5, 3, 11, 4, 9), (4, 3, 2, 7, 13, 2, 5)]
SPECS = [None, Spec(scale=1.7), Spec(causal=True), Spec(scale=0.3, causal=True)]
SMALL = (2, 2, 3, 4, 9, 5, 3)


def arrays(shape, *, dtype=torch.float64, seed=0):
    batch, kv_heads, group, q_len, n, d, d_v = shape
    made = torch.Generator().manual_seed(seed)
    sizes = ((kv_heads * group, q_len, d), (kv_heads, n, d), (kv_heads, n, d_v), (kv_heads * group, q_len, d_v))
    return tuple(torch.randn(batch, *size, dtype=dtype, generator=made) for size in sizes)


def positions(shape, *, seed=0):
    """Shuffled, different in every batch entry; the first query of each sees nothing."""
    batch, _, _, q_len, n, _, _ = shape
    rng = np.random.default_rng(seed)
    queries = rng.integers(0, n, (batch, q_len))
    queries[:, 0] = -1
    return {"q_positions": queries, "kv_positions": np.array([rng.permutation(n) for _ in range(batch)])}


def options(shape, spec):
    return {"spec": spec, **(positions(shape) if spec and spec.causal else {})}


def gradient(f, at):
    at = at.detach().requires_grad_()
    (found,) = torch.autograd.grad(f(at).sum(), at)
    return found


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_at_zero_the_energy_is_lse_and_its_gradient_attention(shape, spec):
    q, k, v, _ = arrays(shape)
    exact = reference_attention(q, k, v, **options(shape, spec))
    zero = torch.zeros_like(torch.from_numpy(exact.out))
    found = attention_energy(q, k, v, zero, **options(shape, spec))
    assert found.dtype == torch.float64
    assert_close(found, exact.lse, atol=1e-12)
    assert_close(attention_from_energy(q, k, v, **options(shape, spec)), exact.out, atol=1e-12)
    assert_close(gradient(lambda x: attention_energy(q, k, v, x, **options(shape, spec)), zero), exact.out, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_away_from_zero_the_scores_are_tilted(shape, spec):
    """A probe is further dims of the query, and the values are further dims of the keys."""
    q, k, v, zeta = arrays(shape)
    scale = (spec or Spec()).scale_for(q.shape[3])
    tilted = torch.cat([q, zeta / scale], 3), torch.cat([k, v], 3)
    wanted = {**options(shape, spec), "spec": Spec(scale=scale, causal=spec is not None and spec.causal)}
    exact = reference_attention(*tilted, v, **wanted)
    assert_close(attention_energy(q, k, v, zeta, **options(shape, spec)), exact.lse, atol=1e-12)
    found = gradient(lambda x: attention_energy(q, k, v, x, **options(shape, spec)), zeta)
    assert_close(found, exact.out, atol=1e-12)
    assert (found - attention_from_energy(q, k, v, **options(shape, spec))).abs().max() > 0.1


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_step_along_any_direction_gains_attention_along_it(spec):
    q, k, v, direction = arrays(SMALL)
    step, call = 1e-5, options(SMALL, spec)
    ahead, behind = (attention_energy(q, k, v, sign * step * direction, **call) for sign in (1, -1))
    exact = reference_attention(q, k, v, **call)
    along = (direction.numpy() * exact.out).sum(3)
    slope = np.where(np.isneginf(exact.lse), 0, (ahead - behind).nan_to_num(0) / (2 * step))
    np.testing.assert_allclose(slope, along, rtol=0, atol=1e-8)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_hessian_is_the_covariance_of_the_values(shape, spec):
    q, k, v, zeta = arrays(shape)
    call, size = options(shape, spec), v.shape[3]
    covariance = value_covariance(q, k, v, **call)
    assert_close(hessian(lambda x: attention_energy(q, k, v, x, **call), zeta * 0), covariance, atol=1e-10)
    assert_close(covariance, covariance.mT, atol=1e-14)
    assert torch.linalg.eigvalsh(covariance).min() > -1e-14
    unseen = np.isneginf(reference_attention(q, k, v, **call).lse)
    assert not covariance[torch.from_numpy(unseen)].any()
    spread = torch.diagonal(covariance, dim1=-2, dim2=-1)[torch.from_numpy(~unseen)]
    assert spread.shape[1] == size
    assert spread.amax() > 0.1
    far = value_covariance(q, k, v + 1e6, **call)  # all values elsewhere, as far from each other as before
    assert_close(far, covariance, atol=1e-8)


def hessian(f, at):
    """Of every row with respect to its own probe: [..., d_v, d_v], by autograd twice."""
    at = at.detach().requires_grad_()
    (first,) = torch.autograd.grad(f(at).sum(), at, create_graph=True)
    rows = [torch.autograd.grad(first[..., i].sum(), at, retain_graph=True)[0] for i in range(at.shape[3])]
    return torch.stack(rows, 3)


def test_the_hessian_away_from_zero_is_the_covariance_under_the_tilt():
    q, k, v, zeta = arrays(SMALL)
    found = value_covariance(torch.cat([q, zeta], 3), torch.cat([k, v], 3), v, spec=Spec(scale=1))
    assert_close(hessian(lambda x: attention_energy(q, k, v, x, spec=Spec(scale=1)), zeta), found, atol=1e-10)


def test_a_shift_of_the_scores_moves_the_energy_and_nothing_else():
    """Appendix F: any number may be subtracted from all scores of a row, here by way of one more dim."""
    q, k, v, zeta = arrays(SMALL)
    shift = torch.linspace(-300, 500, q[..., 0].numel(), dtype=q.dtype).view(q.shape[:3])
    one = torch.ones_like(k[..., :1])
    moved = torch.cat([q, shift.unsqueeze(3)], 3), torch.cat([k, one], 3)
    spec = Spec(scale=1)
    before, after = (attention_energy(*keys, v, zeta, spec=spec) for keys in ((q, k), moved))
    assert_close(after - shift, before, atol=1e-11)
    of = [gradient(lambda x, keys=keys: attention_energy(*keys, v, x, spec=spec), zeta) for keys in ((q, k), moved)]
    assert_close(of[1], of[0], atol=1e-11)
    assert_close(value_covariance(*moved, v, spec=spec), value_covariance(q, k, v, spec=spec), atol=1e-11)


def test_the_gradient_of_the_causal_total_is_the_attention_of_every_row():
    """Equations 25 to 28, spelled out: one number for all rows and heads."""
    q, k, v, _ = arrays((1, 2, 3, 7, 7, 4, 5))
    zeta = torch.zeros(1, 6, 7, 5, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for head in range(6):
        for i in range(7):
            terms = [
                q[0, head, i] @ k[0, head // 3, a] / 2 + zeta[0, head, i] @ v[0, head // 3, a] for a in range(i + 1)
            ]
            total = total + torch.stack(terms).exp().sum().log()
    call = {"spec": Spec(causal=True), "q_positions": range(7), "kv_positions": range(7)}
    assert_close(attention_energy(q, k, v, zeta, **call).sum().detach(), total.detach(), atol=1e-12)
    (by_hand,) = torch.autograd.grad(total, zeta)
    assert_close(attention_from_energy(q, k, v, **call), by_hand, atol=1e-12)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_large_scores_do_not_overflow(dtype, atol):
    q, k, v, _ = arrays(SMALL, dtype=dtype)
    exact = reference_attention(q * 1e4, k, v, spec=Spec(scale=1))
    assert np.abs(exact.lse).max() > 1e4
    found = attention_from_energy(q * 1e4, k, v, spec=Spec(scale=1))
    assert found.dtype == dtype
    assert_close(found, exact.out, atol=atol)
    energy = attention_energy(q * 1e4, k, v, torch.zeros_like(found), spec=Spec(scale=1))
    assert energy.dtype == dtype
    np.testing.assert_allclose(energy, exact.lse, rtol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("keys", [0, 3], ids=["no keys", "none seen"])
def test_rows_that_see_nothing_are_minus_infinity_without_a_gradient(keys):
    inputs = [x.requires_grad_() for x in arrays((2, 3, 2, 4, keys, 5, 6))]
    call = {"spec": Spec(causal=True), "q_positions": [0, 1, 2, 3], "kv_positions": torch.arange(keys) + 10}
    energy = attention_energy(*inputs, **call)
    assert energy.shape == (2, 6, 4)
    assert energy.isneginf().all()
    first = torch.autograd.grad(energy.sum(), inputs, create_graph=True)
    assert all(not x.any() for x in first)
    second = torch.autograd.grad(sum(x.sum() for x in first), inputs, allow_unused=True)
    assert all(x is None or not x.any() for x in second)
    assert not attention_from_energy(*inputs[:3], **call).any()
    assert not value_covariance(*inputs[:3], **call).any()


def test_derivatives_of_any_order_beside_rows_that_see_nothing():
    shape = (2, 2, 1, 3, 4, 2, 2)
    inputs = [x.requires_grad_() for x in arrays(shape)]
    call = options(shape, Spec(causal=True))
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either, not even one that is dropped later
        rows = attention_energy(*inputs, **call)
        first = torch.autograd.grad(rows.sum(), inputs, create_graph=True)
        torch.autograd.grad(sum(x.sum() for x in first), inputs)
    assert rows.isneginf().any()

    def seen_energies(*tensors):
        rows = attention_energy(*tensors, **call)
        return rows[rows.isfinite()]

    def outs(*tensors):
        return attention_from_energy(*tensors, **call)

    assert torch.autograd.gradcheck(seen_energies, inputs)
    assert torch.autograd.gradgradcheck(seen_energies, inputs)
    assert torch.autograd.gradcheck(outs, inputs[:3])
    assert torch.autograd.gradcheck(lambda *x: value_covariance(*x, **call), inputs[:3])


def test_what_hidden_keys_hold_does_not_matter():
    q, k, v, zeta = arrays(SMALL)
    call = {"spec": Spec(causal=True), "q_positions": [3, 5, 8, 2]}
    shown = [0, 1, 2, 3, 4, 5, 6, 8]
    hidden = [x.clone() for x in (k, v)]
    for x in hidden:
        x[:, :, 7] = torch.nan  # at a position after all queries
    there = [*range(7), 99, 8]
    for f, rest in ((attention_energy, (zeta,)), (attention_from_energy, ()), (value_covariance, ())):
        found = f(q, *hidden, *rest, kv_positions=there, **call)
        assert_close(found, f(q, k[:, :, shown], v[:, :, shown], *rest, kv_positions=shown, **call), atol=1e-14)
    found = gradient(lambda x: attention_energy(q, *hidden, x, kv_positions=there, **call), zeta)
    assert found.isfinite().all()


def test_results_require_gradients_only_if_the_inputs_do():
    q, k, v, _ = arrays(SMALL)
    assert not attention_from_energy(q, k, v).requires_grad
    assert attention_from_energy(q, k.requires_grad_(), v).requires_grad
    with torch.no_grad():
        assert_close(attention_from_energy(q, k, v), reference_attention(q, k.detach(), v).out, atol=1e-12)
    with torch.inference_mode(), pytest.raises(topocomm.OperatorError, match=r"inference_mode.*use torch.no_grad"):
        attention_from_energy(q, k, v)


@pytest.mark.parametrize("shards", range(1, 18))
def test_energies_of_shards_merge_to_that_of_the_whole(shards):
    q, k, v, zeta = arrays(SHAPES[0])
    call = options(SHAPES[0], Spec(causal=True))
    there = call.pop("kv_positions")
    zeta.requires_grad_()
    parts = cuts(k.shape[2], shards, seed=shards)
    energies = [attention_energy(q, k[:, :, x], v[:, :, x], zeta, kv_positions=there[:, x], **call) for x in parts]
    whole = attention_energy(q, k, v, zeta, kv_positions=there, **call)
    in_a_row = reduce(torch.logaddexp, energies)
    while len(energies) > 1:  # neighbours first: a tree
        energies = [reduce(torch.logaddexp, energies[i : i + 2]) for i in range(0, len(energies), 2)]
    for merged in (*energies, in_a_row):
        assert_close(merged.detach(), whole.detach(), atol=1e-12)
    seen = whole.isfinite()
    assert not seen.all()
    derivatives = [torch.autograd.grad(f[seen].sum(), zeta, retain_graph=True)[0] for f in (energies[0], whole)]
    assert_close(derivatives[0], derivatives[1], atol=1e-12)


@pytest.mark.parametrize("shards", [2, 5, 17])
def test_covariances_of_shards_merge_by_the_law_of_total_covariance(shards):
    q, k, v, zeta = arrays(SHAPES[1])
    parts = [(k[:, :, x], v[:, :, x]) for x in cuts(k.shape[2], shards, seed=shards)]
    whole = attention_energy(q, k, v, zeta * 0), attention_from_energy(q, k, v), value_covariance(q, k, v)
    share = [(attention_energy(q, *part, zeta * 0) - whole[0]).exp() for part in parts]
    outs = [attention_from_energy(q, *part) for part in parts]
    apart = [(out - whole[1]).unsqueeze(4) for out in outs]
    inside = [value_covariance(q, *part) for part in parts]
    assert_close(sum(w[..., None] * out for w, out in zip(share, outs, strict=True)), whole[1], atol=1e-12)
    merged = [w[..., None, None] * (c + x * x.mT) for w, c, x in zip(share, inside, apart, strict=True)]
    assert_close(sum(merged), whole[2], atol=1e-12)


@pytest.mark.parametrize("ranks", range(1, 18))
def test_ranks_reduce_energies_and_their_gradients(ranks):
    """LOGADDEXP merges energies; LOGSUMEXP merges them with their gradients, by the chain rule of LOGADDEXP."""
    q, k, v, zeta = arrays(SHAPES[0])
    call = options(SHAPES[0], Spec(causal=True))
    there = call.pop("kv_positions")

    def work(comm):
        mine = cuts(k.shape[2], comm.size, seed=ranks)[comm.rank]
        f = attention_energy(q, k[:, :, mine], v[:, :, mine], zeta, kv_positions=there[:, mine], **call)
        slope = gradient(
            lambda x: attention_energy(q, k[:, :, mine], v[:, :, mine], x, kv_positions=there[:, mine], **call), zeta
        )
        merged = comm.allreduce({"out": slope.float(), "lse": f.float()}, LOGSUMEXP)
        return comm.allreduce(f, topocomm.LOGADDEXP), merged

    whole = attention_energy(q, k, v, zeta, kv_positions=there, **call)
    slope = gradient(lambda x: attention_energy(q, k, v, x, kv_positions=there, **call), zeta)
    for energies, merged in topocomm.run_local(work, ranks=ranks):
        assert_close(energies, whole, atol=1e-12)
        assert_close(merged["lse"], whole, atol=1e-5)
        assert_close(merged["out"], slope, atol=1e-5)


@dataclass(frozen=True)
class OtherSpec(Spec):
    bend: float | None = None


Q, K, V, ZETA = arrays(SMALL)
CAUSAL = {"spec": Spec(causal=True), "q_positions": range(4), "kv_positions": range(9)}


@pytest.mark.parametrize(
    ("inputs", "call", "said"),
    [
        ((Q.numpy(), K, V, ZETA), {}, r"q must be a torch tensor, got ndarray; use torch.as_tensor"),
        ((Q[0], K, V, ZETA), {}, r"q must have 4 axes \[batch, heads, length, dim\], got \[6, 4, 5\]"),
        ((Q, K, V, ZETA[..., 0]), {}, r"zeta must have 4 axes"),
        ((Q, K[:, :, 1:], V, ZETA), {}, r"k and v must agree in \[batch, kv_heads, n\].* k \[2, 2, 8, 5\]"),
        ((Q[:1], K, V, ZETA), {}, r"q and k must agree in batch and in a head dim"),
        ((Q[..., 1:], K, V, ZETA), {}, r"q and k must agree in batch and in a head dim"),
        ((Q[..., :0], K[..., :0], V, ZETA), {}, r"a head dim of at least 1"),
        ((Q[:, :5], K, V, ZETA), {}, r"the heads of q must be a multiple of those of k and v"),
        ((Q, K[:, :0], V[:, :0], ZETA), {}, r"the heads of q must be a multiple of those of k and v"),
        (
            (Q, K, V, ZETA[..., 1:]),
            {},
            r"zeta must be \[2, 6, 4, 3\], a value for every query row.* zeta \[2, 6, 4, 2\]",
        ),
        ((Q, K, V, ZETA.float()), {}, r"all float64, on one device; got .*zeta torch.float32 on cpu"),
        ((Q.half(), K.half(), V.half(), ZETA.half()), {}, r"all arrays must be float32, or all float64"),
        ((Q, K, V, ZETA), {"spec": Spec(causal=True)}, r"needs q_positions and kv_positions, q_positions is missing"),
        ((Q, K, V, ZETA), {**CAUSAL, "kv_positions": None}, r"kv_positions is missing"),
        ((Q, K, V, ZETA), {**CAUSAL, "q_positions": range(5)}, r"q_positions must be \[4\] or \[2, 4\], got \[5\]"),
        ((Q, K, V, ZETA), {**CAUSAL, "q_positions": [0.0] * 4}, r"q_positions must be integers, got torch.float32"),
        ((Q, K, V, ZETA), {"spec": OtherSpec(bend=2.0)}, r"knows scale and causal of a Spec, not bend; leave it unset"),
    ],
)
def test_arguments_that_do_not_fit_are_named(inputs, call, said):
    with pytest.raises(topocomm.OperatorError, match=f"^attention_energy: .*{said}"):
        attention_energy(*inputs, **call)


@pytest.mark.parametrize("function", [attention_from_energy, value_covariance])
def test_the_other_functions_check_too(function):
    with pytest.raises(topocomm.OperatorError, match=rf"^{function.__name__}: q and k must agree"):
        function(Q[..., 1:], K, V)
    with pytest.raises(topocomm.OperatorError, match=rf"^{function.__name__}: .* kv_positions is missing"):
        function(Q, K, V, **{**CAUSAL, "kv_positions": None})
    with pytest.raises(topocomm.OperatorError, match=rf"^{function.__name__}: .*not bend"):
        function(Q, K, V, spec=OtherSpec(bend=0.5))
    function(Q, K, V, spec=OtherSpec())  # a field that is not set asks for nothing
