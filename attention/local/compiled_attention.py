"""Attention over one shard by the compiled kernel: decoding and prompts on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from attention.arrays import Inputs
from attention.merge.merge_states import fold_on_host
from attention.partial import Partial
from attention.visibility import Visibility

TILE_ROWS = 64
"""Query rows of one pass over the keys, as attention/kernels/kernels.h has it."""

PIECES, PIECE_BYTES = 8, 4 << 20
"""Into how many pieces the work is cut for a caller who wants to be called between them, and of what size at most: one
tile of rows reads so much in some ms."""

BYTES_PER_THREAD = 1 << 20
"""Keys and values, as often as they are read, below which a second thread is not worth its start."""

FEW_ITEMS, SEGMENT_KEYS = 8, 4096
"""With fewer pieces of work than this the keys are cut too, in segments of at least so many."""

Ints = NDArray[np.int64]
Place = tuple[Any, Any]
"""Contiguous float32 arrays out and lse."""

Begin = Callable[..., None]
Append = Callable[[torch.Tensor, torch.Tensor], bool]
AttendRange = Callable[[torch.Tensor, Any, Any], Any]

See = Callable[[int], Visibility | None]
"""Which query sees which of so many keys; None: all see all."""


def covers(inputs: Inputs) -> bool:
    """Whether the kernel is there and takes these inputs."""
    dense = inputs.k.stride(3) == inputs.v.stride(3) == 1 or inputs.k.numel() == 0
    return dense and _kernel() is not None


def attend_rows(inputs: Inputs, result: Partial, between_pieces: Callable[[], None] | None) -> None:
    """Write the attention of checked inputs that `covers` accepts; a tile of rows reads the keys that it sees once.

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
        out, lse = (x if x.is_contiguous() else torch.empty_like(x).contiguous() for x in result)
        _run(inputs, Partial(out, lse), {}, items, between_pieces)
    else:
        edges = [n * part // parts for part in range(parts + 1)]
        segments = np.array([edges[:-1], edges[1:]], np.int64).T
        outs, lses = attend_segments(inputs, None, segments, between_pieces)
        out, lse = fold_on_host([*outs], [*lses])
    for target, x in zip(result, (out, lse), strict=True):
        if x is not target:
            target.copy_(x)


def attend_segments(
    inputs: Inputs, order: Ints | None, segments: Ints, between_pieces: Callable[[], None] | None = None
) -> Partial:
    """One partial for every segment of the keys, each with the bits that its keys alone would give.

    Args:
        inputs: Checked; `covers` accepts them.
        order: int64 [batch or 1, n]: numbers of the keys in the order in which they are taken; None: as they lie.
        segments: int64 [segments, 2]: from where to where in the order.
        between_pieces: Called now and then on the way.

    Returns:
        out float32 [segments, batch, heads, q_len, d_v] and lse float32 [segments, batch, heads, q_len].
    """
    shape = (len(segments), *inputs.out_shape)
    result = Partial(torch.empty(shape, dtype=torch.float32), torch.empty(shape[:4], dtype=torch.float32))
    cuts = {"order": order, "segments": segments}
    _run(inputs, result, cuts, _items(inputs) * len(segments), between_pieces)
    return result


def _run(
    inputs: Inputs,
    result: Partial,
    cuts: Mapping[str, Ints | None],
    items: int,
    between_pieces: Callable[[], None] | None,
) -> None:
    arguments = [to_dlpack(x) for x in (inputs.q, inputs.k, inputs.v, result.out, result.lse)]
    pages = None if inputs.pages is None else to_dlpack(inputs.pages)
    places = {name: None if x is None else x.__dlpack__() for name, x in cuts.items()}
    options = {**_spec_options(inputs), **places, "visible": _visible(inputs.visibility), "pages": pages}
    read = inputs.n * _bytes_per_key(inputs)
    kernel, threads = _kernel().attend, max(1, min(torch.get_num_threads(), items, read // BYTES_PER_THREAD))
    if between_pieces is None:
        kernel(*arguments, inputs.scale, **options, threads=threads)
        return
    pieces = min(items, max(threads, PIECES, read // PIECE_BYTES))
    edges = [items * piece // pieces for piece in (*range(0, pieces, threads), pieces)]
    for first, end in pairwise(edges):
        kernel(*arguments, inputs.scale, **options, first=first, end=end, threads=threads)
        between_pieces()


class StepKernel:
    """The kernel for decode steps of one kind, with any number of keys; no pages.

    It asks only whether tensors are of its kind, since checks and conversions cost more than a small call does.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Take the kind of checked inputs, which `covers` accepts: without pages, and not empty."""
        q, k, v = inputs.q, inputs.k, inputs.v
        self._items, self._bytes_per_key = _items(inputs), _bytes_per_key(inputs)
        self._kind = (q.shape, q.dtype, k.dtype, k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        self._threads = self._most = 0
        self._scale, self._options = inputs.scale, _spec_options(inputs)
        self._kernel = _kernel().attend

    def run(self, q: Any, k: Any, v: Any, see: See | None, result: Place) -> bool:
        """Write the result to these arrays; False, and nothing done, where the tensors are of another kind.

        q, k and v are as the inputs have them, with any number of keys that one thread attends in one piece.
        """
        if not (type(q) is type(k) is type(v) is torch.Tensor and q.is_cpu and k.is_cpu and v.is_cpu):
            return False
        if k.ndim != 4 or v.ndim != 4:
            return False
        entries, kv_heads, n, d = k.shape
        if (
            (q.shape, q.dtype, k.dtype, entries, kv_heads, d, v.shape[3]) != self._kind
            or v.shape[:3] != k.shape[:3]
            or v.dtype is not k.dtype
            or not k.stride(3) == v.stride(3) == 1
            or n > self.most_keys()
            or q.requires_grad
            or k.requires_grad
            or v.requires_grad
        ):
            return False
        visible = None if see is None else _visible(see(n))
        out, lse = result
        arrays = to_dlpack(q), to_dlpack(k), to_dlpack(v), out.__dlpack__(), lse.__dlpack__()
        self._kernel(*arrays, self._scale, visible=visible, **self._options)
        return True

    def most_keys(self) -> int:
        """How many keys one thread attends in one piece."""
        threads = torch.get_num_threads()
        if threads != self._threads:
            self._threads = threads
            self._most = sys.maxsize if self._items > FEW_ITEMS // 2 else 2 * SEGMENT_KEYS - 1
            if threads > 1 and self._items > 1:
                self._most = min(self._most, (2 * BYTES_PER_THREAD - 1) // max(1, self._bytes_per_key))
        return self._most

    def bind(self, k: torch.Tensor, v: torch.Tensor, *parts: Any) -> tuple[Begin, Append, AttendRange]:
        """Return steps bound to these keys and values, which are of the kind: see `bind_step` in kernels/_native.pyi.

        `parts` are its arguments from `result` on. The caller asks `most_keys`.
        """
        shape, dtype = self._kind[:2]
        arrays = tuple(to_dlpack(x) for x in (torch.empty(shape, dtype=dtype), k, v))
        of_torch = torch.Tensor, torch.Tensor.__dlpack_c_exchange_api__
        factors = self._scale, self._options["softcap"]
        bound: tuple[Begin, Append, AttendRange] = _kernel().bind_step(arrays, factors, of_torch, *parts)
        return bound


def _items(inputs: Inputs) -> int:
    """Tiles of query rows, over all key heads."""
    return inputs.q.shape[0] * inputs.k.shape[1] * -(-inputs.rows // TILE_ROWS)


def _bytes_per_key(inputs: Inputs) -> int:
    """What all tiles read of K and V for a key of each entry."""
    return _items(inputs) * (inputs.q.shape[3] + inputs.v.shape[3]) * inputs.k.itemsize


def _visible(seen: Visibility | None) -> tuple[Any, ...] | None:
    """Which positions the queries see, as the kernel takes it."""
    if seen is None:
        return None
    return tuple([to_dlpack(x) for x in (seen.low, seen.high, seen.queries, seen.keys)])


def _spec_options(inputs: Inputs) -> dict[str, Any]:
    """What the kernel takes of a Spec besides the scale."""
    return {"softcap": inputs.spec.softcap or 0.0, "slopes": _slopes(inputs.spec.slopes)}


@lru_cache(maxsize=256)
def _slopes(slopes: tuple[float, ...] | None) -> Any:
    return None if slopes is None else np.array(slopes, np.float32).__dlpack__()


@cache
def _kernel() -> Any:
    """The module of the compiled kernel, or None where it was not built."""
    try:
        return import_module("attention.kernels._native")
    except ImportError:
        return None
