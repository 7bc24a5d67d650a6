"""Placement of tensors in host memory or on a GPU, in one module, so that tests can replace it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def on_gpu(x: Any) -> bool:
    """Return whether x is a torch tensor in the memory of a GPU; AMD's GPUs are CUDA devices to torch."""
    return isinstance(x, torch.Tensor) and _held(x)


def _held(x: torch.Tensor) -> bool:
    return x.is_cuda


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, on which Triton launches; nothing for host memory."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def capturing(device: torch.device) -> bool:
    """Return whether the current stream of a GPU records a graph: nothing can be waited for then."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def on_host(x: Any) -> Any:
    """Return what a GPU holds as a tensor in host memory, for which the call waits; anything else as it is."""
    return x.cpu() if on_gpu(x) else x


class StreamOrder:
    """The order in which streams use the buffers of one communicator: each waits for the one before, on the device."""

    def __init__(self) -> None:
        self._last: Any = None
        self.captured: dict[int, Any] = {}
        """Calls that graphs hold, by id: their memory must stay, whatever else is prepared later."""

    def acquire(self, device: torch.device, call: Any = None) -> None:
        """Make the current stream of the device the next to use them, for a prepared call that is given.

        A graph that is captured waits for nothing outside of it; in host memory there is nothing to wait for.
        """
        if capturing(device):
            self.captured[id(call)] = call
            return
        if device.type != "cuda":
            return
        stream = torch.cuda.current_stream(device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream
