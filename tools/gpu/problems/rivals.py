"""Other libraries' attention on the same tensors: torch's SDPA by each of its backends, flash_attn, FlashInfer.

None copies keys or values. SDPA's efficient backend has no grouped heads, so it is there where one query's heads can be
rows, for decoding, and not for prompts. FlashInfer takes the entries of a batch one by one: its calls for batches want
pages.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""attend(q, k, v, causal) -> out, of [batch, heads, rows, head dim] each."""


def _sdpa(backend: SDPBackend) -> Attend:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return attend


def _sdpa_rows(backend: SDPBackend) -> Attend:
    """Attend with the query heads of a key head as its rows, which decoding allows."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        batch, heads, q_len, d = q.shape
        if causal or q_len != 1:
            raise ValueError("only for one query that sees all keys")
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(q.view(batch, k.shape[1], -1, d), k, v)
        return out.reshape(batch, heads, q_len, v.shape[3])

    return attend


def _flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    library: Any = import_module("flash_attn")
    made: torch.Tensor = library.flash_attn_func(*rows, causal=causal)
    return made.transpose(1, 2)


def _flash_attn_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    library: Any = import_module("flash_attn_interface")
    if q.shape[2] == 1:  # its flash_attn_func does not split keys, which is what makes decoding fast
        made: Any = library.flash_attn_with_kvcache(*rows)
    else:
        made = library.flash_attn_func(*rows, causal=causal)
    out: torch.Tensor = made[0] if isinstance(made, tuple) else made
    return out.transpose(1, 2)


def _flashinfer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    library: Any = import_module("flashinfer")
    made = []
    for one_q, one_k, one_v in zip(q, k, v, strict=True):
        if one_q.shape[1] == 1:
            out = library.single_decode_with_kv_cache(one_q[:, 0], one_k, one_v, kv_layout="HND")[:, None]
        else:
            rows = one_q.transpose(0, 1).contiguous()
            out = library.single_prefill_with_kv_cache(rows, one_k, one_v, causal=causal, kv_layout="HND")
            out = out.transpose(0, 1)
        made.append(out)
    return torch.stack(made)


RIVALS: dict[str, Attend] = {
    "SDPA flash": _sdpa(SDPBackend.FLASH_ATTENTION),
    "SDPA cudnn": _sdpa(SDPBackend.CUDNN_ATTENTION),
    "SDPA efficient": _sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "SDPA flash, heads as rows": _sdpa_rows(SDPBackend.FLASH_ATTENTION),
    "SDPA cudnn, heads as rows": _sdpa_rows(SDPBackend.CUDNN_ATTENTION),
    "SDPA efficient, heads as rows": _sdpa_rows(SDPBackend.EFFICIENT_ATTENTION),
    "flash_attn": _flash_attn,
    "flash_attn 3": _flash_attn_3,
    "FlashInfer": _flashinfer,
}
