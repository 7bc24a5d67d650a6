"""Kernels of other libraries that need no plan: FlashAttention-3, and torch's own, cuDNN's and the CPU's.

scaled_dot_product_attention keeps their lse to itself, so torch's are called below it. They align causality to the top
left: with fewer queries than keys there are two partials, the keys that all queries see and a square, which are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from attention.local.choice import FLASH_3
from attention.local.conventions import CONVENTIONS
from attention.local.local_machine import FLASH_3_MODULES, module
from attention.local.normalise import write_partial
from attention.merge.merge_states import merge_states
from attention.partial import Partial

WIDEST = 256
"""Beyond this, keys are latents that are the values too, and a rotary part of at most 64."""

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""kernel(q, k, v, causal, scale) -> (out, lse); causal only with as many queries as keys."""


def attend_flash_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """Write the attention of a call that the table gives to FlashAttention-3 (hopper/flash_attn_interface.py).

    `num_splits=0` lets it split the keys of few queries over the GPU; its default, 1, does not. Heads of multi-head
    latent attention go as it takes them: the rotary part as queries and keys, the latents as `qv` and values, of which
    the score is the sum of both products. Arguments are those of `attend_cudnn`.
    """
    name = module(FLASH_3_MODULES)
    assert name is not None, FLASH_3
    options: dict[str, Any] = {}
    if q.shape[3] > WIDEST:
        latent = v.shape[3]
        options["qv"] = q[..., :latent].transpose(1, 2)
        q, k = q[..., latent:], k[..., latent:]
    out, lse, *_ = import_module(name).flash_attn_func(
        *(x.transpose(1, 2) for x in (q, k, v)),
        softmax_scale=scale,
        causal=seen != "all",
        num_splits=0,
        return_attn_probs=True,
        **options,
    )
    write_partial(out, lse, CONVENTIONS["flash_attn 3"], result)


def attend_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """Write the attention of a call that the table gives to cuDNN.

    Args:
        q: [batch, heads, q_len, d], float16 or bfloat16.
        k: [batch, kv_heads, n, d].
        v: [batch, kv_heads, n, d_v].
        seen: "all", or causal with the queries at the end of the keys.
        scale: Factor on q.k.
        result: Float32 tensors to write; out has the rounding of q's dtype.
    """
    _attend(_cudnn, "torch cuDNN", (q, k, v), seen, scale, result)


def attend_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """The same by torch's kernel for the CPU, float32 too; d_v is d."""
    _attend(_flash_cpu, "torch flash, CPU", (q, k, v), seen, scale, result)


def _attend(
    kernel: Kernel,
    family: str,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    seen: str,
    scale: float,
    result: Partial,
) -> None:
    q, k, v = arrays
    free = k.shape[2] - q.shape[2]  # keys that all queries see
    if seen != "last":
        write_partial(*kernel(q, k, v, seen == "square", scale), CONVENTIONS[family], result)
        return
    parts = []
    for keys, causal in ((slice(0, free), False), (slice(free, None), True)):
        part = Partial(torch.empty_like(result.out), torch.empty_like(result.lse))
        write_partial(*kernel(q, k[:, :, keys], v[:, :, keys], causal, scale), CONVENTIONS[family], part)
        parts.append(part)
    merged = merge_states(*zip(*parts, strict=True))
    for target, x in zip(result, merged, strict=True):
        target.copy_(x)


def _cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """No bias, with lse, without dropout."""
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse, *_ = attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    return out, lse


def _flash_cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    # It gives (0, 0.0) for a row whose scores are all NaN or -inf (seen with torch 2.13 and fewer keys than a vector
    # holds). A true 0.0 is rare, so such rows can be looked at one by one.
    group = q.shape[1] // k.shape[1]
    for b, h, i in (lse == 0).nonzero().tolist():
        keys = k[b, h // group, : i + 1] if causal else k[b, h // group]
        lse[b, h, i] = (keys.float() @ q[b, h, i].float() * scale).logsumexp(0)
    return out, lse
