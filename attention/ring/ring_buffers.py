"""The memory of ring attention, in host memory and on a GPU: shards in buffers that are used again, and partials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.decode.communicators import stream_order_of
from attention.gpu.placement import on_gpu
from attention.merge.merge_states import fold_on_host
from attention.partial import Partial
from topocomm import Communicator

ALIGNMENT_BYTES = 64
"""Alignment of torch's memory. Shards at other addresses are copied: matrix products may round by alignment."""
DEVICE_ALIGNMENT_BYTES = 256
"""Alignment of the parts of a shard on a GPU, that of CUDA's allocations."""
Parts = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of the tensors of a shard, by name."""


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
    keys: torch.Tensor | None = None

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

    def view(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor on a device; the same memory at every call until it has to grow."""
        needed_bytes = prod(shape) * dtype.itemsize
        part = self._parts.get(name)
        if part is None or part.numel() < needed_bytes or part.device != device:
            part = self._parts[name] = torch.empty(0)  # what was there is given back before the next is asked for
            part = self._parts[name] = scratch_memory(needed_bytes + needed_bytes // 8, device)
        return part[:needed_bytes].view(dtype).view(shape)


def scratch_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Return bytes on the device, uint8 [size_bytes]."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


class DeviceSlots:
    """Three shards in one allocation on a GPU, this rank's first: only of one does a shift move parts in place."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._slot_bytes = 0

    def reserve(self, parts: Parts, device: torch.device) -> None:
        """Make room for shards of such parts, with some to spare; what was in the slots may be gone."""
        needed_bytes = sum(_padded(prod(shape) * dtype.itemsize) for shape, dtype in parts.values())
        if self._memory is None or self._slot_bytes < needed_bytes or self._memory.device != device:
            self._slot_bytes = _padded(needed_bytes + needed_bytes // 8)
            self._memory = None  # given back before the next is asked for
            self._memory = scratch_memory(3 * self._slot_bytes, device)

    def shard(self, slot: int, parts: Parts) -> Shard:
        """Return an uninitialised shard."""
        assert self._memory is not None, "reserved before"
        start, views = slot * self._slot_bytes, {}
        for name, (shape, dtype) in parts.items():
            size = prod(shape) * dtype.itemsize
            views[name] = self._memory[start : start + size].view(dtype).view(shape)
            start += _padded(size)
        return Shard(**views)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // DEVICE_ALIGNMENT_BYTES) * DEVICE_ALIGNMENT_BYTES


class ShardBuffers:
    """The buffers of one communicator: two for arriving shards, and one for this rank's where it must be copied.

    In host memory that is where the caller's is not contiguous or not aligned; on a GPU always, since it is sent.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._own = Scratch()
        self._received = Scratch(), Scratch()
        self._slots = DeviceSlots()

    def in_turn(self, inputs: Inputs, keys: torch.Tensor | None, sizes: list[int]) -> list[Shard]:
        """Return the shards in the order in which they are attended: this rank's, then those that arrive.

        `keys` are the positions of this rank's, int64 [1 or batch, n], where a call masks; `sizes` the keys per rank.
        """
        rank = self._comm.rank
        arriving = [sizes[(rank - hop - 1) % len(sizes)] for hop in range(len(sizes) - 1)]
        if on_gpu(inputs.q):
            stream_order_of(self._comm).acquire(inputs.q.device)
            if not arriving:
                return [Shard(inputs.k, inputs.v, keys)]
        parts = {"k": inputs.k, "v": inputs.v}
        if keys is not None:
            parts["keys"] = keys.expand(len(inputs.k), -1)

        def parts_of(n: int) -> Parts:
            return {
                name: ((*x.shape[:2], n, x.shape[3]) if x.ndim == 4 else (len(x), n), x.dtype)
                for name, x in parts.items()
            }

        if on_gpu(inputs.q):
            self._slots.reserve(parts_of(max(sizes)), inputs.q.device)
            first = self._slots.shard(0, parts_of(inputs.n))
            for name, x in parts.items():
                getattr(first, name).copy_(x)
            return [first, *(self._slots.shard(1 + hop % 2, parts_of(n)) for hop, n in enumerate(arriving))]
        own = {}
        for name, x in parts.items():
            stays = name != "keys" and x.is_contiguous() and x.data_ptr() % ALIGNMENT_BYTES == 0
            own[name] = x if stays else self._own.view(name, tuple(x.shape), x.device, x.dtype).copy_(x)

        def shard_in(scratch: Scratch, n: int) -> Shard:
            return Shard(
                **{name: scratch.view(name, parts_of(n)[name][0], x.device, x.dtype) for name, x in parts.items()}
            )

        if arriving:
            for scratch in self._received:
                shard_in(scratch, max(sizes))  # grows at most once a call
        return [Shard(**own), *(shard_in(self._received[hop % 2], n) for hop, n in enumerate(arriving))]


class Partials:
    """One partial per rank, and their merge."""

    def __init__(self, shape: tuple[int, ...], ranks: int, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self._all = empty_partial((ranks, *shape), device)

    def of(self, rank: int) -> Partial:
        """Return where to write the partial of that rank's shard."""
        return Partial(self._all.out[rank], self._all.lse[rank])

    def fold(self, into: Partial) -> None:
        """Merge all, in rank order; on a GPU by one kernel launch for up to 16 ranks."""
        for target, merged in zip(into, fold(*self._all), strict=True):
            target.copy_(merged)


def fold(outs: torch.Tensor, lses: torch.Tensor) -> Partial:
    """Return the left fold of partials, out float32 or bfloat16 [partials, *rows, dim] and lse [partials, *rows]."""
    if on_gpu(lses):
        return gpu.fold(outs.unbind(0), lses.unbind(0))
    return Partial(*fold_on_host(outs.float().unbind(0), lses.unbind(0)))


def partials_like(inputs: Inputs, ranks: int, known: Partials | None) -> Partials:
    """Return one partial per rank for results like that of the inputs: `known`, if it fits."""
    shape, device = inputs.out_shape, inputs.q.device
    if known is not None and known.shape == shape and known.device == device:
        return known
    return Partials(shape, ranks, device)
