"""Partials from torch's FlexAttention."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import torch

from attention.conventions import CONVENTIONS
from attention.local.kernel_inputs import check_arrays, check_spec, empty_partial
from attention.normalise import as_partial
from attention.partial import Partial
from attention.spec import Spec
from topocomm import OperatorError


def flex_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
) -> Partial:
    """Attention of all queries over the keys given, by FlexAttention.

    On CUDA it is compiled at the first call of a shape, as its documentation asks. On the CPU torch 2.13 compiles it
    without lse only, so there it runs uncompiled, with the whole matrix of scores in memory: for checks.
    Causality is a score_mod, so positions may be in any order; no block of keys is skipped.
    https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16.
        k: [batch, kv_heads, n, d], of q's dtype; heads is a multiple of kv_heads; n may be 0.
        v: [batch, kv_heads, n, d_v]. Keys and values must be finite, those too that causality hides.
        spec: Which attention; None: Spec().
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len]; used only if causal. Without
            both positions the queries are taken to be the last ones of these keys.
        kv_positions: Global positions of the keys, [n] or [batch, n].

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32; (0, -inf) in rows
        that see no key. out has the rounding of q's dtype. NaN among the scores gives NaN.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, or spec sets more than scale and causal.
    """
    spec = spec or Spec()
    check_arrays(
        "flex_partial", q, k, v, devices=("cpu", "cuda"), dtypes=(torch.float32, torch.float16, torch.bfloat16)
    )
    check_spec("flex_partial", spec)
    if 0 in q.shape[:3] or k.shape[2] == 0:
        return empty_partial(q, v)
    hide, empty = None, torch.zeros((), dtype=torch.bool, device=q.device)
    if spec.causal:
        hide, empty = _hidden_keys(q, k, q_positions, kv_positions)
    out, lse = _run(q.device.type, q, k, v, score_mod=hide, scale=spec.scale_for(q.shape[3]))
    return as_partial(out, lse, CONVENTIONS["FlexAttention"], empty=empty)


def _hidden_keys(q: torch.Tensor, k: torch.Tensor, q_positions: Any, kv_positions: Any) -> tuple[Any, torch.Tensor]:
    """The score_mod that hides keys behind the query, and the rows that see none, bool [batch, 1, q_len]."""
    batch, q_len, n = q.shape[0], q.shape[2], k.shape[2]
    if (q_positions is None) != (kv_positions is None):
        raise OperatorError("flex_partial: causal attention needs q_positions and kv_positions, or neither")
    if q_positions is None:
        q_positions, kv_positions = torch.arange(n - q_len, n), torch.arange(n)
    queries = _positions("q_positions", q_positions, batch, q_len, q.device)
    keys = _positions("kv_positions", kv_positions, batch, n, q.device)

    def hide(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return torch.where(keys[b, j] <= queries[b, i], score, -math.inf)

    return hide, (queries < keys.amin(1, keepdim=True))[:, None]


def _positions(name: str, given: Any, batch: int, count: int, device: torch.device) -> torch.Tensor:
    positions = torch.as_tensor(given, device=device)
    if positions.shape not in ((count,), (1, count), (batch, count)):
        raise OperatorError(
            f"flex_partial: {name} must be [{count}] or [batch, {count}] with batch {batch}, "
            f"got {list(positions.shape)}"
        )
    if positions.dtype == torch.bool or positions.is_floating_point():
        raise OperatorError(f"flex_partial: {name} must be integers, got {positions.dtype}")
    return positions.expand(batch, count)


def _run(device: str, *arrays: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile", UserWarning)
        out, aux = _flex(device)(*arrays, enable_gqa=True, return_aux=_lse(), **options)
    return out, aux.lse


def _lse() -> Any:
    from torch.nn.attention.flex_attention import AuxRequest

    return AuxRequest(lse=True)


@cache
def _flex(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if device == "cpu" else torch.compile(flex_attention)
