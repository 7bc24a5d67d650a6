"""The canonical tree over virtual shards: one expression for every rank count and every layout.

    tree(low, high) = tree(low, low + s) . tree(low + s, high),  s = the largest power of two below high - low

It is aligned and dyadic, and a ragged right edge joins last. A rank that owns a contiguous range of shards folds it
into the largest nodes of the tree that lie inside, at most 2 log2 V of them, and sends those.
"""

from __future__ import annotations

Node = tuple[int, int]
"""The shards low..high-1."""


def canonical_split(shards: int) -> int:
    """Return the shards in the left branch of a node of `shards` shards, at least 2."""
    return 1 << ((shards - 1).bit_length() - 1)


def canonical_nodes(low: int, high: int, total: int) -> list[Node]:
    """Return the largest nodes of the tree over `total` shards within the shards low..high-1, from left to right.

    A rank folds its shards into these before it sends. An empty range has none. The nodes of the tree are the ranges
    k * 2^j to min((k + 1) * 2^j, total).
    """
    nodes = []
    while low < high:
        size = low & -low or 1 << (total - 1).bit_length()
        while min(low + size, total) > high:
            size >>= 1
        nodes.append((low, min(low + size, total)))
        low += size
    return nodes
