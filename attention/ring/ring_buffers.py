"""The memory of ring attention: shards in contiguous buffers that are reused from call to call, and partials."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import Inputs
from attention.gpu.placement import on_gpu
from attention.merge.logsumexp import LOGSUMEXP
from attention.partial import Partial
from topocomm import Layout

ALIGNMENT_BYTES = 64
"""Alignment of torch's memory. Shards at other addresses are copied: matrix products may round by alignment."""

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Shard:
    """Keys and values of one rank in contiguous memory, and the keys' positions where a call masks.

    Attributes:
        k: [batch, kv_heads, n, d].
        v: [batch, kv_heads, n, d_v].
        keys: int64 [batch, n] as in `Visibility`, or None.
    """

    k: torch.Tensor
    v: torch.Tensor
    keys: torch.Tensor | None

    @property
    def buffers(self) -> list[Any]:
        """The memory, as bytes: NumPy arrays, or tensors on a GPU."""
        parts = [self.k, self.v] if self.keys is None else [self.k, self.v, self.keys]
        as_bytes = [part.view(-1).view(torch.uint8) for part in parts]
        return as_bytes if on_gpu(self.k) else [part.numpy() for part in as_bytes]


class Scratch:
    """Memory for one shard; grows when a larger one comes, and with room to spare, since caches grow."""

    def __init__(self) -> None:
        self._parts: dict[str, torch.Tensor] = {}

    def view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = HOST) -> torch.Tensor:
        """An uninitialised tensor; the same memory at every call until it has to grow."""
        needed_bytes = prod(shape) * dtype.itemsize
        part = self._parts.get(name)
        if part is None or part.numel() < needed_bytes or part.device != device:
            room = needed_bytes + needed_bytes // 8
            part = self._parts[name] = torch.empty(room, dtype=torch.uint8, device=device)
        return part[:needed_bytes].view(dtype).view(shape)

    def place(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x` itself where it is contiguous and aligned, else a copy here."""
        if x.is_contiguous() and x.data_ptr() % ALIGNMENT_BYTES == 0:
            return x
        return self.view(name, tuple(x.shape), x.dtype).copy_(x)

    def shard(self, like: Inputs, n: int, masked: bool) -> Shard:
        """An uninitialised shard of n keys, else as that of `like`."""
        batch, kv_heads, _, d = like.k.shape
        return Shard(
            self.view("k", (batch, kv_heads, n, d), like.k.dtype),
            self.view("v", (batch, kv_heads, n, like.v.shape[3]), like.v.dtype),
            self.view("keys", (batch, n), torch.int64) if masked else None,
        )


class Partials:
    """One partial per rank and their merge, packed as LOGSUMEXP folds them."""

    def __init__(self, shape: tuple[int, ...], ranks: int) -> None:
        layout, buffer, offsets = _packed(shape, ranks + 1)
        self.shape = shape
        self._of_rank = [_partial(layout, buffer, offset) for offset in offsets[:-1]]
        self._merged = layout.views(buffer, offsets[-1], layout.rows)
        self._fold = LOGSUMEXP.bind_fold(layout, buffer, layout.rows, offsets[:-1])

    def of(self, rank: int) -> Partial:
        """Where to write the partial of that rank's shard."""
        return self._of_rank[rank]

    def fold(self, into: Partial) -> None:
        """Merge all, in rank order."""
        self._fold(self._merged)
        into.out.copy_(torch.from_numpy(self._merged["out"]).view(into.out.shape))
        into.lse.copy_(torch.from_numpy(self._merged["lse"]).view(into.lse.shape))


class Running:
    """A partial into which others are merged, one after the other.

    Attributes:
        merged: What has been merged so far; empty at first.
        next: Where to write the next one, before `add`.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        layout, buffer, offsets = _packed(shape, 2)
        self.merged, self.next = (_partial(layout, buffer, offset) for offset in offsets)
        self.merged.lse.fill_(-torch.inf)
        self._merged = layout.views(buffer, offsets[0], layout.rows)
        self._fold = LOGSUMEXP.bind_fold(layout, buffer, layout.rows, offsets)

    def add(self) -> None:
        """Merge the next one."""
        self._fold(self._merged)  # into the first operand's place, which a fold may do


def _packed(shape: tuple[int, ...], slots: int) -> tuple[Layout, NDArray[np.uint8], list[int]]:
    """Memory for partials with `out` of this shape, as LOGSUMEXP folds them: (layout, buffer, offsets)."""
    layout = LOGSUMEXP.layout({"out": (shape, np.float32), "lse": (shape[:3], np.float32)})
    slot_bytes = -(-layout.packed_bytes(layout.rows) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return layout, np.zeros(slots * slot_bytes, np.uint8), [slot * slot_bytes for slot in range(slots)]


def _partial(layout: Layout, buffer: NDArray[np.uint8], offset: int) -> Partial:
    views = layout.views(buffer, offset, layout.rows)
    out = torch.from_numpy(views["out"]).view(*layout.leading, views["out"].shape[-1])
    return Partial(out, torch.from_numpy(views["lse"]).view(layout.leading))
