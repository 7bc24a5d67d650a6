"""Block lists: which blocks of keys a block of queries attends where positions are in any order; made on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch

from attention.visibility import HIDDEN, Visibility

FARTHEST = 1 << 30
"""Largest distance of a position from the first query; farther ones are clamped to it."""

NEVER = (1 << 31) - 1
"""HIDDEN in 32 bits."""


class BlockLists(NamedTuple):
    """Positions in 32 bits, which take half the registers of 64, and the blocks of keys by block of queries.

    A row sees a key iff low <= keys <= high.

    Attributes:
        low, high, queries: int32 [batch or 1, q_len].
        keys: int32 [batch or 1, n]; NEVER where no query sees the key.
        numbers: int32 [batch or 1, query blocks, key blocks]: first the blocks of which all rows see all keys, then
            those of which some row sees some key, both in order, then the others.
        counts: int32 [batch or 1, query blocks, 2]: how many are of the first kind and of the second.
    """

    low: torch.Tensor
    high: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    numbers: torch.Tensor
    counts: torch.Tensor


def block_lists_of(visibility: Visibility, rows: int, keys: int) -> BlockLists:
    """Return the lists for blocks of so many rows and keys, q_len and n not 0; nothing is read from the device.

    They are exact where positions ascend or descend within a block; elsewhere a block may be listed of which no row
    sees a key, since only the least and the greatest position of a block are compared.
    """
    first = visibility.queries.amin()

    def relative(x: torch.Tensor) -> torch.Tensor:
        return (x.clamp(first - FARTHEST, first + FARTHEST) - first).to(torch.int32).contiguous()

    low, high, queries = relative(visibility.low), relative(visibility.high), relative(visibility.queries)
    at = torch.where(visibility.keys == HIDDEN, NEVER, relative(visibility.keys))
    existing = torch.where(at == NEVER, -NEVER, at)  # what is never seen counts as below all for the greatest
    least, most, most_existing = _least(at, keys), _most(at, keys, NEVER), _most(existing, keys, -NEVER)
    low_min, low_max = _least(low, rows)[:, :, None], _most(low, rows, -NEVER)[:, :, None]
    high_min, high_max = _least(high, rows)[:, :, None], _most(high, rows, -NEVER)[:, :, None]
    some = (least[:, None] <= high_max) & (most_existing[:, None] >= low_min)
    full = some & (most[:, None] <= high_min) & (least[:, None] >= low_max)
    kind = 2 - some.to(torch.int8) - full.to(torch.int8)
    numbers = kind.argsort(dim=-1, stable=True).to(torch.int32)
    counts = torch.stack([full.sum(-1), (some & ~full).sum(-1)], -1).to(torch.int32)
    return BlockLists(low, high, queries, at, numbers.contiguous(), counts.contiguous())


def _least(x: torch.Tensor, block: int) -> torch.Tensor:
    """The least of every block of the last axis, [batch or 1, blocks]."""
    return _blocks(x, block, NEVER).amin(-1)


def _most(x: torch.Tensor, block: int, beyond: int) -> torch.Tensor:
    """The greatest of every block; `beyond` fills up the last."""
    return _blocks(x, block, beyond).amax(-1)


def _blocks(x: torch.Tensor, block: int, beyond: int) -> torch.Tensor:
    """[batch or 1, blocks, block], filled up with `beyond`."""
    lead, count = x.shape
    blocks = -(-count // block)
    whole = x.new_full((lead, blocks * block), beyond)
    whole[:, :count] = x
    return whole.view(lead, blocks, block)
