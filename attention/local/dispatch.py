"""Attention over one shard of keys, by the kernel that `attention.local.choice` has for the call and the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from attention import gpu
from attention.array_types import AnyArray, Numbers
from attention.arrays import Inputs, check_inputs, check_out, empty_partial, to_caller
from attention.gpu.masks import DeviceVisibility
from attention.gpu.placement import current, on_gpu
from attention.local.blocks import attend_blocks
from attention.local.calls import call_of, call_of_inputs, well_formed
from attention.local.choice import (
    CUDNN,
    FEW_QUERIES,
    FLASH_3,
    FLASHINFER,
    FLASHINFER_BATCH,
    FLASHINFER_LATENTS,
    TORCH_AMX,
    TORCH_CPU,
    Call,
    choose,
)
from attention.local.compiled_attention import attend_rows, covers
from attention.local.local_machine import machine_of
from attention.partial import Partial
from attention.spec import PLAIN, Spec
from attention.visibility import Masking
from topocomm import OperatorError
from topocomm.extend import skipped_by_dynamo

LIBRARIES = {
    FLASH_3: ("attention.local.library_kernels", "attend_flash_3"),
    CUDNN: ("attention.local.library_kernels", "attend_cudnn"),
    FLASHINFER: ("attention.local.flashinfer", "attend"),
    FLASHINFER_BATCH: ("attention.local.flashinfer", "attend_batch"),
    FLASHINFER_LATENTS: ("attention.local.flashinfer", "attend_latents"),
    TORCH_AMX: ("attention.local.library_kernels", "attend_cpu"),
    TORCH_CPU: ("attention.local.library_kernels", "attend_cpu"),
}
"""Where the kernels of other libraries are called, each attend(q, k, v, seen, scale, result), with lengths=
where the table has it take kv_lengths."""


# The arguments are those of a public interface; the sharded functions share them.
@skipped_by_dynamo
def local_attention(  # noqa: PLR0913
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    spec: Spec | None = None,
    q_positions: Numbers = None,
    kv_positions: Numbers = None,
    kv_mask: Numbers = None,
    kv_lengths: Numbers = None,
    block_tables: Numbers = None,
    exact: str | None = None,
    out: Partial | None = None,
) -> Partial:
    """Attention of all queries over the keys given, as a float32 Partial.

    Which kernel runs stands in a table, `attention.local.choice.TABLE`; `topocomm doctor` prints what it chooses here,
    and why. On a GPU those of FlashAttention-3, cuDNN and FlashInfer come first where they are there and take the
    call, then the Triton kernels of this package. On the CPU it is a compiled kernel; torch's for prompts in bfloat16
    that may be rounded, where the processor has AMX; without the compiled part torch's, and products block by block.
    Scores, softmax and sums are float32 whatever the input dtype. K and V are never expanded over query heads, and what
    a call of ours needs beyond inputs and result does not grow with n or q_len (on the CPU less than 32 MiB).

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16; NumPy or torch (CPU or CUDA), any strides.
        k: [batch, kv_heads, n, d]; heads is a multiple of kv_heads; n may be 0. With block_tables
            [pages, kv_heads, page size, d], any strides.
        v: [batch, kv_heads, n, d_v], of k's dtype; likewise.
        spec: Which attention; None: Spec(). Without sinks, which are no part of a partial: `add_sinks` adds them.
        q_positions: Global positions of the queries, integers [q_len] or [batch, q_len], in any order. Used only if
            causal or with a window or slopes; without both positions the queries are taken to be the last ones of
            these keys.
        kv_positions: Global positions of the keys, [n] or [batch, n], in any order.
        kv_mask: Bool [n] or [batch, n]: True where a key exists. None: all exist.
        kv_lengths: Integers [batch]: only the first so many keys of an entry exist. None: all.
        block_tables: Integers [batch, pages of an entry]: key i of an entry is number i modulo the page size of the
            page block_tables[entry, i // page size]. What lies beyond kv_lengths, which are needed, may be anything.
        exact: "float32": out is not rounded on its way, which leaves out the kernels of other libraries for 16-bit
            inputs. None: it may have been rounded to q's dtype once, as other libraries return it: each element by
            2^-8 of itself at most in bfloat16, 2^-11 in float16; a merge adds nothing to the largest such error.
            Weights of more than 16 queries on a GPU are rounded to the dtype of K and V in either case.
        out: A Partial of arrays to write the result into; None allocates them.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm), float32, of q's kind. Rows
        that see no key are (0, -inf). What keys hold that no query of the batch entry sees does not matter, NaN
        neither. NaN and infinities among the scores give NaN.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, or there are sinks.
    """
    if exact not in (None, "float32"):
        raise OperatorError(f'local_attention: exact must be "float32" or None, got {exact!r}')
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
    if on_gpu(q):
        return _attend_on_gpu((q, k, v), PLAIN if spec is None else spec, masking, exact is not None, out)
    if spec is not None and spec.sinks is not None:
        raise OperatorError(
            "local_attention: spec.sinks are counted once, after the partials are merged; leave them out here and call "
            "attention.add_sinks(partial, sinks) on the merged one"
        )
    inputs = check_inputs("local_attention", q, k, v, spec=PLAIN if spec is None else spec, masking=masking)
    if out is None:
        result = inputs.empty_partial()
        attend(inputs, result, exact=exact is not None)
        return Partial(to_caller(q, result.out), to_caller(q, result.lse))
    attend(inputs, _checked_out(out, inputs.out_shape, inputs.q.device), exact=exact is not None)
    return out


def attend(inputs: Inputs, result: Partial, *, between: Callable[[], None] | None = None, exact: bool = True) -> None:
    """Write the attention of checked inputs into float32 tensors (out, lse) of any strides.

    Args:
        inputs: Checked; sinks are not counted.
        result: To write into.
        between: Called now and then on the way, so that messages move meanwhile.
        exact: As `local_attention` has it, where it is "float32".
    """
    if on_gpu(inputs.q) and exact:  # what rounds nothing there is ours
        return gpu.attend(inputs, result, between=between)
    compiled = not on_gpu(inputs.q) and covers(inputs)
    few = inputs.q.shape[2] <= FEW_QUERIES
    if compiled and (exact or few or inputs.q.dtype != torch.bfloat16):  # no look at the table, which says the same
        return attend_rows(inputs, result, between)
    call = call_of_inputs(inputs, exact=exact, extra=frozenset() if between is None else frozenset({"between"}))
    name = _chosen(call, inputs.q.device)
    if name in LIBRARIES:
        visibility = inputs.visibility
        lengths = visibility.masking.kv_lengths if isinstance(visibility, DeviceVisibility) else None
        return _attend_by_library(name, call, (inputs.q, inputs.k, inputs.v), inputs.scale, result, lengths)
    if on_gpu(inputs.q):
        return gpu.attend(inputs, result, between=between)
    if compiled:
        return attend_rows(inputs, result, between)
    return attend_blocks(inputs, result, between)


def _attend_by_library(
    name: str,
    call: Call,
    arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
    result: Partial,
    lengths: Any,
) -> None:
    with current(arrays[0].device):
        _library(name)(*arrays, call.seen, scale, result, **({} if lengths is None else {"lengths": lengths}))


def _chosen(call: Call, device: torch.device) -> str:
    return choose(call, machine_of(device, gpu=call.device == "cuda")).row.name


def _attend_on_gpu(
    arrays: tuple[Any, Any, Any], spec: Spec, masking: Masking, exact: bool, out: Partial | None
) -> Partial:
    """`local_attention` of tensors on a GPU; what does not fit is said by our kernels, which check it."""
    q, k, v = arrays
    if not exact and spec.sinks is None and masking.block_tables is None and well_formed(q, k, v):
        call = call_of(arrays, spec, masking, exact=False)
        name = _chosen(call, q.device)
        if name in LIBRARIES:
            shape = (*q.shape[:3], v.shape[3])
            result = empty_partial(shape, q.device) if out is None else _checked_out(out, shape, q.device)
            _attend_by_library(name, call, arrays, spec.scale_for(q.shape[3]), result, masking.kv_lengths)
            return result if out is None else out
    return gpu.local_partial("local_attention", arrays, spec, masking, out)


def _checked_out(out: Partial, shape: tuple[int, ...], device: torch.device) -> Partial:
    return Partial(
        check_out("local_attention", "out.out", out.out, shape, torch.float32, device),
        check_out("local_attention", "out.lse", out.lse, shape[:3], torch.float32, device),
    )


@cache
def _library(name: str) -> Callable[..., None]:
    module, function = LIBRARIES[name]
    attend_library: Callable[..., None] = getattr(import_module(module), function)
    return attend_library
