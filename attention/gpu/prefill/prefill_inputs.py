"""Arguments of the prefill kernel: checked, and brought to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attention.arrays import AXES, check_form, misfit
from attention.gpu.masks import DeviceVisibility
from attention.gpu.prefill.block_lists import FARTHEST as FARTHEST_LISTED
from attention.partial import Partial
from attention.spec import Spec
from attention.visibility import Masking, Visibility, check_both_positions, positions_of, present_keys, tensor_of
from topocomm import OperatorError

WIDEST = 512
"""Greatest head dim that the kernel takes."""
FARTHEST = 1 << 28
"""Rows, keys and offsets of contiguous positions stay below this, so that their sums fit int32."""


@dataclass(frozen=True)
class PrefillMask:
    """What the prefill kernel needs to know of positions, masks and lengths.

    Attributes:
        offset: Position of the first query less that of the first key, both contiguous; None: the queries are the
            last of the keys.
        lengths: int32 or int64 [batch], on the device: keys that exist; None: all.
        visibility: On the device; None: positions are contiguous, or do not matter.
    """

    offset: int | None = 0
    lengths: torch.Tensor | None = None
    visibility: Visibility | None = None


def check_tensors(function: str, q: Any, k: Any, v: Any, *, interpreted: bool) -> None:
    """Raise an OperatorError if the kernel does not take q, k and v; `interpreted`: CPU tensors fit."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise OperatorError(f"{function}: {name} must be a torch tensor {AXES[name]}, got {type(x).__name__}")
        check_form(function, name, x)
        if x.device != q.device:
            raise OperatorError(f"{function}: q, k and v must be on one device, got {q.device} and {x.device}")
        if not (x.is_cuda or (interpreted and x.is_cpu)):
            raise OperatorError(
                f"{function}: {name} is on {x.device}, this kernel needs a GPU; on the CPU use local_attention"
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise OperatorError(f"{function}: {name} requires gradients; pass {name}.detach() or use torch.no_grad()")
    fault = misfit(q, k, v)
    for name, x in (("head dim", q), ("head dim of v", v)):
        if fault is None and not 0 < x.shape[-1] <= WIDEST:
            fault = f"the {name} must be 1 to {WIDEST}"
    if fault is not None:
        raise OperatorError(f"{function}: {fault}, got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")


def check_spec(function: str, spec: Spec, heads: int) -> None:
    """Raise an OperatorError if the spec does not fit a partial of this many heads."""
    if spec.sinks is not None:
        raise OperatorError(
            f"{function}: spec.sinks are counted once, after the partials are merged; leave them out here and call "
            f"attention.add_sinks(partial, sinks) on the merged one"
        )
    if spec.alibi_slopes is not None and len(spec.alibi_slopes) != heads:
        raise OperatorError(f"{function}: spec.alibi_slopes has {len(spec.alibi_slopes)} values, q has {heads} heads")


def check_result(function: str, name: str, result: Any, shape: tuple[int, ...], device: torch.device) -> Partial:
    """Return the Partial to write into, checked: float32 on the device, the last axis of out dense."""
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(x, torch.Tensor) for x in result)):
        raise OperatorError(f"{function}: {name} must be a Partial of two tensors, got {type(result).__name__}")
    partial = Partial(*result)
    for part, x, expected in (("out", partial.out, shape), ("lse", partial.lse, shape[:-1])):
        if tuple(x.shape) != expected or x.dtype != torch.float32 or x.device != device:
            raise OperatorError(
                f"{function}: {name}.{part} must be float32 {list(expected)} on {device}, got {x.dtype} "
                f"{list(x.shape)} on {x.device}"
            )
    if shape[-1] > 1 and partial.out.numel() and partial.out.stride(-1) != 1:
        raise OperatorError(
            f"{function}: {name}.out must be dense in its last axis, got strides {list(partial.out.stride())}; "
            f"pass a contiguous one"
        )
    return partial


