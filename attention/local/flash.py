"""FlashAttention-3: https://github.com/Dao-AILab/flash-attention/blob/main/hopper/flash_attn_interface.py."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from attention.local.choice import FLASH_3
from attention.local.conventions import CONVENTIONS
from attention.local.local_machine import FLASH_3_MODULES, module
from attention.local.normalise import write_partial
from attention.partial import Partial

WIDEST = 256
"""Beyond this, keys are latents that are the values too, and a rotary part of at most 64."""
CONVENTION = CONVENTIONS["flash_attn 3"]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """Write the attention of a call that the table gives to FlashAttention-3.

    `num_splits=0` lets it split the keys of few queries over the GPU; its default, 1, does not. Heads of multi-head
    latent attention go as it takes them: the rotary part as queries and keys, the latents as `qv` and values, of which
    the score is the sum of both products.

    Args:
        q: [batch, heads, q_len, d], float16 or bfloat16.
        k: [batch, kv_heads, n, d].
        v: [batch, kv_heads, n, d_v].
        seen: "all", or causal with the queries at the end of the keys.
        scale: Factor on q.k.
        result: Float32 tensors to write; out has the rounding of q's dtype.
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
    write_partial(out, lse, CONVENTION, result)
