"""The memory of ring attention, in host memory and on a GPU: shards in buffers that are used again, and partials."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.decode.communicators import stream_order_of
from attention.gpu.placement import on_gpu
from attention.merge.logsumexp import LOGSUMEXP
from attention.partial import Partial
from topocomm import Communicator, Layout

ALIGNMENT_BYTES = 64
"""Alignment of torch's memory. Shards at other addresses are copied: matrix products may round by alignment."""
DEVICE_ALIGNMENT_BYTES = 256
OWN, RECEIVED = 0, (1, 2)
"""Slots on a GPU: this rank's shard, and those that arrive in turn."""
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
    keys: torch.Tensor | None = None

    @property
    def buffers(self) -> list[Any]:
        """The memory, as bytes: NumPy arrays, or tensors on a GPU."""
        parts = [self.k, self.v] if self.keys is None else [self.k, self.v, self.keys]
        as_bytes = [part.view(-1).view(torch.uint8) for part in parts]
        return as_bytes if on_gpu(self.k) else [part.numpy() for part in as_bytes]


class ShardBuffers:
    """The buffers of one communicator: two for arriving shards, and one for this rank's where it must be copied."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._host, self._device = HostShards(), DeviceShards()

    def in_turn(self, inputs: Inputs, keys: torch.Tensor | None, sizes: list[int]) -> list[Shard]:
        """Return the shards in the order in which they are attended: this rank's, then those that arrive.

        `keys` are the positions of this rank's, int64 [1 or batch, n], where a call masks; `sizes` the keys per rank.
        """
        rank = self._comm.rank
        arriving = [sizes[(rank - hop - 1) % len(sizes)] for hop in range(len(sizes) - 1)]
        if not on_gpu(inputs.q):
            return self._host.in_turn(inputs, keys, arriving, max(sizes))
        stream_order_of(self._comm).acquire(inputs.q.device)
        return self._device.in_turn(inputs, keys, arriving, max(sizes))


class Scratch:
    """Memory for one shard; grows when a larger one comes, and with room to spare, since caches grow."""

    def __init__(self) -> None:
        self._parts: dict[str, torch.Tensor] = {}

    def view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device = HOST) -> torch.Tensor:
        """Return an uninitialised tensor; the same memory at every call until it has to grow."""
        needed_bytes = prod(shape) * dtype.itemsize
        part = self._parts.get(name)
        if part is None or part.numel() < needed_bytes or part.device != device:
            room = needed_bytes + needed_bytes // 8
            part = self._parts[name] = torch.empty(room, dtype=torch.uint8, device=device)
        return part[:needed_bytes].view(dtype).view(shape)


class HostShards:
    """Shards in host memory: this rank's where the caller has it, if that is contiguous and aligned."""

    def __init__(self) -> None:
        self._own = Scratch()
        self._received = Scratch(), Scratch()

    def in_turn(self, inputs: Inputs, keys: torch.Tensor | None, arriving: list[int], most: int) -> list[Shard]:
        """As `ShardBuffers.in_turn`; `arriving`: keys of the shards to come, `most`: of the largest of all ranks."""
        own = Shard(
            self._aligned("k", inputs.k),
            self._aligned("v", inputs.v),
            None if keys is None else self._own.view("keys", (len(inputs.k), inputs.n), torch.int64).copy_(keys),
        )
        masked = keys is not None
        if arriving:
            for scratch in self._received:
                _shard_in(scratch, inputs, most, masked)  # grows at most once a call
        return [own, *(_shard_in(self._received[i % 2], inputs, n, masked) for i, n in enumerate(arriving))]

    def _aligned(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return `x` itself where it is contiguous and aligned, else a copy."""
        if x.is_contiguous() and x.data_ptr() % ALIGNMENT_BYTES == 0:
            return x
        return self._own.view(name, tuple(x.shape), x.dtype).copy_(x)


class DeviceShards:
    """Three shards in one allocation on a GPU, which grows when a larger shard comes, with room to spare."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._slot_bytes = 0

    def in_turn(self, inputs: Inputs, keys: torch.Tensor | None, arriving: list[int], most: int) -> list[Shard]:
        """As `HostShards.in_turn`; this rank's shard is copied where it is sent from."""
        if not arriving:
            return [Shard(inputs.k, inputs.v, keys)]
        masked = keys is not None
        self._reserve(inputs, most, masked)
        own = self._shard(OWN, inputs, inputs.n, masked)
        own.k.copy_(inputs.k)
        own.v.copy_(inputs.v)
        if own.keys is not None and keys is not None:
            own.keys.copy_(keys)
        return [own, *(self._shard(RECEIVED[i % 2], inputs, n, masked) for i, n in enumerate(arriving))]

    def _reserve(self, like: Inputs, most: int, masked: bool) -> None:
        """Make room for shards of up to `most` keys each; what was in the slots may be gone."""
        needed = sum(_padded(prod(shape) * dtype.itemsize) for _, shape, dtype in _parts(like, most, masked))
        if self._memory is None or self._slot_bytes < needed or self._memory.device != like.q.device:
            self._slot_bytes = _padded(needed + needed // 8)
            self._memory = None  # given back before the next is asked for
            self._memory = device_memory(3 * self._slot_bytes, like.q.device)

    def _shard(self, slot: int, like: Inputs, n: int, masked: bool) -> Shard:
        """Return an uninitialised shard of n keys, else as that of `like`."""
        assert self._memory is not None, "reserved before"
        start, parts = slot * self._slot_bytes, {}
        for name, shape, dtype in _parts(like, n, masked):
            size = prod(shape) * dtype.itemsize
            parts[name] = self._memory[start : start + size].view(dtype).view(shape)
            start += _padded(size)
        return Shard(**parts)


def device_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Return bytes on the device, uint8 [size_bytes]."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def _shard_in(scratch: Scratch, like: Inputs, n: int, masked: bool) -> Shard:
    """Return an uninitialised shard of n keys, else as that of `like`."""
    return Shard(**{name: scratch.view(name, shape, dtype) for name, shape, dtype in _parts(like, n, masked)})


def _parts(like: Inputs, n: int, masked: bool) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of the arrays of a shard of n keys."""
    batch, kv_heads, _, d = like.k.shape
    parts: list[tuple[str, tuple[int, ...], torch.dtype]] = [
        ("k", (batch, kv_heads, n, d), like.k.dtype),
        ("v", (batch, kv_heads, n, like.v.shape[3]), like.v.dtype),
    ]
    return [*parts, ("keys", (batch, n), torch.int64)] if masked else parts


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // DEVICE_ALIGNMENT_BYTES) * DEVICE_ALIGNMENT_BYTES


class HostPartials:
    """One partial per rank and their merge, packed as LOGSUMEXP folds them."""

    def __init__(self, shape: tuple[int, ...], ranks: int) -> None:
        layout, buffer, offsets = _packed(shape, ranks + 1)
        self.shape, self.device = shape, HOST
        self._of_rank = [_partial(layout, buffer, offset) for offset in offsets[:-1]]
        self._merged = layout.views(buffer, offsets[-1], layout.rows)
        self._fold = LOGSUMEXP.bind_fold(layout, buffer, layout.rows, offsets[:-1])

    def of(self, rank: int) -> Partial:
        """Return where to write the partial of that rank's shard."""
        return self._of_rank[rank]

    def fold(self, into: Partial) -> None:
        """Merge all, in rank order."""
        self._fold(self._merged)
        into.out.copy_(torch.from_numpy(self._merged["out"]).view(into.out.shape))
        into.lse.copy_(torch.from_numpy(self._merged["lse"]).view(into.lse.shape))


class DevicePartials:
    """As `HostPartials` on a GPU; the merge is one kernel launch for up to 16 ranks."""

    def __init__(self, shape: tuple[int, ...], ranks: int, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self._all = empty_partial((ranks, *shape), device)

    def of(self, rank: int) -> Partial:
        """As `HostPartials.of`."""
        return Partial(self._all.out[rank], self._all.lse[rank])

    def fold(self, into: Partial) -> None:
        """As `HostPartials.fold`."""
        for target, merged in zip(into, gpu.fold(*(x.unbind(0) for x in self._all)), strict=True):
            target.copy_(merged)


Partials = HostPartials | DevicePartials


def partials_like(inputs: Inputs, ranks: int, known: Partials | None) -> Partials:
    """Return one partial per rank for results like that of the inputs: `known`, if it fits."""
    shape, device = inputs.out_shape, inputs.q.device
    kind = DevicePartials if on_gpu(inputs.q) else HostPartials
    if isinstance(known, kind) and known.shape == shape and known.device == device:
        return known
    return DevicePartials(shape, ranks, device) if on_gpu(inputs.q) else HostPartials(shape, ranks)


class RunningPartial:
    """A partial in host memory into which others are merged, one after the other.

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
