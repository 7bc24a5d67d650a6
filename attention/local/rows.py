"""Attention over one shard by the compiled kernel: decoding on the CPU, and whatever wants the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.partial import Partial

MOST_QUERIES = 16
"""Queries up to which the kernel is faster than matrix products."""

PIECES = 8
"""Into how many pieces the work is cut for a caller who wants to be called between them."""

BYTES_PER_THREAD = 1 << 20
"""Less work than this is not worth handing to another thread."""

FEW_ITEMS, SEGMENT_KEYS = 8, 4096
"""With fewer pieces of work than this the keys are cut too, in segments of at least so many."""

STORED = {torch.float32: torch.float32, torch.bfloat16: torch.uint16, torch.float16: torch.int16}
"""As what the kernel gets each dtype."""

NONE = np.empty((1, 0), np.int64)


def covers(inputs: Inputs) -> bool:
    """Whether the kernel is there and takes these inputs."""
    return inputs.q.shape[2] <= MOST_QUERIES and kernel_takes(inputs)


def kernel_takes(inputs: Inputs) -> bool:
    """The same for any number of queries."""
    kernel = _kernel()
    dense = inputs.k.stride(3) == inputs.v.stride(3) == 1 or inputs.k.numel() == 0
    return dense and kernel is not None and (inputs.k.dtype != torch.float16 or kernel.HALVES)


def attend_rows(inputs: Inputs, result: Partial, between_pieces: Callable[[], None] | None) -> None:
    """Write the attention of checked inputs that `covers` accepts; reads every key and value byte once.

    Beyond inputs and result it needs some tens of KiB per thread. The work is cut by key heads, tiles of query rows
    and, where these are few, by keys, over at most `torch.get_num_threads()` threads. Cuts depend on shapes alone, so
    the number of threads does not change the result's bits.
    """
    items = len(inputs.q) * inputs.k.shape[1] * -(-inputs.rows // _kernel().TILE_ROWS)
    if items == 0:  # no batch entry, or no query
        return
    parts = max(1, min(FEW_ITEMS // items, inputs.n // SEGMENT_KEYS))
    edges = [inputs.n * part // parts for part in range(parts + 1)]
    segments = np.array([edges[:-1], edges[1:]], np.int64).T
    if parts == 1:
        out = result.out if result.out.is_contiguous() else torch.empty_like(result.out).contiguous()
        lse = result.lse if result.lse.is_contiguous() else torch.empty_like(result.lse).contiguous()
        _run(inputs, NONE, segments, out, lse, between_pieces)
    else:
        out, lse = _folded(attend_segments(inputs, NONE, segments, between_pieces))
    if out is not result.out:
        result.out.copy_(out)
    if lse is not result.lse:
        result.lse.copy_(lse)


def attend_segments(
    inputs: Inputs,
    order: NDArray[np.int64],
    segments: NDArray[np.int64],
    between_pieces: Callable[[], None] | None = None,
) -> Partial:
    """One partial for every segment of the keys, each with the bits that its keys alone would give.

    Args:
        inputs: Checked; `covers` accepts them.
        order: int64 [batch or 1, n]: numbers of the keys in the order in which they are taken; `NONE`: as they lie.
        segments: int64 [segments, 2]: from where to where in the order.
        between_pieces: Called now and then on the way.

    Returns:
        out float32 [segments, batch, heads, q_len, d_v] and lse float32 [segments, batch, heads, q_len].
    """
    shape = (len(segments), *inputs.out_shape)
    out, lse = torch.empty(shape, dtype=torch.float32), torch.empty(shape[:4], dtype=torch.float32)
    _run(inputs, order, segments, out, lse, between_pieces)
    return Partial(out, lse)


def _run(
    inputs: Inputs,
    order: NDArray[np.int64],
    segments: NDArray[np.int64],
    out: torch.Tensor,
    lse: torch.Tensor,
    between_pieces: Callable[[], None] | None,
) -> None:
    kernel = _kernel()
    spec, seen, kv_heads = inputs.spec, inputs.visibility, inputs.k.shape[1]
    rules = np.zeros((3, 1, inputs.q.shape[2]), np.int64)
    if seen is not None:
        entries = max(len(seen.low), len(seen.queries))
        rules = np.stack([x.expand(entries, -1).numpy() for x in (seen.low, seen.high, seen.queries)])
    plan = [kv_heads, inputs.rows, inputs.q.shape[2], inputs.q.shape[3], inputs.v.shape[3], inputs.k.shape[2]]
    arguments = (
        _padded_queries(inputs, kernel),
        _memory(inputs.k),
        _memory(inputs.v),
        rules,
        (
            NONE if seen is None else seen.keys.numpy(),
            order,
            NONE[:, :0] if inputs.pages is None else inputs.pages.numpy(),
            segments,
        ),
        np.array([*plan, *inputs.k.stride()[:3], *inputs.v.stride()[:3]], np.int64),
        (np.float32(spec.softcap or 0), np.array(spec.alibi_slopes or (), np.float32)),
        (out.view(-1).numpy(), lse.view(-1).numpy()),
    )
    items = len(inputs.q) * kv_heads * -(-inputs.rows // kernel.TILE_ROWS) * len(segments)
    payload_bytes = inputs.n * len(inputs.q) * kv_heads * (inputs.q.shape[3] + inputs.v.shape[3]) * inputs.k.itemsize
    threads = max(1, min(torch.get_num_threads(), items, payload_bytes // BYTES_PER_THREAD))
    pieces = min(items, max(threads, PIECES if between_pieces else 1))
    edges = [items * i // pieces for i in range(pieces + 1)] if pieces else [0]
    for start in range(0, pieces, threads):
        wave = list(zip(edges[start : start + threads], edges[start + 1 : start + threads + 1], strict=False))
        if threads == 1:
            kernel.attend_items(wave[0], *arguments)
        else:
            list(_threads(threads).map(lambda piece: kernel.attend_items(piece, *arguments), wave))
        if between_pieces is not None:
            between_pieces()


def _padded_queries(inputs: Inputs, kernel: Any) -> NDArray[np.float32]:
    """The queries as the kernel takes them: scaled, rows and widths filled up to whole groups and vectors."""
    d, rows = inputs.q.shape[3], inputs.rows
    shape = (
        len(inputs.q) * inputs.k.shape[1],
        -(-rows // kernel.ROWS) * kernel.ROWS,
        -(-d // kernel.LANES) * kernel.LANES,
    )
    padded = torch.zeros(shape, dtype=torch.float32)
    padded[:, :rows, :d].copy_(inputs.q.reshape(shape[0], rows, d)).mul_(inputs.scale)
    flat: NDArray[np.float32] = padded.view(-1).numpy()
    return flat


def _folded(parts: Partial) -> Partial:
    """The merge of partials [segments, ...], from the first to the last; their memory is written over."""
    from attention.kernels.cpu import bind

    rows = [(out.flatten(0, -2).numpy(), lse.view(-1).numpy()) for out, lse in zip(*parts, strict=True)]
    bind(rows)({"out": rows[0][0], "lse": rows[0][1]})
    return Partial(parts.out[0], parts.lse[0])


def _memory(x: torch.Tensor) -> NDArray[Any]:
    """From the tensor's first element to its last, flat, as the kernel takes the dtype."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    flat: NDArray[Any] = x.view(STORED[x.dtype]).as_strided((span if x.numel() else 0,), (1,)).numpy()
    return flat


@cache
def _kernel() -> Any:
    """The module of the compiled kernel, or None without numba."""
    try:
        return import_module("attention.kernels.attend")
    except ImportError:
        return None


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="attention")
