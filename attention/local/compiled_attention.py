"""Attention over one shard by the compiled kernel: decoding on the CPU, and whatever wants the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, reduce
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.merge.logsumexp import LOGSUMEXP
from attention.partial import Partial
from attention.visibility import Visibility

MOST_QUERIES = 16
"""Queries up to which the kernel is faster than matrix products."""

PIECES = 8
"""Into how many pieces the work is cut for a caller who wants to be called between them."""

BYTES_PER_THREAD = 1 << 20
"""Less work than this is not worth handing to another thread."""

FEW_ITEMS, SEGMENT_KEYS = 8, 4096
"""With fewer pieces of work than this the keys are cut too, in segments of at least so many."""

LIKE = {
    torch.float32: np.empty(0, np.float32),
    torch.bfloat16: np.empty(0, np.uint16),
    torch.float16: np.empty(0, np.int16),
}
"""As what the kernel reads each dtype of K and V."""

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""How it is told the dtype of q."""

NONE = np.empty((1, 0), np.int64)

Place = tuple[int, int]
"""Addresses of contiguous float32 out and lse."""

See = Callable[[int], Visibility | None]
"""Which query sees which of so many keys; None: all see all."""


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
    n = inputs.n
    items = _items(inputs)
    if items == 0:  # no batch entry, or no query
        return
    parts = max(1, min(FEW_ITEMS // items, n // SEGMENT_KEYS))
    if parts == 1:
        out = result.out if result.out.is_contiguous() else torch.empty_like(result.out).contiguous()
        lse = result.lse if result.lse.is_contiguous() else torch.empty_like(result.lse).contiguous()
        _run(inputs, NONE, np.array([[0, n]]), Partial(out, lse), between_pieces)
    else:
        edges = [n * part // parts for part in range(parts + 1)]
        segments = np.array([edges[:-1], edges[1:]], np.int64).T
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
    result = Partial(torch.empty(shape, dtype=torch.float32), torch.empty(shape[:4], dtype=torch.float32))
    _run(inputs, order, segments, result, between_pieces)
    return result


def _run(
    inputs: Inputs,
    order: NDArray[np.int64],
    segments: NDArray[np.int64],
    result: Partial,
    between_pieces: Callable[[], None] | None,
) -> None:
    seen, spec = inputs.visibility, inputs.spec
    tables = (
        _no_rules(inputs.q.shape[2]) if seen is None else _rules(seen),
        NONE if seen is None else seen.keys.numpy(),
        order,
        NONE if inputs.pages is None else inputs.pages.numpy(),
        segments,
    )
    bends = _bends(inputs.scale, spec.softcap, spec.alibi_slopes)
    like = LIKE[inputs.k.dtype]
    items = _items(inputs) * len(segments)
    task = np.array(_task(inputs, items, (result.out.data_ptr(), result.lse.data_ptr())), np.int64)
    kernel = _kernel().attend_items
    threads = _threads_for(inputs, items)
    if threads == 1 and between_pieces is None:
        kernel(task, tables, bends, like)
        return
    pieces = min(items, max(threads, PIECES if between_pieces else 1))
    edges = [items * i // pieces for i in range(pieces + 1)]
    tasks = np.repeat(task[None], pieces, 0)
    tasks[:, 0], tasks[:, 1] = edges[:-1], edges[1:]
    for start in range(0, pieces, threads):
        wave = tasks[start : start + threads]
        if threads == 1:
            kernel(wave[0], tables, bends, like)
        else:
            list(_threads(threads).map(lambda piece: kernel(piece, tables, bends, like), wave))
        if between_pieces is not None:
            between_pieces()


class StepKernel:
    """The kernel for decode steps of one kind, with any number of keys; no pages.

    It asks only whether tensors are of its kind, since checks and conversions cost more than a small call does.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Take the kind of checked inputs, which `covers` accepts: without pages, and not empty."""
        q, k, v, spec = inputs.q, inputs.k, inputs.v, inputs.spec
        self._items, self._bytes_per_key = _items(inputs), _bytes_per_key(inputs)
        self._kind = (q.shape, q.dtype, k.dtype, k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        self._threads = self._most = 0
        self._task = np.array(_task(inputs, self._items, (0, 0)), np.int64)
        self._plain = _no_rules(q.shape[2])
        self._bends, self._like = _bends(inputs.scale, spec.softcap, spec.alibi_slopes), LIKE[k.dtype]
        kernel = _kernel()
        self._kernel = kernel.attend_items
        self._layout, self._addresses = slice(kernel.PAGE, kernel.Q_KIND), slice(kernel.Q_AT, None)

    def run(self, q: Any, k: Any, v: Any, see: See | None, result: Place) -> bool:
        """Write the result to these addresses; False, and nothing done, where the tensors are of another kind.

        Args:
            q: As the inputs have it, and k and v, with any number of keys that one thread attends in one piece.
            k: Likewise.
            v: Likewise.
            see: Which query sees which of how many keys; None: all see all.
            result: Where the partial goes.
        """
        if not (type(q) is type(k) is type(v) is torch.Tensor and q.is_cpu and k.is_cpu and v.is_cpu):
            return False
        if k.ndim != 4 or v.ndim != 4:
            return False
        (entries, kv_heads, n, d), k_strides, v_strides = k.shape, k.stride(), v.stride()
        if (
            (q.shape, q.dtype, k.dtype, entries, kv_heads, d, v.shape[3]) != self._kind
            or v.shape[:3] != k.shape[:3]
            or v.dtype is not k.dtype
            or not k_strides[3] == v_strides[3] == 1
            or n > self._most_keys()
            or q.requires_grad
            or k.requires_grad
            or v.requires_grad
        ):
            return False
        seen = None if see is None else see(n)
        rules, positions = (self._plain, NONE) if seen is None else (_rules(seen), seen.keys.numpy())
        task = self._task
        task[self._layout] = (n, *q.stride(), *k_strides[:3], *v_strides[:3])
        task[self._addresses] = (q.data_ptr(), k.data_ptr(), v.data_ptr(), *result)
        self._kernel(task, (rules, positions, NONE, NONE, np.array([[0, n]])), self._bends, self._like)
        return True

    def _most_keys(self) -> int:
        """Up to how many keys one thread attends them in one piece."""
        threads = torch.get_num_threads()
        if threads != self._threads:
            self._threads = threads
            self._most = _UNBOUNDED if self._items > FEW_ITEMS // 2 else 2 * SEGMENT_KEYS - 1
            if threads > 1 and self._items > 1:
                self._most = min(self._most, (2 * BYTES_PER_THREAD - 1) // max(1, self._bytes_per_key))
        return self._most


_UNBOUNDED = 1 << 62


def _task(inputs: Inputs, items: int, result: Place) -> list[int]:
    """What the kernel is told in whole numbers; its module says what stands where."""
    q, k, v = inputs.q, inputs.k, inputs.v
    batch, heads, q_len, d = q.shape
    _, kv_heads, page, d_v = v.shape
    sizes = [0, items, batch, kv_heads, heads // kv_heads * q_len, q_len, d, d_v, page]
    strides = [*q.stride(), *k.stride()[:3], *v.stride()[:3], KINDS[q.dtype]]
    return sizes + strides + [q.data_ptr(), k.data_ptr(), v.data_ptr(), *result]


def _items(inputs: Inputs) -> int:
    """Tiles of query rows, over all key heads."""
    tile_rows: int = _kernel().TILE_ROWS
    return inputs.q.shape[0] * inputs.k.shape[1] * -(-inputs.rows // tile_rows)


def _threads_for(inputs: Inputs, items: int) -> int:
    return max(1, min(torch.get_num_threads(), items, inputs.n * _bytes_per_key(inputs) // BYTES_PER_THREAD))


def _bytes_per_key(inputs: Inputs) -> int:
    """K and V of all heads and batch entries."""
    return inputs.q.shape[0] * inputs.k.shape[1] * (inputs.q.shape[3] + inputs.v.shape[3]) * inputs.k.itemsize


@cache
def _no_rules(q_len: int) -> NDArray[np.int64]:
    return np.zeros((3, 1, q_len), np.int64)


def _rules(seen: Visibility) -> NDArray[np.int64]:
    entries, q_len = seen.queries.shape
    rules = np.empty((3, max(len(seen.low), entries), q_len), np.int64)
    rules[0], rules[1], rules[2] = seen.low.numpy(), seen.high.numpy(), seen.queries.numpy()
    return rules


@lru_cache(maxsize=256)
def _bends(scale: float, softcap: float | None, slopes: tuple[float, ...] | None) -> NDArray[np.float32]:
    return np.array([scale, softcap or 0, *(slopes or ())], np.float32)


def _folded(parts: Partial) -> Partial:
    """The merge of partials [segments, ...], from the first to the last; their memory is written over."""
    rows = [(out.flatten(0, -2).numpy(), lse.view(-1).numpy()) for out, lse in zip(*parts, strict=True)]
    try:
        from attention.kernels.cpu_merge import bind
    except ImportError:  # the compiled part is optional; without it the operator's NumPy formula runs
        partials: list[Mapping[str, Any]] = [{"out": out, "lse": lse} for out, lse in rows]
        merged = reduce(LOGSUMEXP.combine, partials)
        rows[0][0][...], rows[0][1][...] = merged["out"], merged["lse"]
    else:
        bind(rows)({"out": rows[0][0], "lse": rows[0][1]})
    return Partial(parts.out[0], parts.lse[0])


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
