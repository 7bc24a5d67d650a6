"""The gradients of attention over one shard of keys, from the result and lse over all of them.

With p = exp(s - lse), the weights of the whole softmax, and D = sum(d_out out) - d_lse of every query:
dv = p^T d_out, ds = p (d_out v^T - D), dq = scale ds k, dk = scale ds^T q; where scores are bent by a softcap c,
ds counts (1 - tanh^2) times. Weights are computed again, not kept.
Dao, "FlashAttention-2" (2023), algorithm 2; that out and lse of the whole let each shard be treated alone is what the
backward pass of ring attention rests on: Liu et al., "Ring Attention with Blockwise Transformers" (2023).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from attention.arrays import Inputs
from attention.local.blocks import block_sizes, distances_between, visible_block


def backward_block(
    inputs: Inputs,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None = None,
    *,
    between: Callable[[], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the keys and values of one shard contribute to the gradients; summed over all shards they are exact.

    Scores and sums are float32 whatever the input dtype; the work goes in blocks of bounded size, so that beyond
    inputs and results the call needs less than 48 MiB, on a GPU some 500 MiB; there nothing is read back. Sinks are no
    keys: with them, out and lse count them, and their own gradients are not computed.

    Args:
        inputs: Checked, without pages: the queries, this shard's keys and values, and what is visible.
        out: [batch, heads, q_len, d_v]: the result over all keys, floating point.
        lse: float32 [batch, heads, q_len]: its natural logarithm of the sum of exponentials, over all keys.
        d_out: [batch, heads, q_len, d_v]: the gradient that arrives at out, floating point.
        d_lse: [batch, heads, q_len]: that at lse; None: lse was not used.
        between: Called now and then on the way, so that messages move meanwhile.

    Returns:
        dq [batch, heads, q_len, d], dk [batch, kv_heads, n, d] and dv [batch, kv_heads, n, d_v], float32. Queries
        that see no key anywhere (lse -inf) give and get 0, whatever d_out and d_lse hold there; so do keys that no
        query sees, whatever they hold themselves.
    """
    batch, heads, q_len, dim = inputs.q.shape
    kv_heads, n = inputs.k.shape[1], inputs.n
    dq, dk, dv = (x.new_zeros(x.shape, dtype=torch.float32) for x in (inputs.q, inputs.k, inputs.v))
    keys, queries = block_sizes(inputs)
    shape = (kv_heads, heads // kv_heads)
    for b in range(batch):
        for start in range(0, q_len, queries):
            rows = slice(start, min(start + queries, q_len))
            of_rows = [
                x[b, :, rows].reshape(*shape, rows.stop - start, *x.shape[3:])
                for x in (inputs.q, out, lse, d_out, torch.zeros_like(lse) if d_lse is None else d_lse)
            ]
            block = _Rows(inputs, of_rows)
            for first in range(0, n, keys):
                part = slice(first, min(first + keys, n))
                visible = visible_block(inputs, b, rows, part)
                if visible is not None:
                    kv = inputs.entry(b, part)
                    block.add(kv, visible, distances_between(inputs, b, rows, part), (dk[b, :, part], dv[b, :, part]))
                if between is not None:
                    between()
            dq[b, :, rows] = block.dq.mul_(inputs.scale).view(heads, rows.stop - start, dim)
    return dq, dk, dv


class _Rows:
    """Some query rows [kv_heads, group * queries, ...] and their gradient, while blocks of keys pass by."""

    def __init__(self, inputs: Inputs, of_rows: list[torch.Tensor]) -> None:
        q, out, lse, d_out, d_lse = of_rows
        self.shape, self.spec = q.shape[:3], inputs.spec
        empty = lse == -torch.inf
        d_out = d_out.float().masked_fill(empty[..., None], 0)
        delta = ((d_out * out.float()).sum(-1) - d_lse.float()).masked_fill(empty, 0)
        self.q = (q.float() * inputs.scale).masked_fill(empty[..., None], 0).flatten(1, 2)
        self.d_out = d_out.flatten(1, 2)
        self.delta = delta.flatten(1, 2)[..., None]
        self.lse = lse.float().masked_fill(empty, torch.inf).flatten(1, 2)[..., None]  # exp(s - inf) = 0
        self.dq = torch.zeros_like(self.q)

    def add(
        self,
        kv: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor | bool,
        distances: torch.Tensor | None,
        gradients: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Take in k [kv_heads, n, d] and v [kv_heads, n, d_v], and add to their gradients (dk, dv) in place."""
        k, v = (x.float() for x in kv)
        if isinstance(visible, torch.Tensor):
            hidden = ~visible.any(0)[:, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)  # else 0 x NaN of a hidden key would spread
        scores = torch.bmm(self.q, k.transpose(1, 2))
        slope = None
        if self.spec.softcap is not None:
            bent = scores.div_(self.spec.softcap).tanh_()
            scores, slope = bent * self.spec.softcap, bent.square_().neg_().add_(1)
        if distances is not None:
            slopes = torch.tensor(self.spec.alibi_slopes, device=scores.device).view(*self.shape[:2], 1, 1)
            scores.view(*self.shape, -1).sub_(slopes * distances)
        if isinstance(visible, torch.Tensor):
            scores.view(*self.shape, -1).masked_fill_(~visible, -torch.inf)
        weights = scores.sub_(self.lse).exp_()
        dk, dv = gradients
        dv.baddbmm_(weights.transpose(1, 2), self.d_out)
        d_scores = torch.bmm(self.d_out, v.transpose(1, 2)).sub_(self.delta).mul_(weights)
        if slope is not None:
            d_scores.mul_(slope)
        self.dq.baddbmm_(d_scores, k)
        dk.baddbmm_(d_scores.transpose(1, 2), self.q)  # q is scaled
