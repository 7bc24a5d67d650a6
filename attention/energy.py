"""The energy whose gradient is attention: formulas on torch tensors, differentiable by autograd, for any of its uses.

For a query q, the keys k_a that it sees, their values v_a and a probe zeta, with scores s_a = scale q.k_a:

    F(zeta) = ln sum_a exp(s_a + zeta.v_a)

F(0) is the lse of a Partial, the gradient at 0 its out, and the Hessian at 0 the covariance of the values under the
weights exp(s_a - F(0)). Energies over disjoint keys merge by ln(e^F1 + e^F2), which is topocomm.LOGADDEXP.
Source: Shyam et al., "Tree Attention" (2024, arXiv 2408.04093), equations 5-6, 19-28 and appendix F. Explained in
docs/concepts/energy.md.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import torch

from attention.spec import Spec
from topocomm import OperatorError

COVERED = ("scale", "causal")
"""The fields of Spec that the formulas know."""

DTYPES = (torch.float32, torch.float64)


def attention_energy(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    zeta: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> torch.Tensor:
    """F(zeta) = ln sum_a exp(scale q.k_a + zeta.v_a) of every query row, over the keys that it sees.

    Equations 6, 19 and 24 of the paper; with a causal spec the terms of equation 25, whose sum over rows and heads
    (26-28) is `.sum()` of the result. A row of the result depends on its own row of zeta only, so the gradient of
    that sum holds every row's attention. The largest score is subtracted before exp (appendix F). All scores are in
    memory at once: rows x n. K and V are not expanded over query heads.

    Args:
        q: [batch, heads, q_len, d], float32 or float64, any device.
        k: [batch, kv_heads, n, d]; head h attends with key head h // (heads / kv_heads); n may be 0.
        v: [batch, kv_heads, n, d_v].
        zeta: [batch, heads, q_len, d_v], the probe; zeros for plain attention.
        spec: Which attention: scale and causal. None: Spec().
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len]; needed if causal, else unused.
        kv_positions: Global positions of the keys, [n] or [batch, n]; likewise.

    Returns:
        [batch, heads, q_len] in the dtype of q; -inf, with gradient 0, where no key is seen. What keys hold that no
        query of the batch entry sees does not matter, NaN neither. Differentiable any number of times.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, positions are missing, or the spec asks for more.
    """
    call = _Call("attention_energy", spec or Spec(), q_positions, kv_positions)
    _check(call, {"q": q, "k": k, "v": v, "zeta": zeta})
    return _energy(call, q, k, v, zeta)


def attention_from_energy(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> torch.Tensor:
    """Return attention as the gradient of `attention_energy` at zeta = 0, by autograd; equations 5 and 23 of the paper.

    Arguments are those of `attention_energy`.

    Returns:
        [batch, heads, q_len, d_v] in the dtype of q; 0 where no key is seen. Differentiable in q, k and v if one of
        them requires gradients.

    Raises:
        OperatorError: As `attention_energy`, and under torch.inference_mode(), where there is no autograd.
    """
    call = _Call("attention_from_energy", spec or Spec(), q_positions, kv_positions)
    if torch.is_inference_mode_enabled():
        raise OperatorError(f"{call.function}: autograd is off in torch.inference_mode(); use torch.no_grad() instead")
    _check(call, {"q": q, "k": k, "v": v})
    further = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    with torch.enable_grad():
        zeta = q.new_zeros((*q.shape[:3], v.shape[3]), requires_grad=True)
        total = _energy(call, q, k, v, zeta).sum()
        (out,) = torch.autograd.grad(total, zeta, create_graph=further)
    return out


def value_covariance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> torch.Tensor:
    """Return the Hessian of `attention_energy` at zeta = 0 by formula: the covariance of v under the attention weights.

    sum_a w_a (v_a - out) (v_a - out)^T with w = softmax(scale q.k) and out = sum_a w_a v_a. Values are centred before
    they are multiplied, so a large mean costs no digits; that takes rows x n x d_v numbers at once.

    Arguments are those of `attention_energy`.

    Returns:
        [batch, heads, q_len, d_v, d_v] in the dtype of q, positive semidefinite up to rounding; 0 where no key is seen.

    Raises:
        OperatorError: As `attention_energy`.
    """
    call = _Call("value_covariance", spec or Spec(), q_positions, kv_positions)
    _check(call, {"q": q, "k": k, "v": v})
    softmax, v = _softmax(call, q, k, v)
    weights = softmax.exp / softmax.total.masked_fill(softmax.total == 0, 1)
    centred = v.unsqueeze(2) - (weights @ v).unsqueeze(3)  # [batch, kv_heads, rows, n, d_v]
    covariance = (weights.unsqueeze(4) * centred).mT @ centred
    return covariance.view(*q.shape[:3], *covariance.shape[3:])


class _Call(NamedTuple):
    """The name of the function for errors, and its arguments other than arrays of floats."""

    function: str
    spec: Spec
    q_positions: Any
    kv_positions: Any


class _Softmax(NamedTuple):
    """exp(score - base) and its sums: exp [batch, kv_heads, rows, n]; total and base [batch, kv_heads, rows, 1].

    A row is a query of one of the heads that share the key head. One that sees nothing has a total of 0.
    """

    exp: torch.Tensor
    total: torch.Tensor
    base: torch.Tensor


def _energy(call: _Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, zeta: torch.Tensor) -> torch.Tensor:
    """`attention_energy` of checked arrays."""
    softmax, _ = _softmax(call, q, k, v, zeta)
    unseen = softmax.total == 0
    lse = softmax.base + softmax.total.masked_fill(unseen, 1).log()  # the gradient of ln 0 would be NaN
    return lse.masked_fill(unseen, -torch.inf).view(q.shape[:3])


def _softmax(
    call: _Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, zeta: torch.Tensor | None = None
) -> tuple[_Softmax, torch.Tensor]:
    """The softmax of the scores of checked arrays, and v with 0 for keys that no query sees."""
    (batch, heads, q_len, dim), (kv_heads, n) = q.shape, k.shape[1:3]
    visible = _visible(call, q, k)
    if visible is not None:
        unseen = ~visible.any(1)[:, None, :, None]
        k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)  # else 0 x NaN would spread
    scores = _rows(q, k) @ k.mT * call.spec.scale_for(dim)
    if zeta is not None:
        scores = scores + _rows(zeta, v) @ v.mT
    if visible is not None:
        by_query = scores.view(batch, kv_heads, heads // kv_heads, q_len, n)
        scores = by_query.masked_fill(~visible[:, None, None], -torch.inf).view(scores.shape)
    # The base is a constant to autograd: what is subtracted and added again leaves the derivatives as they are.
    top = scores.detach().amax(-1, keepdim=True) if n else scores.new_zeros((*scores.shape[:3], 1))
    base = top.masked_fill(top == -torch.inf, 0)  # rows that see nothing: exp(-inf - 0) = 0
    exp = (scores - base).exp()
    return _Softmax(exp, exp.sum(-1, keepdim=True), base), v


def _rows(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[batch, heads, q_len, dim] as [batch, kv_heads, rows, dim]: heads that share a key head, one after the other."""
    batch, heads, q_len, dim = x.shape
    return x.reshape(batch, k.shape[1], heads // k.shape[1] * q_len, dim)


def _visible(call: _Call, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Which query sees which key, bool [batch or 1, q_len, n]; None: all see all."""
    if not call.spec.causal:
        return None
    queries = _positions(call, "q_positions", (q.shape[0], q.shape[2]), q.device)
    keys = _positions(call, "kv_positions", (k.shape[0], k.shape[2]), k.device)
    return keys[:, None, :] <= queries[:, :, None]


def _positions(call: _Call, name: str, shape: tuple[int, int], device: torch.device) -> torch.Tensor:
    """The positions of that name as integers [batch or 1, count]."""
    values = getattr(call, name)
    if values is None:
        raise OperatorError(f"{call.function}: causal attention needs q_positions and kv_positions, {name} is missing")
    positions = torch.as_tensor(values, device=device)
    if positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(f"{call.function}: {name} must be integers, got {positions.dtype}")
    batch, count = shape
    if positions.shape not in ((count,), (1, count), (batch, count)):
        raise OperatorError(
            f"{call.function}: {name} must be [{count}] or [{batch}, {count}], got {list(positions.shape)}"
        )
    return positions if positions.ndim == 2 else positions[None]


def _check(call: _Call, arrays: dict[str, torch.Tensor]) -> None:
    function = call.function
    for name, x in arrays.items():
        if not isinstance(x, torch.Tensor):
            raise OperatorError(
                f"{function}: {name} must be a torch tensor, got {type(x).__name__}; use torch.as_tensor"
            )
        if x.ndim != 4:
            raise OperatorError(f"{function}: {name} must have 4 axes [batch, heads, length, dim], got {list(x.shape)}")
    q, k, v = (arrays[name] for name in "qkv")
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
    if k.shape[:3] != v.shape[:3]:
        raise OperatorError(f"{function}: k and v must agree in [batch, kv_heads, n], got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or not q.shape[3]:
        raise OperatorError(f"{function}: q and k must agree in batch and in a head dim of at least 1, got {shapes}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise OperatorError(f"{function}: the heads of q must be a multiple of those of k and v, got {shapes}")
    probe = (*q.shape[:3], v.shape[3])
    if "zeta" in arrays and arrays["zeta"].shape != probe:
        raise OperatorError(f"{function}: zeta must be {list(probe)}, a value for every query row, got {shapes}")
    kinds = {(x.dtype, x.device) for x in arrays.values()}
    if len(kinds) > 1 or q.dtype not in DTYPES:
        got = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in arrays.items())
        raise OperatorError(f"{function}: all arrays must be float32, or all float64, on one device; got {got}")
    for field in fields(call.spec):
        if field.name not in COVERED and getattr(call.spec, field.name) is not field.default:
            raise OperatorError(
                f"{function}: the energy knows {' and '.join(COVERED)} of a Spec, not {field.name}; leave it unset"
            )
