"""Partials from FlashAttention 2 (flash_attn) and FlashAttention 3 (flash_attn_interface)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention.conventions import CONVENTIONS
from attention.local.kernel_inputs import causality, check_arrays, check_spec, empty_partial, library, one_head_dim
from attention.normalise import as_partial
from attention.partial import Partial
from attention.spec import Spec

DEVICES = ("cuda",)
DTYPES = (torch.float16, torch.bfloat16)


def flash2_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> Partial:
    """Attention of all queries over the keys given, by `flash_attn.flash_attn_func`.

    Its docstring: out (batch, seqlen, nheads, headdim), softmax_lse (batch, nheads, seqlen), causality aligned to the
    bottom right, heads of q in groups over those of k.
    https://github.com/Dao-AILab/flash-attention/blob/main/flash_attn/flash_attn_interface.py

    Args:
        q: [batch, heads, q_len, d], float16 or bfloat16, on CUDA; d and d_v at most 256.
        k: [batch, kv_heads, n, d], of q's dtype; heads is a multiple of kv_heads; n may be 0.
        v: [batch, kv_heads, n, d_v]. Keys and values must be finite, those too that causality hides.
        spec: Which attention; None: Spec().
        q_positions: Global positions, consecutive integers [q_len]; used only if causal. Without both positions the
            queries are taken to be the last ones of these keys.
        kv_positions: Global positions, consecutive integers [n].

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32; (0, -inf) in rows
        that see no key. out has the rounding of q's dtype. NaN among the scores gives NaN.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, the positions are not consecutive, or spec sets more
            than scale and causal.
        MissingExtraError: flash_attn is not installed.
    """
    remedy = "run: pip install flash-attn --no-build-isolation"
    flash = library("attention.flash2_partial", "flash_attn", "flash_attn", remedy)
    return _flash_partial(
        "flash2_partial", flash.flash_attn_func, "flash_attn 2", (q, k, v), spec or Spec(), (q_positions, kv_positions)
    )


def flash3_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> Partial:
    """Attention of all queries over the keys given, by FlashAttention 3's `flash_attn_interface.flash_attn_func`.

    Axes, causality, arguments and result are those of `flash2_partial`; the release must know return_attn_probs
    (September 2025 or later, pull request 1851).
    https://github.com/Dao-AILab/flash-attention/blob/main/hopper/flash_attn_interface.py

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, the positions are not consecutive, or spec sets more
            than scale and causal.
        MissingExtraError: flash_attn_interface is not installed.
    """
    remedy = "build it: the directory hopper of github.com/Dao-AILab/flash-attention"
    flash = library("attention.flash3_partial", "flash_attn_interface", "FlashAttention 3", remedy)
    return _flash_partial(
        "flash3_partial", flash.flash_attn_func, "flash_attn 3", (q, k, v), spec or Spec(), (q_positions, kv_positions)
    )


def _flash_partial(
    function: str,
    kernel: Callable[..., Any],
    family: str,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spec: Spec,
    positions: tuple[Any, Any],
) -> Partial:
    q, k, v = arrays
    check_arrays(function, q, k, v, devices=DEVICES, dtypes=DTYPES)
    check_spec(function, spec)
    q_len = q.shape[2]
    seen = causality(function, spec, q_len, k.shape[2], *positions)
    if 0 in q.shape[:3] or seen.keys == 0:
        return empty_partial(q, v)
    padded = one_head_dim(q, k[:, :, : seen.keys], v[:, :, : seen.keys])
    out, lse, *_ = kernel(
        *(x.transpose(1, 2) for x in padded),
        softmax_scale=spec.scale_for(q.shape[3]),
        causal=seen.aligned,
        return_attn_probs=True,
    )
    return as_partial(out[..., : v.shape[3]], lse, CONVENTIONS[family], empty=seen.empty(q_len, q.device))
