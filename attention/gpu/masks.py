"""Which query sees which key, for inputs on a GPU: brought there as given, without a look at the values.

The kernels take positions, masks and lengths themselves; `Visibility` in full is made where something asks for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from attention.gpu.placement import capturing, on_gpu
from attention.spec import Spec
from attention.visibility import HIDDEN, Masking, Visibility, entries_of, positions_of, told
from topocomm import OperatorError

WHOLE = (torch.int32, torch.int64)


class DeviceVisibility(Visibility):
    """A `Visibility` whose tensors are made on the GPU when they are asked for.

    Attributes:
        given: Positions, masks and lengths as the caller gave them; what does not matter is None.
        there: The same as tensors on the GPU: positions int64 and the mask bool [1 or batch, count], lengths [batch].
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
        given = masking if spec.needs_positions else masking._replace(q_positions=None, kv_positions=None)
        found = {name: x for name, x in given._asdict().items() if x is not None}
        for name, count in (("q_positions", q_len), ("kv_positions", n)):
            if name in found:
                found[name] = positions_of(function, name, found[name], batch, count)
        if given.kv_mask is not None:
            found["kv_mask"] = mask_of(function, given.kv_mask, batch, n)
        if given.kv_lengths is not None:
            found["kv_lengths"] = _lengths_of(function, given.kv_lengths, batch, n)
        self.given = given
        self.there = Masking(**{name: moved(function, name, x, device) for name, x in found.items()})
        self._spec, self._sizes, self._device = spec, (q_len, n), device

    @property
    def placed(self) -> Masking:
        """What the prefill kernel is told: positions as they were given, since consecutive ones need no lists."""
        return self.there._replace(q_positions=self.given.q_positions, kv_positions=self.given.kv_positions)

    @cached_property
    def _made(self) -> Visibility:
        there, spec, (q_len, n) = self.there, self._spec, self._sizes
        rows, columns = (torch.arange(count, device=self._device).view(1, -1) for count in (q_len, n))
        queries, keys = torch.zeros_like(rows), torch.zeros_like(columns)
        if there.q_positions is not None:
            queries, keys = there.q_positions, there.kv_positions
        elif spec.needs_positions:  # the queries are the last
            ends = n if there.kv_lengths is None else there.kv_lengths.clamp(0, n)[:, None].to(torch.int64)
            queries, keys = rows + (ends - q_len), columns
        if there.kv_mask is not None:
            keys = torch.where(there.kv_mask, keys, HIDDEN)
        if there.kv_lengths is not None:
            keys = torch.where(columns < there.kv_lengths[:, None], keys, HIDDEN)
        return Visibility.of(spec, queries, keys)

    # As `Visibility` has them, where they are asked for.
    low = property(lambda self: self._made.low)
    high = property(lambda self: self._made.high)
    queries = property(lambda self: self._made.queries)
    keys = property(lambda self: self._made.keys)


def visibility_there(
    function: str, q_shape: tuple[int, ...], n: int, spec: Spec, masking: Masking, device: torch.device
) -> DeviceVisibility | None:
    """Which of the queries, on a GPU, sees which of n keys; None: all see all.

    Raises:
        OperatorError: Positions, masks or lengths do not fit. Values that are on the GPU are not looked at.
    """
    if not spec.needs_positions and masking.kv_mask is None and masking.kv_lengths is None:
        return None
    if spec.needs_positions and (masking.q_positions is None) != (masking.kv_positions is None):
        missing = "q_positions" if masking.q_positions is None else "kv_positions"
        raise OperatorError(
            f"{function}: attention that is causal, or has a window or slopes, needs q_positions and kv_positions; "
            f"{missing} is missing"
        )
    return DeviceVisibility(function, q_shape, n, spec, masking, device)


def masking_of(visibility: Visibility | None, spec: Spec, device: torch.device) -> Masking:
    """What the decode kernel is told for a visibility, wherever its tensors are."""
    if visibility is None:
        return Masking()
    if isinstance(visibility, DeviceVisibility):
        return visibility.there
    queries, keys = (x.to(device, non_blocking=True) for x in (visibility.queries, visibility.keys))
    hidden = Masking(kv_mask=keys != HIDDEN)
    return hidden._replace(q_positions=queries, kv_positions=keys) if spec.needs_positions else hidden


def mask_of(function: str, given: Any, batch: int, n: int) -> torch.Tensor:
    """kv_mask as bool [1 or batch, n]."""
    mask = told(given)
    if mask.dtype != torch.bool:
        raise OperatorError(f"{function}: kv_mask must be bool, True where a key exists, got {mask.dtype}")
    return entries_of(function, "kv_mask", mask, batch, n)


def _lengths_of(function: str, given: Any, batch: int, n: int) -> torch.Tensor:
    """kv_lengths, integers [batch]; those in host memory are looked at."""
    lengths = told(given)
    whole = not lengths.is_floating_point() and lengths.dtype != torch.bool
    if not (whole and lengths.shape == (batch,)) or not (
        on_gpu(given) or bool(((lengths >= 0) & (lengths <= n)).all())
    ):
        got = f"{lengths.dtype} {list(lengths.shape)}" if on_gpu(given) else lengths.tolist()
        raise OperatorError(f"{function}: kv_lengths must be {batch} integers from 0 to {n}, the keys given; got {got}")
    return lengths if lengths.dtype in WHOLE else lengths.to(torch.int64)


def moved(function: str, name: str, x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, dense in its last axis; a copy from host memory goes on the current stream."""
    if x.device != device:
        if capturing(device):
            raise OperatorError(
                f"{function}: {name} is in host memory while a CUDA graph is captured, which would keep its values; "
                f"give it as a tensor on {device}"
            )
        x = x.to(device, non_blocking=True)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
