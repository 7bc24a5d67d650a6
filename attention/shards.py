"""Which rank owns which positions of a sequence: pure arithmetic, the same on every rank.

A sequence is cut into blocks of `block_size` tokens. Every block belongs to one of V virtual shards: block b to
shard b mod V (round robin, for sequences that grow), or, where the final length is known, to V contiguous ranges
of blocks. Rank r of P owns the whole virtual shards from r*V//P up to (r+1)*V//P, so ranks with one shard more
than others, and ranks whose shards have no block yet, are normal. Because V does not depend on P, the
canonical order of a reduction (virtual shard by virtual shard) is the same for every rank count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

VIRTUAL_SHARDS = 64
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class ShardMap:
    """The owners of all positions.

    Attributes:
        ranks: Number of ranks, at least 1.
        virtual_shards: Number V of virtual shards; at least `ranks`.
        block_size: Tokens in a block.
        capacity: None deals the blocks out round robin. A number of tokens gives every virtual shard a
            contiguous range of that many tokens' blocks instead; positions from `capacity` on have no owner.

    Raises:
        ValueError: A figure is less than 1, or there are more ranks than virtual shards.
    """

    ranks: int
    virtual_shards: int = VIRTUAL_SHARDS
    block_size: int = BLOCK_TOKENS
    capacity: int | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "virtual_shards", "block_size", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"ShardMap: {name} must be at least 1, got {value}")
        if self.ranks > self.virtual_shards:
            raise ValueError(
                f"ShardMap: {self.ranks} ranks cannot share {self.virtual_shards} virtual shards, "
                f"a rank owns whole ones; give virtual_shards={self.ranks} or more"
            )

    def virtual_range(self, rank: int) -> tuple[int, int]:
        """The virtual shards of `rank`: first, and first of the next rank."""
        self._check_rank(rank)
        return rank * self.virtual_shards // self.ranks, (rank + 1) * self.virtual_shards // self.ranks

    def virtual_shard_of(self, positions: Positions) -> Positions:
        """The virtual shard of each position, int64, in the shape of `positions`."""
        blocks = np.asarray(positions, np.int64) // self.block_size
        if self.capacity is None:
            return np.asarray(blocks % self.virtual_shards)
        total = -(-self.capacity // self.block_size)
        # Shard v holds the blocks from v*total//V up to (v+1)*total//V; this is its inverse in integers.
        return np.asarray(((blocks + 1) * self.virtual_shards - 1) // total)

    def owner_of(self, positions: Positions) -> Positions:
        """The rank that owns each position, int64, in the shape of `positions`."""
        return np.asarray(((self.virtual_shard_of(positions) + 1) * self.ranks - 1) // self.virtual_shards)

    def owned(self, rank: int, start: int, stop: int) -> Positions:
        """The positions in [start, stop) that `rank` owns, ascending, int64; a shared array that is read-only.

        Raises:
            ValueError: No such rank, or `stop` lies beyond the capacity.
        """
        self._check_rank(rank)
        if self.capacity is not None and stop > self.capacity:
            raise ValueError(
                f"ShardMap: position {stop - 1} lies beyond the capacity of {self.capacity} tokens; "
                "build the map with a larger capacity, or without one"
            )
        return _owned(self, rank, start, stop)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise ValueError(f"ShardMap: rank must be 0 to {self.ranks - 1}, got {rank}")


# All layers of a model ask for the same range one after the other.
@lru_cache(maxsize=64)
def _owned(shards: ShardMap, rank: int, start: int, stop: int) -> Positions:
    positions = np.arange(start, stop, dtype=np.int64)
    mine: Positions = positions[shards.owner_of(positions) == rank]
    mine.flags.writeable = False
    return mine
