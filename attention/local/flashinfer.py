"""Partials from FlashInfer."""

from __future__ import annotations

from typing import Any

import torch

from attention.conventions import CONVENTIONS
from attention.local.kernel_inputs import causality, check_arrays, check_spec, empty_partial, library
from attention.normalise import as_partial
from attention.partial import Partial
from attention.spec import Spec

DEVICES = ("cuda",)
DTYPES = (torch.float16, torch.bfloat16)


def flashinfer_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> Partial:
    """Attention of all queries over the keys given, by `flashinfer.single_prefill_with_kv_cache` for each batch entry.

    Its docstring: q [qo_len, num_qo_heads, head_dim], k and v [num_kv_heads, kv_len, head_dim] with kv_layout HND,
    lse [qo_len, num_qo_heads], causality aligned to the bottom right. lse is to base 2 (cascade.cuh).
    https://docs.flashinfer.ai/generated/flashinfer.prefill.single_prefill_with_kv_cache.html

    Args:
        q: [batch, heads, q_len, d], float16 or bfloat16, on CUDA; FlashInfer itself says which head dims it has.
        k: [batch, kv_heads, n, d], of q's dtype; heads is a multiple of kv_heads; n may be 0.
        v: [batch, kv_heads, n, d_v]. Keys and values must be finite, those too that causality hides.
        spec: Which attention; None: Spec().
        q_positions: Global positions, consecutive integers [q_len]; used only if causal. Without both positions the
            queries are taken to be the last ones of these keys.
        kv_positions: Global positions, consecutive integers [n].

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32; (0, -inf) in rows
        that see no key. out has the rounding of q's dtype.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, the positions are not consecutive, or spec sets more
            than scale and causal.
        MissingExtraError: flashinfer is not installed.
    """
    function = "flashinfer_partial"
    flashinfer = library(f"attention.{function}", "flashinfer", "flashinfer", "run: pip install flashinfer-python")
    spec = spec or Spec()
    check_arrays(function, q, k, v, devices=DEVICES, dtypes=DTYPES)
    check_spec(function, spec)
    q_len = q.shape[2]
    seen = causality(function, spec, q_len, k.shape[2], q_positions, kv_positions)
    if 0 in q.shape[:3] or seen.keys == 0:
        return empty_partial(q, v)
    empty = seen.empty(q_len, q.device)  # told, not read off lse: up to 0.6.18rc7 it is finite there
    partials = []
    for queries, keys, values in zip(q, k[:, :, : seen.keys], v[:, :, : seen.keys], strict=True):
        out, lse = flashinfer.single_prefill_with_kv_cache(
            queries.transpose(0, 1).contiguous(),
            keys.contiguous(),
            values.contiguous(),
            causal=seen.aligned,
            kv_layout="HND",
            sm_scale=spec.scale_for(q.shape[3]),
            return_lse=True,
        )
        partials.append(as_partial(out, lse, CONVENTIONS["FlashInfer"], empty=empty))
    return Partial(torch.cat([p.out for p in partials]), torch.cat([p.lse for p in partials]))
