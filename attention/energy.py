"""The energy whose gradient is attention: formulas on torch tensors, differentiable by autograd, for any of its uses.

For a query q, the keys k_a that it sees, their values v_a and a probe zeta, with scores s_a = scale q.k_a:

    F(zeta) = ln sum_a exp(s_a + zeta.v_a)

What it is good for, and its source (Shyam et al., arXiv 2408.04093): docs/concepts/energy.md.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from attention.array_types import Numbers
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
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
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
    arrays = {"q": q, "k": k, "v": v, "zeta": zeta}
    return _energy(q, k, v, zeta, *_checked("attention_energy", arrays, spec, q_positions, kv_positions))


def attention_from_energy(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
) -> torch.Tensor:
    """Return attention as the gradient of `attention_energy` at zeta = 0, by autograd; equations 5 and 23 of the paper.

    Arguments are those of `attention_energy`.

    Returns:
        [batch, heads, q_len, d_v] in the dtype of q; 0 where no key is seen. Differentiable in q, k and v if one of
        them requires gradients.

    Raises:
        OperatorError: As `attention_energy`, and under torch.inference_mode(), where there is no autograd.
    """
    if torch.is_inference_mode_enabled():
        raise OperatorError(
            "attention_from_energy: autograd is off in torch.inference_mode(); use torch.no_grad() instead"
        )
    checked = _checked("attention_from_energy", {"q": q, "k": k, "v": v}, spec, q_positions, kv_positions)
    further = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    with torch.enable_grad():
        zeta = q.new_zeros((*q.shape[:3], v.shape[3]), requires_grad=True)
        total = _energy(q, k, v, zeta, *checked).sum()
        (out,) = torch.autograd.grad(total, zeta, create_graph=further)
    return out


def value_covariance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
) -> torch.Tensor:
    """Return the Hessian of `attention_energy` at zeta = 0 by formula: the covariance of v under the attention weights.

    sum_a w_a (v_a - out) (v_a - out)^T with w = softmax(scale q.k) and out = sum_a w_a v_a. Values are centred before
    they are multiplied, so a large mean costs no digits; that takes rows x n x d_v numbers at once.

    Arguments and errors are those of `attention_energy`.

    Returns:
        [batch, heads, q_len, d_v, d_v] in the dtype of q, positive semidefinite up to rounding; 0 where no key is seen.
    """
    checked = _checked("value_covariance", {"q": q, "k": k, "v": v}, spec, q_positions, kv_positions)
    exp, total, _, v = _softmax(q, k, v, *checked)
    weights = exp / total.masked_fill(total == 0, 1)
    centred = v.unsqueeze(2) - (weights @ v).unsqueeze(3)  # [batch, kv_heads, rows, n, d_v]
    covariance = (weights.unsqueeze(4) * centred).mT @ centred
    return covariance.view(*q.shape[:3], *covariance.shape[3:])


def _energy(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, zeta: torch.Tensor, scale: float, visible: torch.Tensor | None
) -> torch.Tensor:
    _, total, base, _ = _softmax(q, k, v, scale, visible, zeta)
    unseen = total == 0
    lse = base + total.masked_fill(unseen, 1).log()  # the gradient of ln 0 would be NaN
    return lse.masked_fill(unseen, -torch.inf).view(q.shape[:3])


def _softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    visible: torch.Tensor | None,
    zeta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(exp(score - base) [batch, kv_heads, rows, n], its sums, base [batch, kv_heads, rows, 1], v).

    A row is a query of one of the heads that share the key head. One that sees nothing has a sum of 0; v has 0 for keys
    that no query sees.
    """
    (batch, heads, q_len, _), (kv_heads, n) = q.shape, k.shape[1:3]
    if visible is not None:
        unseen = ~visible.any(1)[:, None, :, None]
        k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)  # else 0 x NaN would spread
    scores = _rows(q, k) @ k.mT * scale
    if zeta is not None:
        scores = scores + _rows(zeta, v) @ v.mT
    if visible is not None:
        by_query = scores.view(batch, kv_heads, heads // kv_heads, q_len, n)
        scores = by_query.masked_fill(~visible[:, None, None], -torch.inf).view(scores.shape)
    # The base is a constant to autograd: what is subtracted and added again leaves the derivatives as they are.
    top = scores.detach().amax(-1, keepdim=True) if n else scores.new_zeros((*scores.shape[:3], 1))
    base = top.masked_fill(top == -torch.inf, 0)  # rows that see nothing: exp(-inf - 0) = 0
    exp = (scores - base).exp()
    return exp, exp.sum(-1, keepdim=True), base, v


def _rows(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[batch, heads, q_len, dim] as [batch, kv_heads, rows, dim]: heads that share a key head, one after the other."""
    batch, heads, q_len, dim = x.shape
    return x.reshape(batch, k.shape[1], heads // k.shape[1] * q_len, dim)


def _checked(
    function: str, arrays: dict[str, torch.Tensor], spec: Spec | None, q_positions: Any, kv_positions: Any
) -> tuple[float, torch.Tensor | None]:
    """(factor on q.k; which query sees which key, bool [batch or 1, q_len, n], None: all see all) of checked arrays."""
    spec = spec or Spec()
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
    for field in fields(spec):
        if field.name not in COVERED and getattr(spec, field.name) is not field.default:
            raise OperatorError(
                f"{function}: the energy knows {' and '.join(COVERED)} of a Spec, not {field.name}; leave it unset"
            )
    scale = spec.scale_for(q.shape[3])
    if not spec.causal:
        return scale, None
    queries = _positions(function, "q_positions", q_positions, q)
    keys = _positions(function, "kv_positions", kv_positions, k)
    return scale, keys[:, None, :] <= queries[:, :, None]


def _positions(function: str, name: str, values: Any, of: torch.Tensor) -> torch.Tensor:
    """The positions of queries or keys [batch, heads, count, d] as integers [batch or 1, count]."""
    if values is None:
        raise OperatorError(f"{function}: causal attention needs q_positions and kv_positions, {name} is missing")
    positions = torch.as_tensor(values, device=of.device)
    if positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(f"{function}: {name} must be integers, got {positions.dtype}")
    batch, _, count, _ = of.shape
    if positions.shape not in ((count,), (1, count), (batch, count)):
        raise OperatorError(f"{function}: {name} must be [{count}] or [{batch}, {count}], got {list(positions.shape)}")
    return positions if positions.ndim == 2 else positions[None]
