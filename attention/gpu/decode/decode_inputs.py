"""Checks of the arguments of the decode kernel."""

from __future__ import annotations

from typing import Any

import torch

from attention.gpu.limits import DECODE_QUERIES, DECODE_WIDEST
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import Masking
from topocomm import OperatorError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)


# What belongs to a call is checked together.
def check_inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: Spec,
    masking: Masking,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    interpreted: bool,
) -> None:
    """Raise an OperatorError if the arguments of `decode_partial` do not fit; CPU tensors fit if `interpreted`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_array(name, x, q, interpreted)
    batch, heads, q_len, d = q.shape
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not 1 <= q_len <= DECODE_QUERIES:
        raise _fault(f"q_len must be 1 to {DECODE_QUERIES}, got {q_len}; the prefill kernel takes more")
    if k.shape[:3] != v.shape[:3] or k.dtype != v.dtype:
        raise _fault(f"k and v must agree in all but the head dim, got {shapes}, {k.dtype} and {v.dtype}")
    if k.shape[3] != d or not (masking.block_tables is not None or k.shape[0] == batch):
        raise _fault(f"q and k must agree in batch and head dim, got {shapes}")
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise _fault(f"the heads of q must be a multiple of those of k and v, got {shapes}")
    widest = DECODE_WIDEST[4 if q.dtype == torch.float32 else 2]
    if not (1 <= d <= widest and 1 <= v.shape[3] <= widest):
        raise _fault(f"head dims of {q.dtype} must be 1 to {widest}, got {shapes}")
    if k.dtype != q.dtype and k.dtype not in BYTES:
        raise _fault(f"k and v must have q's dtype {q.dtype}, or be float8 with scales, got {k.dtype}")
    if spec.sinks is not None:
        raise _fault("spec.sinks are counted once, after the merge; call attention.add_sinks on the merged partial")
    for name, values in zip(("k_scales", "v_scales"), scales, strict=True):
        if values is not None and (values.shape != (k.shape[1],) or values.dtype != torch.float32):
            raise _fault(f"{name} must be float32 [{k.shape[1]}], got {values.dtype} {list(values.shape)}")
    if spec.alibi_slopes is not None and len(spec.alibi_slopes) != heads:
        raise _fault(f"spec.alibi_slopes has {len(spec.alibi_slopes)} values, q has {heads} heads")
    n = k.shape[2] * (1 if masking.block_tables is None else masking.block_tables.shape[-1])
    _check_masking(batch, q_len, n, spec, masking, q.device)


def _check_array(name: str, x: Any, q: torch.Tensor, interpreted: bool) -> None:
    if not isinstance(x, torch.Tensor) or x.ndim != 4:
        raise _fault(f"{name} must be a torch tensor [batch, heads, rows, head dim], got {_described(x)}")
    if x.device != q.device or not (x.is_cuda or interpreted):
        raise _fault(f"{name} must be on the GPU that q is on, got {x.device}")
    if x.stride(3) != 1 and x.shape[3] > 1 and x.numel():
        raise _fault(f"the last axis of {name} must be dense (stride 1), got stride {x.stride(3)}")
    if x.dtype not in FLOATS and (name == "q" or x.dtype not in BYTES):
        raise _fault(f"{name} must be float32, float16 or bfloat16, got {x.dtype}")
    if x.requires_grad:
        raise _fault(f"{name} requires gradients; pass {name}.detach() or use torch.no_grad()")


def _check_masking(batch: int, q_len: int, n: int, spec: Spec, masking: Masking, device: torch.device) -> None:
    if spec.needs_positions and (masking.q_positions is None) != (masking.kv_positions is None):
        missing = "q_positions" if masking.q_positions is None else "kv_positions"
        raise _fault(f"causal attention, windows and slopes need q_positions and kv_positions; {missing} is missing")
    wanted: dict[str, tuple[int, tuple[torch.dtype, ...]]] = {
        "q_positions": (q_len, (torch.int64,)),
        "kv_positions": (n, (torch.int64,)),
        "kv_mask": (n, (torch.bool,)),
    }
    for name, (count, dtypes) in wanted.items():
        x = getattr(masking, name)
        if x is not None and (x.shape not in ((count,), (1, count), (batch, count)) or x.dtype not in dtypes):
            raise _fault(f"{name} must be {dtypes[0]} [{count}] or [{batch}, {count}], got {_described(x)}")
    lengths, tables, whole = masking.kv_lengths, masking.block_tables, (torch.int32, torch.int64)
    if lengths is not None and (lengths.shape != (batch,) or lengths.dtype not in whole):
        raise _fault(f"kv_lengths must be integers [{batch}], got {_described(lengths)}")
    if tables is not None and (tables.ndim != 2 or len(tables) != batch or tables.dtype not in whole):
        raise _fault(f"block_tables must be integers [{batch}, pages of an entry], got {_described(tables)}")
    if tables is not None and masking.kv_lengths is None:
        raise _fault("block_tables need kv_lengths [batch], the keys of every sequence")
    for name, x in zip(Masking._fields, masking, strict=True):
        if x is not None and (x.device != device or (x.stride(-1) != 1 and x.shape[-1] > 1)):
            raise _fault(f"{name} must be on {device} with a dense last axis, got {x.device}, strides {x.stride()}")


def check_out(q: torch.Tensor, out: Partial, shape: tuple[int, ...]) -> None:
    """Raise an OperatorError if a result of this shape can not be written into `out`."""
    for name, x, wanted in (("out.out", out.out, shape), ("out.lse", out.lse, shape[:3])):
        if x.shape != wanted or x.dtype != torch.float32 or x.device != q.device or not x.is_contiguous():
            raise _fault(f"{name} must be contiguous float32 {list(wanted)} on {q.device}, got {_described(x)}")


def are_columns(v: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether the values are the first columns of the keys, in the same memory."""
    same = v.data_ptr() == k.data_ptr() and v.stride()[:3] == k.stride()[:3]
    return same and v.dtype == k.dtype and v.shape[3] <= k.shape[3]


def _described(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return type(x).__name__
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"


def _fault(words: str) -> OperatorError:
    return OperatorError(f"decode_partial: {words}")
