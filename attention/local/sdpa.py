"""Partials from the kernels behind torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention.conventions import CONVENTIONS
from attention.local.kernel_inputs import causality, check_arrays, check_spec, empty_partial, one_head_dim
from attention.merging import merge_states
from attention.normalise import as_partial
from attention.partial import Partial
from attention.spec import Spec

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""kernel(q, k, v, causal, scale) -> (out, lse); causal only with as many queries as keys, where all agree on it."""


def sdpa_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> Partial:
    """Attention of all queries over the keys given, by torch's own kernels.

    On the CPU `_scaled_dot_product_flash_attention_for_cpu`; on CUDA `_scaled_dot_product_flash_attention` in 16 bits
    and `_scaled_dot_product_efficient_attention` in float32, which gets K and V expanded over the query heads. They
    are the operations that scaled_dot_product_attention calls, which keeps their lse to itself. Causality of fewer
    queries than keys is computed as two partials, the keys that all queries see and a square, and merged.

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16, on the CPU or CUDA.
        k: [batch, kv_heads, n, d], of q's dtype; heads is a multiple of kv_heads; n may be 0.
        v: [batch, kv_heads, n, d_v]. Keys and values must be finite, those too that causality hides.
        spec: Which attention; None: Spec().
        q_positions: Global positions, consecutive integers [q_len]; used only if causal. Without both positions the
            queries are taken to be the last ones of these keys.
        kv_positions: Global positions, consecutive integers [n].

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32; (0, -inf) in rows
        that see no key. out has the rounding of q's dtype. NaN in q, and NaN or infinities among the scores, give NaN.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, the positions are not consecutive, or spec sets more
            than scale and causal.
    """
    spec = spec or Spec()
    check_arrays(
        "sdpa_partial", q, k, v, devices=("cpu", "cuda"), dtypes=(torch.float32, torch.float16, torch.bfloat16)
    )
    check_spec("sdpa_partial", spec)
    keys, aligned = causality("sdpa_partial", spec, q.shape[2], k.shape[2], q_positions, kv_positions)
    scale = spec.scale_for(q.shape[3])
    free = keys - q.shape[2]  # keys that all queries see
    if not aligned:
        return _attend(q, k[:, :, :keys], v[:, :, :keys], False, scale)
    square = slice(max(free, 0), keys)
    triangle = _attend(q[:, :, max(-free, 0) :], k[:, :, square], v[:, :, square], True, scale)
    if free < 0:  # the first queries see nothing
        result = empty_partial(q, v)
        result.out[:, :, -free:], result.lse[:, :, -free:] = triangle
        return result
    if free == 0:
        return triangle
    rectangle = _attend(q, k[:, :, :free], v[:, :, :free], False, scale)
    return merge_states((rectangle.out, triangle.out), (rectangle.lse, triangle.lse))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> Partial:
    if 0 in q.shape[:3] or k.shape[2] == 0:  # the CPU kernel divides by these sizes: SIGFPE
        return empty_partial(q, v)
    kernel, family = _kernel(q.device.type, q.dtype)
    wide_q, wide_k, wide_v = one_head_dim(q, k, v)
    out, lse = kernel(wide_q, wide_k, wide_v, causal, scale)
    some_key = torch.zeros((), dtype=torch.bool, device=q.device)  # no row is empty
    return as_partial(out[..., : v.shape[3]], lse, CONVENTIONS[family], empty=some_key)


def _kernel(device: str, dtype: torch.dtype) -> tuple[Kernel, str]:
    if device == "cpu":
        return _flash_cpu, "torch flash, CPU"
    return (_efficient, "torch efficient") if dtype == torch.float32 else (_flash_cuda, "torch flash, CUDA")


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


def _flash_cuda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    out, lse, *_ = efficient(q, k, v, None, True, 0.0, causal, scale=scale)
    return out, lse
