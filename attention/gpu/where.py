"""Where tensors are. Everything that differs between host memory and a GPU asks here, so that tests can answer."""

from __future__ import annotations

from typing import Any

import torch


def on_gpu(x: Any) -> bool:
    """Whether it is a torch tensor in the memory of a GPU; AMD's GPUs are CUDA devices to torch."""
    return isinstance(x, torch.Tensor) and _held(x)


def _held(x: torch.Tensor) -> bool:
    return x.is_cuda


def capturing(device: torch.device) -> bool:
    """Whether the current stream of a GPU records a graph: nothing can be waited for then."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def on_host(x: Any) -> Any:
    """What a GPU holds as a tensor in host memory, for which the call waits; anything else as it is."""
    return x.cpu() if on_gpu(x) else x


class Turns:
    """Streams that use one buffer take turns: each waits for the one before, on the device."""

    def __init__(self) -> None:
        self._last: Any = None

    def take(self, device: torch.device) -> None:
        """The current stream is the next to use it. A graph that is being captured waits for nothing outside of it."""
        if device.type != "cuda" or capturing(device):
            return
        stream = torch.cuda.current_stream(device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream
