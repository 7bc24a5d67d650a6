"""Counters of programs that have come: zeros that kernels share, each of which leaves zeros."""

from __future__ import annotations

from threading import Lock

import torch

from attention.gpu.placement import capturing

COUNTERS = 1024
"""Least number of counters of a stream."""
RESERVE = 1 << 16
"""Counters for graphs: 128 bytes for each of 2,048 calls of up to 32 counters."""
APART = 32
"""Counters of a graph are a multiple of this: graphs share no cache line."""
_of_streams: dict[tuple[torch.device, int], torch.Tensor] = {}
_reserves: dict[torch.device, torch.Tensor] = {}
"""Counters that no graph has taken yet."""
_kept: list[torch.Tensor] = []
"""All reserves that graphs may have taken from, since the end of a graph is not announced."""
_lock = Lock()


def arrivals(device: torch.device, count: int) -> torch.Tensor:
    """At least so many int32 zeros.

    Kernels of one stream run one after the other and share theirs. A call that a graph records gets its own, which
    nothing else takes ever after: graphs may be replayed side by side. They come from a reserve that calls before the
    capture have made; without one a replay fills them first, which costs it a launch.
    """
    if capturing(device):
        size = -(-count // APART) * APART
        with _lock:
            reserve = _reserves.get(device)
            if reserve is None or reserve.numel() < size:
                return _zeros(device, count)  # the graph's own
            _reserves[device] = reserve[size:]
            return reserve[:size]
    key = device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    known = _of_streams.get(key)
    if known is None or known.numel() < count:
        known = _of_streams[key] = _zeros(device, max(count, COUNTERS))
    if _is_low(device):
        # The lock is free while the reserve is made: what this stream is to do first may wait for another rank, whose
        # thread may need the lock before it gets to that.
        reserve = _zeros(device, RESERVE)
        if device.type == "cuda":  # graphs are replayed on other streams
            torch.cuda.current_stream(device).synchronize()
        with _lock:
            if _is_low(device):  # else another thread was quicker
                _kept.append(reserve)
                _reserves[device] = reserve
    return known


def _is_low(device: torch.device) -> bool:
    return device not in _reserves or _reserves[device].numel() < RESERVE // 2


def _zeros(device: torch.device, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
