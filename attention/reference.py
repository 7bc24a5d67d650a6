"""Softmax attention by its formula in float64: what every kernel is tested against. Plain, not fast."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attention.partial import Partial
from attention.spec import Spec
from topocomm import OperatorError


def reference_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    spec: Spec | None = None,
    q_positions: ArrayLike | None = None,
    kv_positions: ArrayLike | None = None,
    kv_mask: ArrayLike | None = None,
) -> Partial:
    """Return attention as a float64 Partial: softmax(scale q k^T) v and ln sum exp(scale q k^T) over the visible keys.

    Sinks, where the spec has any, are counted.

    Args:
        q: [batch, heads, q_len, d].
        k: [batch, kv_heads, n, d]; head h attends with key head h // (heads / kv_heads).
        v: [batch, kv_heads, n, d_v].
        spec: Which attention; None: Spec().
        q_positions: Global positions of the queries, [q_len] or [batch, q_len]; needed if causal, or if there is a
            window or are slopes.
        kv_positions: Global positions of the keys, [n] or [batch, n]; likewise.
        kv_mask: True where a key exists, [n] or [batch, n]; None: all exist.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len]; (0, -inf) where no key is visible. Values that
        no query may see do not matter, NaN neither.
    """
    spec = spec or Spec()
    wide_q, wide_k, wide_v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, q_len, dim = wide_q.shape
    n = wide_k.shape[2]
    visible = np.ones((batch, q_len, n), bool)
    apart = np.zeros((1, q_len, n), np.int64)
    if spec.needs_positions:
        if q_positions is None or kv_positions is None:
            raise OperatorError("reference_attention: this attention needs q_positions and kv_positions")
        apart = np.atleast_2d(q_positions)[:, :, None] - np.atleast_2d(kv_positions)[:, None, :]
    apart = np.broadcast_to(apart, visible.shape)
    if spec.causal:
        visible &= apart >= 0
    if spec.window is not None:
        visible &= abs(apart) < spec.window
    if kv_mask is not None:
        visible &= np.atleast_2d(kv_mask)[:, None, :]
    out = np.zeros((batch, heads, q_len, wide_v.shape[3]))
    lse = np.full((batch, heads, q_len), -np.inf)
    group = heads // wide_k.shape[1]
    for b, h, i in np.ndindex(batch, heads, q_len):
        keys = visible[b, i]
        if keys.any():
            scores = wide_k[b, h // group, keys] @ wide_q[b, h, i] * spec.scale_for(dim)
            if spec.softcap is not None:
                scores = spec.softcap * np.tanh(scores / spec.softcap)
            if spec.alibi_slopes is not None:
                scores -= spec.alibi_slopes[h] * abs(apart[b, i, keys])
            weights = np.exp(scores - scores.max())
            out[b, h, i] = weights @ wide_v[b, h // group, keys] / weights.sum()
            lse[b, h, i] = scores.max() + np.log(weights.sum())
    if spec.sinks is not None:
        with_sinks = np.logaddexp(lse, np.asarray(spec.sinks)[:, None])
        out *= np.exp(lse - np.where(with_sinks == -np.inf, 0, with_sinks))[..., None]
        lse = with_sinks
    return Partial(out, lse)
