"""The memory of ring attention on a GPU: shards in one allocation, where messages leave and arrive, and partials."""

from __future__ import annotations

from math import prod

import torch

from attention import gpu
from attention.arrays import Inputs, empty_partial
from attention.partial import Partial
from attention.ring.ring_buffers import Shard

ALIGNMENT_BYTES = 256
OWN, RECEIVED = 0, (1, 2)
"""Slots: this rank's shard, and those that arrive in turn."""


class Slots:
    """Three shards in one allocation, which grows when a larger shard comes, with room to spare."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._slot_bytes = 0

    def in_turn(self, inputs: Inputs, keys: torch.Tensor | None, sizes: list[int], rank: int) -> list[Shard]:
        """The shards in the order in which they are in hand: this rank's, then those that arrive.

        Args:
            inputs: This rank's keys and values.
            keys: Their positions, int64 [1 or batch, n], where a call masks.
            sizes: Keys of every rank.
            rank: Which one this is.
        """
        if len(sizes) == 1:
            return [Shard(inputs.k, inputs.v, keys)]
        self.prepare(inputs, max(sizes), keys is not None)
        arriving = (
            self.shard(RECEIVED[hop % 2], inputs, sizes[(rank - hop - 1) % len(sizes)], keys is not None)
            for hop in range(len(sizes) - 1)
        )
        return [self.own(inputs, keys), *arriving]

    def prepare(self, like: Inputs, most: int, masked: bool) -> None:
        """Make room for shards of up to `most` keys each; what was in the slots may be gone."""
        needed = sum(_padded(prod(shape) * dtype.itemsize) for _, shape, dtype in _parts(like, most, masked))
        if self._memory is None or self._slot_bytes < needed or self._memory.device != like.q.device:
            self._slot_bytes = _padded(needed + needed // 8)
            self._memory = None  # given back before the next is asked for
            self._memory = new_memory(3 * self._slot_bytes, like.q.device)

    def shard(self, slot: int, like: Inputs, n: int, masked: bool) -> Shard:
        """A shard of n keys, else as that of `like`; it holds anything."""
        assert self._memory is not None, "prepared before"
        at, found = slot * self._slot_bytes, {}
        for name, shape, dtype in _parts(like, n, masked):
            size = prod(shape) * dtype.itemsize
            found[name] = self._memory[at : at + size].view(dtype).view(shape)
            at += _padded(size)
        return Shard(found["k"], found["v"], found.get("keys"))

    def own(self, inputs: Inputs, keys: torch.Tensor | None) -> Shard:
        """This rank's shard in its slot, where it is sent from."""
        shard = self.shard(OWN, inputs, inputs.k.shape[2], keys is not None)
        shard.k.copy_(inputs.k)
        shard.v.copy_(inputs.v)
        if shard.keys is not None and keys is not None:
            shard.keys.copy_(keys)
        return shard


class PartialsThere:
    """One partial per rank, and their merge in rank order by one kernel launch; as `ring_buffers.Partials`."""

    def __init__(self, shape: tuple[int, ...], ranks: int, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self._all = empty_partial((ranks, *shape), device)

    def of(self, rank: int) -> Partial:
        """Where to write the partial of that rank's shard."""
        return Partial(self._all.out[rank], self._all.lse[rank])

    def fold(self, into: Partial) -> None:
        """Merge all, in rank order."""
        for target, found in zip(into, gpu.fold(*(x.unbind(0) for x in self._all)), strict=True):
            target.copy_(found)


def new_memory(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Bytes on the device, uint8 [size_bytes]."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def _parts(like: Inputs, n: int, masked: bool) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    batch, kv_heads, _, d = like.k.shape
    parts: list[tuple[str, tuple[int, ...], torch.dtype]] = [
        ("k", (batch, kv_heads, n, d), like.k.dtype),
        ("v", (batch, kv_heads, n, like.v.shape[3]), like.v.dtype),
    ]
    return [*parts, ("keys", (batch, n), torch.int64)] if masked else parts


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