def prefill_mask_of(
    function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking, device: torch.device
) -> PrefillMask:
    """Return the mask of a call from positions, masks and lengths as a caller gave them.

    Starts (ints), and positions on the CPU that turn out to be contiguous, need no lists.

    Raises:
        OperatorError: They do not fit; the message names the argument.
    """
    batch, _, q_len, _ = q_shape
    q_start, kv_start = (int(x) if isinstance(x, np.integer) else x for x in masking[:2])
    masking = masking._replace(q_positions=q_start, kv_positions=kv_start)
    lengths = _lengths(function, masking.kv_lengths, batch, n, device)
    starts = _starts(function, spec, masking, batch, q_len, n)
    if masking.kv_mask is None and starts is not None:
        offset = None if starts == (None, None) else starts[0] - starts[1]  # type: ignore[operator]
        if offset is None or abs(offset) < FARTHEST:
            return PrefillMask(offset, lengths)
        if isinstance(q_start, int) and isinstance(kv_start, int):
            raise OperatorError(
                f"{function}: q_positions and kv_positions lie {abs(offset)} apart; starts must be less than "
                f"{FARTHEST} apart, give such positions as tensors"
            )
    masking = masking._replace(kv_lengths=lengths)
    return PrefillMask(visibility=_visibility(function, q_shape, n, spec, masking, device))


def mask_of_visibility(visibility: Visibility | None, spec: Spec, device: torch.device) -> PrefillMask:
    """Return the same from a checked Visibility: contiguous positions on the CPU need no lists."""
    if visibility is None:
        return PrefillMask()
    starts = _run_start(visibility.queries), _run_start(visibility.keys)
    if None not in starts and spec.needs_positions:
        offset = starts[0] - starts[1]  # type: ignore[operator]
        if abs(offset) < FARTHEST:
            return PrefillMask(offset)
    parts = (visibility.low, visibility.high, visibility.queries, visibility.keys)
    return PrefillMask(visibility=Visibility(*(x.to(device, non_blocking=True).contiguous() for x in parts)))


def _lengths(function: str, values: Any, batch: int, n: int, device: torch.device) -> torch.Tensor | None:
    """kv_lengths on the device. Those that are there already are not read: the kernel keeps them within 0 to n."""
    if values is None:
        return None
    if not (isinstance(values, torch.Tensor) and values.is_cuda):
        present_keys(function, batch, n, Masking(kv_lengths=values))
    lengths = torch.as_tensor(values)
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        raise OperatorError(
            f"{function}: kv_lengths must be {batch} integers (int32 or int64), got {lengths.dtype} "
            f"{list(lengths.shape)}"
        )
    return lengths.to(device, non_blocking=True).contiguous()


def _starts(
    function: str, spec: Spec, masking: Masking, batch: int, q_len: int, n: int
) -> tuple[int | None, int | None] | None:
    """(first query, first key) where positions are contiguous; (None, None): the queries are the last; None: neither.

    Where positions do not matter they are (0, 0).
    """
    if not spec.needs_positions:
        return 0, 0
    if not check_both_positions(function, masking):
        return None, None
    starts: list[int | None] = []
    for name, x, count in (("q_positions", masking.q_positions, q_len), ("kv_positions", masking.kv_positions, n)):
        if isinstance(x, (bool, float)):
            raise OperatorError(f"{function}: {name} must be integers, or the first as an int, got {x!r}")
        starts.append(x if isinstance(x, int) else _run_start(positions_of(function, name, x, batch, count)))
    return None if None in starts else (starts[0], starts[1])


def _run_start(positions: torch.Tensor) -> int | None:
    """The first of [1, count] consecutive ascending positions on the CPU; else None. Nothing is read from a GPU."""
    if not positions.is_cpu or len(positions) != 1:
        return None
    count = positions.shape[1]
    if count == 0:
        return 0
    first = int(positions[0, 0])
    return first if bool((positions[0] - first == torch.arange(count)).all()) else None


def _visibility(
    function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking, device: torch.device
) -> Visibility:
    if spec.needs_positions and masking.q_positions is not None:
        sizes = zip(masking[:2], (q_shape[2], n), strict=True)
        positions = [torch.arange(x, x + count) if isinstance(x, int) else tensor_of(x) for x, count in sizes]
        known = [x for x in positions if x.is_cpu and x.numel()]  # those on a GPU are not read
        if known:
            least, most = min(int(x.min()) for x in known), max(int(x.max()) for x in known)
            if most - least >= FARTHEST_LISTED:
                raise OperatorError(
                    f"{function}: q_positions and kv_positions must lie within {FARTHEST_LISTED} of each other, got "
                    f"{least} to {most}"
                )
        masking = masking._replace(q_positions=positions[0], kv_positions=positions[1])
    return DeviceVisibility(function, q_shape, n, spec, masking, device)
