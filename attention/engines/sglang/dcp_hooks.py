"""SGLang's three merges of decode context parallelism on `combine_heads`, as hooks of its kind "around".

Each is called with SGLang's own function and that function's arguments, keeps its contract, and calls it where ours
does not serve, and for a group of one rank. Contracts are those of `sglang.srt.layers.dcp.comm`: out [B, H, D] and lse
[B, H] of all heads in, this rank's H/N heads out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attention.engines.substitution import combined
from attention.partial import Partial

MODULE = "sglang.srt.layers.dcp.comm"


def mha(
    engines_own: Callable[..., Any],
    cp_attn_out: torch.Tensor,
    cp_attn_lse: torch.Tensor,
    cp_group: Any,
    return_lse: bool = False,
) -> Any:
    """Return out [B, H/N, D], or (that, lse [B, H/N]); natural logarithms. Errors are those of `combined`."""
    partial = Partial(cp_attn_out, cp_attn_lse)
    merged = combined("cp_lse_ag_out_rs_mha", partial, cp_group, natural=True, return_lse=return_lse)
    if merged is None:
        return engines_own(cp_attn_out, cp_attn_lse, cp_group, return_lse=return_lse)
    return (merged.out, merged.lse.to(cp_attn_lse.dtype)) if return_lse else merged.out


def mla(
    engines_own: Callable[..., Any],
    cp_attn_out: torch.Tensor,
    cp_attn_lse: torch.Tensor,
    cp_group: Any,
    ctx: Any = None,
    is_lse_base_on_e: bool = False,
) -> Any:
    """Return out [H/N, B, D], heads first as SGLang's; logarithms of base 2 by default, as its."""
    partial = Partial(cp_attn_out, cp_attn_lse)
    merged = combined("cp_lse_ag_out_rs_mla", partial, cp_group, natural=is_lse_base_on_e, heads_first=True)
    if merged is None:
        return engines_own(cp_attn_out, cp_attn_lse, cp_group, ctx=ctx, is_lse_base_on_e=is_lse_base_on_e)
    return merged.out.transpose(0, 1)


def a2a(
    engines_own: Callable[..., Any],
    cp_attn_out: torch.Tensor,
    cp_attn_lse: torch.Tensor,
    cp_group: Any,
    is_lse_base_on_e: bool = True,
    cuda_graph_buffers: dict[str, Any] | None = None,
    comm_backend: str = "a2a",
) -> Any:
    """Return out [B, H/N, D]; a `comm_backend` other than "a2a" is a kernel that was asked for, and stays SGLang's."""
    merged = None
    if comm_backend == "a2a":
        partial = Partial(cp_attn_out, cp_attn_lse)
        merged = combined("dcp_a2a_lse_reduce", partial, cp_group, natural=is_lse_base_on_e)
    if merged is None:
        return engines_own(
            cp_attn_out,
            cp_attn_lse,
            cp_group,
            is_lse_base_on_e=is_lse_base_on_e,
            cuda_graph_buffers=cuda_graph_buffers,
            comm_backend=comm_backend,
        )
    return merged.out


HOOKS: dict[str, Callable[..., Any]] = {
    "cp_lse_ag_out_rs_mha": mha,
    "cp_lse_ag_out_rs_mla": mla,
    "dcp_a2a_lse_reduce": a2a,
}
"""By SGLang's functions, whose parameters in 0.5.23 they have."""
