"""vLLM's `dcp_combine` on `combine_heads`, under the contract of `vllm.v1.attention.ops.dcp`.

Both functions of vLLM that it takes the place of, `cp_lse_ag_out_rs` and `dcp_a2a_lse_reduce`, have one contract:
(out [B, H, D], lse [B, H], coordinator) -> out [B, H/N, D] of this rank's heads, and with return_lse the merged lse
[B, H/N]; rows of sequences without keys on this rank, and rows behind the last sequence, are empty whatever lse says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from attention.engines.substitution import combined, misfit, say_once
from attention.partial import Partial

REPLACED = ("cp_lse_ag_out_rs", "dcp_a2a_lse_reduce")
"""Of vLLM's functions, whose parameters in 0.32 and 0.33 `dcp_combine` has."""


def in_place_of(engines_own: Callable[..., Any]) -> Callable[..., Any]:
    """Return our merge for a `dcp_combine` of vLLM's: one of `REPLACED`, or a partial of it, whose arguments stay.

    What is ours already, or another function, is returned as it is; with a warning where one of these has other
    parameters than those we know.
    """
    function, bound = engines_own, {}
    if isinstance(engines_own, functools.partial):
        if engines_own.args:
            return engines_own
        function, bound = engines_own.func, engines_own.keywords
    if getattr(function, "__name__", "") not in REPLACED:
        return engines_own
    fault = misfit(function, dcp_combine)
    if fault is not None:
        say_once(f"vLLM's merge stays as it is: {fault}")
        return engines_own
    ours = functools.partial(dcp_combine, function)
    return functools.partial(ours, **bound) if bound else ours


# The arguments are vLLM's.
def dcp_combine(
    engines_own: Callable[..., Any],
    cp_attn_out: torch.Tensor,
    cp_attn_lse: torch.Tensor,
    cp_group: Any,
    ctx: Any = None,
    return_lse: bool = False,
    is_lse_base_on_e: bool = True,
    seq_lens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
) -> Any:
    """Merge the partials of a DCP group; collective over its ranks.

    Args:
        engines_own: vLLM's function, called where ours does not serve, and for a group of one rank.
        cp_attn_out: [B, H, D]; left as it is.
        cp_attn_lse: [B, H], any strides; left as it is.
        cp_group: vLLM's GroupCoordinator.
        ctx: Of vLLM's kernel; not used.
        return_lse: Whether the merged lse is wanted too.
        is_lse_base_on_e: Whether lse is a natural logarithm, else one of base 2; the result's is of the same base.
        seq_lens: [sequences]: keys of each on this rank; with query_start_loc, or neither.
        query_start_loc: [sequences + 1]: first row of each sequence, and behind the last.

    Returns:
        [B, H/N, D] in the dtype of cp_attn_out, or (that, lse float32 [B, H/N]).

    Raises:
        OperatorError, MismatchError, DeadlineError, RankFailedError: As `combined`.
    """

    def empty() -> torch.Tensor | None:
        if seq_lens is None or query_start_loc is None:
            return None
        return empty_rows(cp_attn_out.shape[0], seq_lens, query_start_loc)

    merged = None
    if (seq_lens is None) is (query_start_loc is None):
        name = getattr(engines_own, "__name__", "dcp_combine")
        partial = Partial(cp_attn_out, cp_attn_lse)
        merged = combined(name, partial, cp_group, natural=is_lse_base_on_e, empty=empty, return_lse=return_lse)
    if merged is None:
        return engines_own(
            cp_attn_out,
            cp_attn_lse,
            cp_group,
            ctx=ctx,
            return_lse=return_lse,
            is_lse_base_on_e=is_lse_base_on_e,
            seq_lens=seq_lens,
            query_start_loc=query_start_loc,
        )
    return (merged.out, merged.lse) if return_lse else merged.out


def empty_rows(rows: int, seq_lens: torch.Tensor, query_start_loc: torch.Tensor) -> torch.Tensor:
    """Return which rows have no keys on this rank: bool [rows]; nothing is read on the host, so graphs record it.

    A row behind all sequences counts as one more sequence, without keys: such rows pad a batch to the size of a graph.
    """
    row = torch.arange(rows, device=seq_lens.device, dtype=query_start_loc.dtype)
    sequence = torch.bucketize(row, query_start_loc[1:].contiguous(), right=True)
    return torch.nn.functional.pad(seq_lens, (0, 1)).index_select(0, sequence) == 0
