"""Attention of many queries on a GPU, as a float32 Partial: prompts, and the blocks of ring attention.

It can merge onto a partial that is there, so that a hop of a ring needs no pass of its own for the merge.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from attention.arrays import Inputs, empty_partial
from attention.gpu.limits import arch_of, pieces
from attention.gpu.masks import slopes_on
from attention.gpu.placement import current
from attention.gpu.prefill.block_lists import block_lists_of
from attention.gpu.prefill.prefill_inputs import (
    PrefillMask,
    check_result,
    check_spec,
    check_tensors,
    mask_of_visibility,
    prefill_mask_of,
)
from attention.gpu.prefill.prefill_kernel import prefill_kernel
from attention.gpu.prefill.prefill_table import Tile, problem_of, tile_for
from attention.partial import Partial
from attention.spec import PLAIN, Spec
from attention.visibility import Masking
from topocomm.extend import launcher

INTERPRETED = not isinstance(prefill_kernel, triton.runtime.JITFunction)
"""Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1): CPU tensors, slow, for tests."""

DOT_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

CACHE_BYTES = 16 << 20
"""Most bytes of keys and values whose heads run side by side: after the first block of queries they should come from
the second-level cache (40 to 50 MiB on A100 and H100)."""

COLUMNS = 16
"""What columns and strides of arrays in 16 bits are multiples of: Triton asks for that before it loads wide."""

LEAST_FOLDED = 2.0**-100
"""Least scale that is folded into the exponent."""

MOST_WINDOW = 1 << 30
"""Beyond the distance of any two positions that are given by an offset."""


# The arguments are those of local_attention; tensors of one call belong together.
def prefill_partial(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: Any = None,
    kv_positions: Any = None,
    kv_mask: Any = None,
    kv_lengths: Any = None,
    merge_into: Partial | None = None,
) -> Partial:
    """Return attention of all queries over the keys given, as a float32 Partial: `attention.local_attention` on a GPU.

    Scores, softmax and sums are float32; K and V are never expanded over query heads. Weights are rounded to the dtype
    of K and V before they multiply values: an element of out is within 2^-8 (bfloat16) or 2^-11 (float16) of the
    weighted mean of |v| of the exact one, lse has float32 accuracy; float32 inputs are multiplied in float32. Nothing
    is read back from the GPU, so that the call does not wait for it.

    Causal attention, windows and slopes by contiguous positions are the fast way: blocks of keys beyond the diagonal or
    the window are not touched, and only those on an edge are masked. Positions in any other order, and kv_mask, make
    lists of the blocks to pass from the least and greatest position of each (a few small kernels, 4 bytes per pair of
    blocks).

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16; d up to 512; without gradients.
        k: [batch, kv_heads, n, d]; n may be 0.
        v: [batch, kv_heads, n, d_v], of k's dtype. A last axis that is not dense is copied, of q and k too; arrays in
            16 bits also where head dim or strides are no multiples of 16 items.
        spec: As `attention.local_attention`, and so are kv_mask and kv_lengths.
        q_positions: Position of the first query, an int, if they are contiguous; or positions of all, integers [q_len]
            or [batch, q_len], in any order. Used only if causal or with a window or slopes; without both positions
            the queries are taken to be the last ones of these keys.
        kv_positions: The same of the keys, an int, [n] or [batch, n].
        kv_mask: As there.
        kv_lengths: As there.
        merge_into: A float32 Partial of the result's shape, over other keys; this attention is merged onto it, in
            place, by the rule of `attention.LOGSUMEXP` with float32 weights. Empty rows may hold anything.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32; `merge_into` where
        there is one. Rows that see no key are (0, -inf). What keys hold that no query of the batch entry sees does not
        matter, NaN neither.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, or there are sinks; the message names the argument.
    """
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths)
    return attend_arrays("prefill_partial", (q, k, v), spec or PLAIN, masking, merge_into=merge_into)


def attend_arrays(
    function: str,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spec: Spec,
    masking: Masking,
    *,
    out: Partial | None = None,
    merge_into: Partial | None = None,
) -> Partial:
    """`prefill_partial` under the name of another function, and with a Partial to write into, if `out` is given."""
    q, k, v = arrays
    check_tensors(function, q, k, v, interpreted=INTERPRETED)
    check_spec(function, spec, q.shape[1])
    mask = prefill_mask_of(function, tuple(q.shape), k.shape[2], spec, masking, q.device)
    shape = (*q.shape[:3], v.shape[3])
    result = merge_into if out is None else out
    if result is None:
        result = empty_partial(shape, q.device)
    else:
        result = check_result(function, "merge_into" if out is None else "out", result, shape, q.device)
    _launch(arrays, spec, result, mask, merges=merge_into is not None)
    return result


def attend_inputs(inputs: Inputs, result: Partial, *, merges: bool = False) -> None:
    """Write the attention of checked inputs into float32 tensors (out, lse), or merge it onto them.

    Contiguous positions need no block lists if the visibility is in host memory.
    """
    mask = mask_of_visibility(inputs.visibility, inputs.spec, inputs.q.device)
    _launch((inputs.q, inputs.k, inputs.v), inputs.spec, result, mask, merges=merges)


def _launch(
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spec: Spec,
    result: Partial,
    mask: PrefillMask,
    *,
    merges: bool,
) -> None:
    if result.lse.numel() == 0:
        return
    q, k, v = arrays
    scale, width = spec.scale_for(q.shape[-1]), v.shape[-1]
    dot = q.dtype if q.dtype == k.dtype else torch.float32
    q, k, v = (_dense(x) if dot == torch.float32 else _aligned(x) for x in arrays)
    heads, d, d_v = q.shape[1], q.shape[-1], v.shape[-1]
    entries, q_len, n, group = q.shape[0], q.shape[2], k.shape[2], heads // k.shape[1]
    visibility = mask.visibility if n else None
    bent = spec.softcap is not None or spec.alibi_slopes is not None
    full = bent or merges or spec.window is not None or mask.lengths is not None
    tile = _tile(dot, max(d, d_v), q_len, "lists" if visibility is not None else "full" if full else "plain")
    blocks, pairs = -(-q_len // tile.rows), entries * heads
    lists = None if visibility is None else block_lists_of(visibility, tile.rows, tile.keys)
    with current(q.device):
        launcher(prefill_kernel, (blocks * pairs,))(
            q,
            k,
            v,
            *result,
            mask.lengths,
            slopes_on(q.device, spec.slopes),
            *(lists or [None] * 6),
            q_len,
            n,
            mask.offset or 0,
            min(spec.window or 0, MOST_WINDOW),
            scale,
            spec.softcap or 0.0,
            blocks,
            pairs,
            group * max(1, CACHE_BYTES // max(1, n * (d + d_v) * k.element_size())),
            0 if lists is None else lists.numbers.shape[2],
            *(stride for x in (q, k, v) for stride in (x.stride()[:3] if dot == torch.float32 else _strides(x))),
            *(stride for x in result for stride in x.stride()[:3]),
            *(
                [0] * 3
                if lists is None
                else [x.shape[1] if len(x) > 1 else 0 for x in (lists.low, lists.keys, lists.numbers)]
            ),
            HEADS=heads,
            GROUP=group,
            **_pieces("D", d),
            **_pieces("DV", d_v),
            WIDTH=width,
            CAUSAL=spec.causal,
            WINDOW=spec.window is not None,
            SOFTCAP=spec.softcap is not None,
            LAST=mask.offset is None,
            FOLDED=scale >= LEAST_FOLDED and not bent,
            MERGE=merges,
            DOT=DOT_TYPES[dot],
            INTERPRETED=INTERPRETED,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The array, or a copy if its last axis is not dense."""
    return x if x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """The array, or a copy with zeros to whole `COLUMNS` if its rows do not begin at multiples of them.

    Else the kernel would load items one by one. Besides, `ptxas` 12.8, of Triton 3.6, computes descriptors of matrix
    products of such a kernel from registers that hold other things (seen on an H100, head dims 24 x 72).
    """
    width = x.shape[-1]
    if (
        width % COLUMNS == 0
        and x.stride(-1) == 1
        and x.data_ptr() % 16 == 0
        and not any(s % COLUMNS for s in _strides(x))
    ):
        return x
    copy = x.new_zeros(*x.shape[:-1], -(-width // COLUMNS) * COLUMNS)
    copy[..., :width] = x
    return copy


def _strides(x: torch.Tensor) -> list[int]:
    """Strides of batch entries, heads and rows, 0 where there is one."""
    return [0 if size == 1 else stride for size, stride in zip(x.shape[:3], x.stride(), strict=False)]


def _tile(dot: torch.dtype, width: int, q_len: int, form: str) -> Tile:
    if INTERPRETED:
        return Tile(32, 32, 4, 1)
    target = triton.runtime.driver.active.get_current_target()
    arch, bits = arch_of(target.backend, target.arch), 32 if dot == torch.float32 else 16
    return tile_for(problem_of(arch, bits, width, q_len=q_len, form=form))


def _pieces(name: str, width: int) -> dict[str, int]:
    """A head dim and its pieces, as the kernel names them."""
    first, second = pieces(width)
    return {name: width, f"{name}0": first, f"{name}1": second}
