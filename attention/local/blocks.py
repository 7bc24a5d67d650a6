"""Attention of any number of queries over one shard, by torch's matrix products, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attention.arrays import Inputs
from attention.gpu.placement import on_gpu
from attention.partial import Partial
from attention.spec import Spec

BLOCK_FLOATS = 1 << 20
"""Size limit of every temporary array (4 MiB)."""
BLOCK_FLOATS_THERE = 1 << 24
"""On a GPU, where a block costs a dozen launches (64 MiB)."""


def attend_blocks(inputs: Inputs, result: Partial, between_blocks: Callable[[], None] | None) -> None:
    """Write the attention of checked inputs into float32 tensors (out, lse) of any strides."""
    batch, heads, q_len, _ = inputs.q.shape
    kv_heads, n = inputs.k.shape[1], inputs.n
    group = heads // kv_heads
    keys, queries = block_sizes(inputs)
    for b in range(batch):
        q, out, lse = (x[b].view(kv_heads, group, *x.shape[2:]) for x in (inputs.q, *result))
        for start in range(0, q_len, queries):
            rows = slice(start, min(start + queries, q_len))
            block = _OnlineSoftmax(q[:, :, rows], inputs.spec, inputs.v.shape[3])
            for first in range(0, n, keys):
                part = slice(first, first + keys)
                visible = visible_block(inputs, b, rows, part)
                if visible is not None:
                    block.add(*inputs.entry(b, part), visible, distances_between(inputs, b, rows, part))
                if between_blocks is not None:
                    between_blocks()
            block.finish(out[:, :, rows], lse[:, :, rows])


def block_sizes(inputs: Inputs) -> tuple[int, int]:
    """(keys, queries) per block: scores, keys, values, queries and sums stay below the limit each.

    One key and one query are the least, so a single row may exceed that.
    """
    floats = BLOCK_FLOATS_THERE if on_gpu(inputs.q) else BLOCK_FLOATS
    kv_heads, n, dim = inputs.k.shape[1], inputs.n, inputs.k.shape[3]
    heads, q_len = inputs.q.shape[1:3]
    widest = max(dim, inputs.v.shape[3])
    keys = max(1, min(n, floats // max(heads * min(q_len, 64), kv_heads * widest)))
    return keys, max(1, floats // (heads * max(keys, widest)))


def visible_block(inputs: Inputs, b: int, rows: slice, part: slice) -> torch.Tensor | bool | None:
    """Bool [queries, keys] of a block, True where all see all, None where nothing is seen."""
    if inputs.visibility is None:
        return True
    low, high, _, keys = inputs.visibility.entry(b, rows, part)
    if on_gpu(inputs.q):  # nothing is read back
        low, high, keys = (x.to(inputs.q.device, non_blocking=True) for x in (low, high, keys))
        return (low[:, None] <= keys) & (keys <= high[:, None])
    least, most = int(keys.min()), int(keys.max())
    if most <= int(high.min()) and least >= int(low.max()):
        return True
    if least > int(high.max()) or most < int(low.min()):
        return None
    return (low[:, None] <= keys) & (keys <= high[:, None])


def distances_between(inputs: Inputs, b: int, rows: slice, part: slice) -> torch.Tensor | None:
    """float32 [queries, keys]: how far apart they are, where scores depend on it."""
    if inputs.spec.alibi_slopes is None or inputs.visibility is None:
        return None
    _, _, queries, keys = inputs.visibility.entry(b, rows, part)
    return (queries[:, None] - keys).abs().float().to(inputs.q.device, non_blocking=True)


class _OnlineSoftmax:
    """The running state of some query rows [kv_heads, group * queries, ...] while blocks of keys pass by."""

    def __init__(self, q: torch.Tensor, spec: Spec, dim_v: int) -> None:
        self.shape, self.spec = q.shape[:3], spec
        self.q = (q.float() * spec.scale_for(q.shape[3])).flatten(1, 2)
        heads, rows = self.q.shape[:2]
        self.top = self.q.new_full((heads, rows, 1), -torch.inf)
        self.total = self.q.new_zeros((heads, rows, 1))
        self.acc = self.q.new_zeros((heads, rows, dim_v))

    def add(
        self, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | bool, distances: torch.Tensor | None
    ) -> None:
        """Take in the keys k [kv_heads, n, d] and values v [kv_heads, n, d_v]."""
        k, v = k.float(), v.float()
        scores = torch.bmm(self.q, k.transpose(1, 2))
        if self.spec.softcap is not None:
            scores.div_(self.spec.softcap).tanh_().mul_(self.spec.softcap)
        if distances is not None:
            slopes = torch.tensor(self.spec.alibi_slopes, device=scores.device).view(*self.shape[:2], 1, 1)
            scores.view(*self.shape, -1).sub_(slopes * distances)
        if isinstance(visible, torch.Tensor):
            scores.view(*self.shape, -1).masked_fill_(~visible, -torch.inf)
            v = v.masked_fill(~visible.any(0)[:, None], 0)  # else 0 x NaN of a hidden value would spread
        top = torch.maximum(self.top, scores.amax(-1, keepdim=True))
        base = torch.where(top == -torch.inf, 0, top)  # rows that have seen nothing: exp(-inf - 0) = 0
        weights = scores.sub_(base).exp_()
        decay = (self.top - base).exp_()
        self.total.mul_(decay).add_(weights.sum(-1, keepdim=True))
        self.acc.mul_(decay).baddbmm_(weights, v)
        self.top = top

    def finish(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Write out [kv_heads, group, queries, d_v] and lse [kv_heads, group, queries]."""
        unseen = self.top == -torch.inf
        self.acc.div_(self.total.masked_fill(unseen, 1)).masked_fill_(unseen, 0)
        out.copy_(self.acc.view(*self.shape, -1))
        lse.copy_((self.top + self.total.log()).view(self.shape))
