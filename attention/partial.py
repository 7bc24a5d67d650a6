"""Partial: the result of softmax attention over some of the keys, and all that is needed to merge it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from topocomm.extend import skipped_by_dynamo

if TYPE_CHECKING:
    import torch

MOST_SHOWN = 16
"""Numbers of the largest `out` that a repr shows."""


class Partial(NamedTuple):
    """Attention over a subset of the keys.

    For scores s_a over the keys a of the subset: lse = ln sum_a exp(s_a), the natural logarithm;
    out = sum_a exp(s_a - lse) v_a. The empty subset is out = 0, lse = -inf, never +inf and never NaN.

    Attributes:
        out: [..., dim], float32 between kernels; the functions that end a calculation return q's dtype.
        lse: [...], float32 always: in 16 bits the weights of a merge would be wrong by up to 6 %.
    """

    out: Any
    lse: Any

    def __repr__(self) -> str:
        """Its numbers where they are few, else dtypes and shapes."""
        shape = getattr(self.out, "shape", ())
        if prod(shape) <= MOST_SHOWN:
            return f"Partial(out={self.out!r}, lse={self.lse!r})"
        return f"<Partial out {self.out.dtype} {list(shape)}, lse {self.lse.dtype} {list(self.lse.shape)}>"


@skipped_by_dynamo
def add_sinks(partial: Partial, sinks: ArrayLike | torch.Tensor) -> Partial:
    """Return the partial with a sink in every head's softmax: a logit whose value is 0 (Xiao et al. 2023; gpt-oss).

    To be called once, on the merged partial: added to the partials of P shards, sinks would count P times.

    Args:
        partial: out [batch, heads, q_len, dim] and lse [batch, heads, q_len], NumPy or torch.
        sinks: One logit per head; -inf adds nothing.

    Returns:
        A new partial of the same kind: lse' = ln(exp(lse) + exp(sink)), out' = out exp(lse - lse').
    """
    if not isinstance(partial.lse, np.ndarray):
        import torch

        from attention.gpu.masks import add_sinks_on_gpu
        from attention.gpu.placement import on_gpu

        if on_gpu(partial.lse):
            return Partial(*add_sinks_on_gpu(partial.out.detach(), partial.lse.detach(), sinks))
        as_arrays = add_sinks(Partial(partial.out.detach().numpy(), partial.lse.detach().numpy()), sinks)
        return Partial(*(torch.from_numpy(x) for x in as_arrays))
    lse = np.logaddexp(partial.lse.astype(np.float64), np.asarray(sinks, np.float64)[:, None])
    weights = np.exp(partial.lse - np.where(lse == -np.inf, 0.0, lse))
    out = np.where(weights[..., None] == 0, 0.0, weights[..., None] * partial.out)
    return Partial(out.astype(partial.out.dtype), lse.astype(partial.lse.dtype))
