"""The local kernel of a prepared step: writes (out, lse) of this rank's keys straight into the send buffer.

Checks, look-ups and conversions of a checked step (`ShardedCall`, `local.dispatch.attend`) cost some 40 us in a row,
and several times as much where the weights of a model have emptied the caches in between: more than the reduction. Here
they are made once. A step that a kernel does not take is checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.decode.communicators import stream_order_of
from attention.gpu.masks import device_visibility
from attention.gpu.placement import current, on_gpu
from attention.local.compiled_attention import StepKernel, covers
from attention.merge.logsumexp import LSE, OUT
from attention.partial import Partial
from attention.visibility import UNMASKED, Masking, Visibility, visibility_of
from topocomm import Communicator, PreparedCall


class HostKernel:
    """The compiled kernel, in host memory."""

    def __init__(self, function: str, inputs: Inputs) -> None:
        """Take the kind of checked inputs, which `covers` accepts; errors begin with the function's name."""
        self._function, self._spec, self._by_position = function, inputs.spec, inputs.spec.needs_positions
        shape = inputs.out_shape
        self._own = {OUT: np.empty(shape, np.float32), LSE: np.empty(shape[:3], np.float32)}
        self.kernel = StepKernel(inputs)

    def run(self, q: Any, k: Any, v: Any, masking: Masking, reduction: PreparedCall) -> dict[str, Any] | None:
        """Return the partial to reduce, in the send buffer if there is one; None, and nothing done, for another kind.

        Raises:
            OperatorError: Positions, masks or lengths do not fit.
        """
        see = None
        if masking is not UNMASKED or self._by_position:

            def see(n: int) -> Visibility | None:
                return visibility_of(self._function, q.shape, n, self._spec, masking)

        sent = reduction.input
        sent = self._own if sent is None else sent
        return sent if self.kernel.run(q, k, v, see, (sent[OUT], sent[LSE])) else None


class DeviceKernel:
    """The decode kernel on a GPU; nothing is waited for."""

    def __init__(self, function: str, inputs: Inputs, comm: Communicator) -> None:
        """Take the kind of checked inputs, which `gpu.decodes` accepts; errors begin with the function's name."""
        from attention.gpu.decode.decode import decode_partial

        self._function, self._spec = function, inputs.spec
        self._partial_spec = gpu.without_sinks(inputs.spec)
        self._decode, self._stream_order = decode_partial, stream_order_of(comm)
        self._shape, self._device = inputs.out_shape, inputs.q.device
        self._kind = _kind_of(inputs.q, inputs.k, inputs.v)

    def run(self, q: Any, k: Any, v: Any, masking: Masking, reduction: PreparedCall) -> dict[str, Any] | None:
        """As `HostKernel.run`."""
        if not (type(q) is type(k) is type(v) is torch.Tensor) or k.ndim != 4 or v.ndim != 4:
            return None
        wants = q.requires_grad or k.requires_grad or v.requires_grad
        if wants or _kind_of(q, k, v) != self._kind or k.shape[:3] != v.shape[:3]:
            return None
        visibility = device_visibility(self._function, q.shape, k.shape[2], self._spec, masking, self._device)
        self._stream_order.acquire(self._device, reduction)
        sent = reduction.input
        if sent is None:
            sent = empty_partial(self._shape, self._device)._asdict()
        placed = {} if visibility is None else visibility.on_device._asdict()
        with current(self._device):
            self._decode(q, k, v, spec=self._partial_spec, out=Partial(sent[OUT], sent[LSE]), **placed)
        return sent


def local_kernel(function: str, inputs: Inputs, comm: Communicator) -> HostKernel | DeviceKernel | None:
    """Return the kernel for steps like these checked inputs; None: every step is checked."""
    if inputs.pages is not None or 0 in inputs.out_shape:
        return None
    if on_gpu(inputs.q):
        return DeviceKernel(function, inputs, comm) if gpu.decodes(inputs) else None
    few = replace(inputs, k=inputs.k[:, :, :0], v=inputs.v[:, :, :0])  # whether keys are dense is asked in every step
    return HostKernel(function, few) if covers(few) else None


def _kind_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
    """What the tensors of all steps have in common; the number of keys may differ."""
    of_all = [(x.dtype, x.device, x.shape[0], x.shape[1], x.shape[3], x.stride(3)) for x in (q, k, v)]
    return (*of_all, q.shape[2])
