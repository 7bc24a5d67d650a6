"""Positions, masks, lengths, slopes and sinks for inputs on a GPU: brought there as given, without a look at values.

The kernels take these themselves; `Visibility` in full is computed where something asks for it.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import torch

from attention.gpu.placement import capturing, on_gpu
from attention.spec import Spec
from attention.visibility import (
    HIDDEN,
    Masking,
    Visibility,
    check_both_positions,
    mask_of,
    positions_of,
    tensor_of,
)
from topocomm import OperatorError

INTEGERS = (torch.int32, torch.int64)


class DeviceVisibility(Visibility):
    """A `Visibility` whose tensors are computed on the GPU when they are asked for.

    Attributes:
        masking: Positions, masks and lengths as the caller gave them; what does not matter is None.
        on_device: The same as tensors on the GPU: positions int64 and the mask bool [1 or batch, count], lengths
            [batch].
    """

    __setattr__ = object.__setattr__  # attributes are set here, and nowhere else

    def __init__(
        self, function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking, device: torch.device
    ) -> None:
        """Bring everything to the device.

        Raises:
            OperatorError: Something does not fit; the message names the argument.
        """
        batch, _, q_len, _ = q_shape
        if not spec.needs_positions:
            masking = masking._replace(q_positions=None, kv_positions=None)
        tensors = {name: x for name, x in masking._asdict().items() if x is not None}
        for name, count in (("q_positions", q_len), ("kv_positions", n)):
            if name in tensors:
                tensors[name] = positions_of(function, name, tensors[name], batch, count)
        if masking.kv_mask is not None:
            tensors["kv_mask"] = mask_of(function, masking.kv_mask, batch, n)
        if masking.kv_lengths is not None:
            lengths, unread = tensor_of(masking.kv_lengths), on_gpu(masking.kv_lengths)
            fits = not lengths.is_floating_point() and lengths.dtype != torch.bool and lengths.shape == (batch,)
            if not fits or not (unread or bool(((lengths >= 0) & (lengths <= n)).all())):
                got = f"{lengths.dtype} {list(lengths.shape)}" if unread else lengths.tolist()
                raise OperatorError(
                    f"{function}: kv_lengths must be {batch} integers from 0 to {n}, the keys given; got {got}"
                )
            tensors["kv_lengths"] = lengths if lengths.dtype in INTEGERS else lengths.to(torch.int64)
        self.masking = masking
        self.on_device = Masking(**{name: to_device(function, name, x, device) for name, x in tensors.items()})
        self._spec, self._sizes, self._device = spec, (q_len, n), device

    @property
    def for_prefill(self) -> Masking:
        """What the prefill kernel gets: positions as they were given, since consecutive ones need no block lists."""
        return self.on_device._replace(q_positions=self.masking.q_positions, kv_positions=self.masking.kv_positions)

    @cached_property
    def _computed(self) -> Visibility:
        masking, spec, (q_len, n) = self.on_device, self._spec, self._sizes
        rows, columns = (torch.arange(count, device=self._device).view(1, -1) for count in (q_len, n))
        queries, keys = torch.zeros_like(rows), torch.zeros_like(columns)
        if masking.q_positions is not None:
            queries, keys = masking.q_positions, masking.kv_positions
        elif spec.needs_positions:  # the queries are the last
            ends = n if masking.kv_lengths is None else masking.kv_lengths.clamp(0, n)[:, None].to(torch.int64)
            queries, keys = rows + (ends - q_len), columns
        if masking.kv_mask is not None:
            keys = torch.where(masking.kv_mask, keys, HIDDEN)
        if masking.kv_lengths is not None:
            keys = torch.where(columns < masking.kv_lengths[:, None], keys, HIDDEN)
        return Visibility.of(spec, queries, keys)

    # As `Visibility` has them, where they are asked for.
    low = property(lambda self: self._computed.low)
    high = property(lambda self: self._computed.high)
    queries = property(lambda self: self._computed.queries)
    keys = property(lambda self: self._computed.keys)


def device_visibility(
    function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking, device: torch.device
) -> DeviceVisibility | None:
    """Return which of the queries, on a GPU, sees which of n keys; None: all see all.

    Raises:
        OperatorError: Positions, masks or lengths do not fit. Values that are on the GPU are not looked at.
    """
    if not spec.needs_positions and masking.kv_mask is None and masking.kv_lengths is None:
        return None
    if spec.needs_positions:
        check_both_positions(function, masking)
    return DeviceVisibility(function, q_shape, n, spec, masking, device)


def masking_of(visibility: Visibility | None, spec: Spec, device: torch.device) -> Masking:
    """Return what the decode kernel gets for a visibility, wherever its tensors are."""
    if visibility is None:
        return Masking()
    if isinstance(visibility, DeviceVisibility):
        return visibility.on_device
    queries, keys = (x.to(device, non_blocking=True) for x in (visibility.queries, visibility.keys))
    hidden = Masking(kv_mask=keys != HIDDEN)
    return hidden._replace(q_positions=queries, kv_positions=keys) if spec.needs_positions else hidden


def to_device(function: str, name: str, x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on the device, dense in its last axis; copies from host memory go on the current stream."""
    if x.device != device:
        if capturing(device):
            raise OperatorError(
                f"{function}: {name} is in host memory while a CUDA graph is captured, which would keep its values; "
                f"give it as a tensor on {device}"
            )
        x = x.to(device, non_blocking=True)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@cache
def slopes_on(device: torch.device, slopes: tuple[float, ...] | None) -> torch.Tensor | None:
    """Return those of a Spec as float32 [heads]; cached: a call copies nothing from host memory, also in graphs."""
    return None if slopes is None else torch.tensor(slopes, dtype=torch.float32, device=device)


def add_sinks_on_gpu(out: torch.Tensor, lse: torch.Tensor, sinks: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention.add_sinks` of out [batch, heads, q_len, dim] and lse [batch, heads, q_len] in the memory of a GPU."""
    logits = _cached_sinks(lse.device, sinks) if isinstance(sinks, tuple) else _sinks_on(lse.device, sinks)
    wide = torch.logaddexp(lse.double(), logits)
    weights = torch.exp(lse.double() - wide.masked_fill(wide == -torch.inf, 0.0))[..., None]
    merged = torch.where(weights == 0, 0.0, weights * out)  # an operand of weight 0 may hold NaN
    return merged.to(out.dtype), wide.to(lse.dtype)


def _sinks_on(device: torch.device, sinks: Any) -> torch.Tensor:
    """Sinks as float64 [heads, 1]."""
    return torch.as_tensor(sinks, dtype=torch.float64, device=device)[:, None]


_cached_sinks = cache(_sinks_on)
"""Those of a Spec: a step copies nothing from host memory."""
