"""FlashInfer: https://docs.flashinfer.ai/generated/flashinfer.prefill.single_prefill_with_kv_cache.html."""

from __future__ import annotations

from importlib import import_module

import torch

from attention.conventions import CONVENTIONS
from attention.normalise import write_partial
from attention.partial import Partial

CONVENTION = CONVENTIONS["FlashInfer"]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: str, scale: float, result: Partial) -> None:
    """Write the attention of a call that the table gives to FlashInfer: few queries of one sequence.

    Its kernel for prompts on tensor cores, which splits keys where queries are few: the same that its
    `single_decode_with_kv_cache(use_tensor_cores=True)` runs. "fa2" is asked for since its Hopper kernel does not
    split. lse is to base 2 (cascade.cuh), causality is aligned to the bottom right.

    Args:
        q: [1, heads, q_len, d], float16 or bfloat16.
        k: [1, kv_heads, n, d].
        v: [1, kv_heads, n, d], of k's strides: it reads both by those of k.
        seen: "all", or causal with the queries at the end of the keys.
        scale: Factor on q.k.
        result: Float32 tensors to write; out has the rounding of q's dtype.
    """
    out, lse = import_module("flashinfer").single_prefill_with_kv_cache(
        q[0].transpose(0, 1).contiguous(),
        k[0],
        v[0],
        causal=seen != "all",
        kv_layout="HND",
        sm_scale=scale,
        backend="fa2",
        return_lse=True,
    )
    write_partial(out, lse, CONVENTION, result)
