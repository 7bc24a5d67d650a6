"""Attention of few query rows over one shard, by the compiled kernel: decoding on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.partial import Partial

MOST_ROWS = 16
"""Query rows per key head up to which the kernel is faster than matrix products."""

PIECES = 8
"""Into how many pieces the work is cut for a caller who wants to be called between them."""

BYTES_PER_THREAD = 1 << 20
"""Less work than this is not worth handing to another thread."""

NO_POSITIONS = np.empty((1, 0), np.int64), np.zeros((1, 1), np.int64)


def covers(inputs: Inputs) -> bool:
    """Whether the kernel is there and takes these inputs."""
    k, v = inputs.k, inputs.v
    few = inputs.q.shape[1] // k.shape[1] * inputs.q.shape[2] <= MOST_ROWS
    # torch has float16 products; numba has no such type.
    dense = k.dtype != torch.float16 and k.stride(3) == v.stride(3) == 1
    return few and dense and _kernel() is not None


def attend_rows(inputs: Inputs, result: Partial, between_pieces: Callable[[], None] | None) -> None:
    """Write the attention of checked inputs that `covers` accepts; reads every key and value byte once.

    Beyond inputs and result it needs some tens of KiB per thread. The work is cut by key heads, over at most
    `torch.get_num_threads()` threads; the cut does not change the result's bits.
    """
    kernel = _kernel()
    batch, kv_heads, n, d = inputs.k.shape
    rows = inputs.q.shape[1] // kv_heads * inputs.q.shape[2]
    out = result.out if result.out.is_contiguous() else torch.empty_like(result.out).contiguous()
    lse = result.lse if result.lse.is_contiguous() else torch.empty_like(result.lse).contiguous()
    seen = inputs.visibility
    arguments = (
        (inputs.q.float() * inputs.scale).contiguous().view(-1).numpy(),
        _memory(inputs.k),
        _memory(inputs.v),
        NO_POSITIONS[1] if seen is None else seen.queries.numpy(),
        NO_POSITIONS[0] if seen is None else seen.keys.numpy(),
        np.array([kv_heads, rows, n, d, inputs.v.shape[3], *inputs.k.stride()[:3], *inputs.v.stride()[:3]], np.int64),
        out.view(-1).numpy(),
        lse.view(-1).numpy(),
    )
    heads = batch * kv_heads
    payload_bytes = inputs.k.nbytes + inputs.v.nbytes
    threads = max(1, min(torch.get_num_threads(), heads, payload_bytes // BYTES_PER_THREAD))
    pieces = min(heads, max(threads, PIECES if between_pieces else 1))
    edges = [heads * i // pieces for i in range(pieces + 1)]
    for start in range(0, pieces, threads):
        wave = list(zip(edges[start : start + threads], edges[start + 1 : start + threads + 1], strict=False))
        if threads == 1:
            kernel(wave[0], *arguments)
        else:
            list(_threads(threads).map(lambda piece: kernel(piece, *arguments), wave))
        if between_pieces is not None:
            between_pieces()
    if out is not result.out:
        result.out.copy_(out)
    if lse is not result.lse:
        result.lse.copy_(lse)


def _memory(x: torch.Tensor) -> NDArray[Any]:
    """From the tensor's first element to its last, flat; bfloat16 as uint16."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    bits = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    flat: NDArray[Any] = bits.as_strided((span if x.numel() else 0,), (1,)).numpy()
    return flat


@cache
def _kernel() -> Any:
    """The compiled kernel, or None without numba."""
    try:
        from attention.kernels.decode import attend_heads
    except ImportError:
        return None
    return attend_heads


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="attention")
