"""Attention by its formula in float64 on torch tensors, for autograd: what gradients are tested against."""

import torch

from attention import Partial, Spec

SPECS = {
    "plain": {},
    "causal": {"causal": True, "scale": 0.2},
    "window": {"window": 9},
    "causal window": {"causal": True, "window": 5},
    "softcap": {"softcap": 2.0, "causal": True},
    "slopes": {"alibi_slopes": True},
    "sinks": {"sinks": True, "causal": True},
    "all": {"causal": True, "window": 30, "softcap": 4.0, "alibi_slopes": True, "sinks": True},
}


def spec_of(name, heads):
    own = {"alibi_slopes": [2.0 ** -(h + 2) for h in range(heads)], "sinks": [0.5 * h - 1 for h in range(heads)]}
    return Spec(
        **{field: own[field] if value is True and field in own else value for field, value in SPECS[name].items()}
    )


def attention64(q, k, v, spec, positions, *, kv_mask=None):
    """(out, lse) over all keys, differentiable; `positions` are those of (queries, keys), each [batch or 1, n]."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * spec.scale_for(q.shape[3])
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    queries, keys = (torch.atleast_2d(torch.as_tensor(x)) for x in positions)
    apart = queries[:, :, None] - keys[:, None, :]
    visible = torch.ones_like(apart, dtype=torch.bool) if kv_mask is None else kv_mask[:, None].expand(apart.shape)
    if spec.causal:
        visible = visible & (apart >= 0)
    if spec.window is not None:
        visible = visible & (apart.abs() < spec.window)
    if spec.alibi_slopes is not None:
        scores = scores - torch.tensor(spec.alibi_slopes).double().view(-1, 1, 1) * apart.abs()[:, None]
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    if spec.sinks is not None:  # a key that all see, of value 0
        sinks = torch.tensor(spec.sinks).double().view(1, heads, 1, 1).expand(*scores.shape[:3], 1)
        scores, v = torch.cat([scores, sinks], 3), torch.cat([v, v.new_zeros(len(v), heads, 1, v.shape[3])], 2)
    empty = (scores == -torch.inf).all(-1)
    safe = scores.masked_fill(empty[..., None], 0)  # softmax over nothing would be NaN
    weights = safe.softmax(-1).masked_fill(empty[..., None], 0)
    return Partial(weights @ v, safe.logsumexp(-1).masked_fill(empty, -torch.inf))


def gradients64(tensors, spec, positions, d_out, d_lse=None, **options):
    """(out, lse) and the float64 gradients of q, k, v where d_out arrives at out and d_lse at lse."""
    q, k, v = (x.double().clone().requires_grad_() for x in tensors)
    result = attention64(q, k, v, spec, positions, **options)
    seen = result.lse > -torch.inf
    loss = (result.out * d_out.double()).masked_fill(~seen[..., None], 0).sum()
    if d_lse is not None:
        loss = loss + (result.lse[seen] * d_lse.double()[seen]).sum()
    found = torch.autograd.grad(loss, (q, k, v), allow_unused=True, materialize_grads=True)
    return Partial(*(x.detach() for x in result)), found
