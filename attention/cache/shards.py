"""Ownership of the positions of a sequence by ranks: pure arithmetic, the same on every rank.

A sequence is cut into blocks of `block_size` tokens. Every block belongs to one of V virtual shards: block b to
shard b mod V (round robin, for sequences that grow), or, where the final length is known, to V contiguous ranges
of blocks. Rank r of P owns the whole virtual shards from r*V//P up to (r+1)*V//P, or shares in proportion to given
weights, so ranks with more shards than others, and ranks whose shards have no block yet, are normal. Because V does
not depend on P, the canonical order of a reduction (virtual shard by virtual shard) is the same for every rank count.

With `replicas` other ranks hold copies: those of one rank's shards are spread over all others in turn, so that
after a loss every survivor takes over a part. Once ranks are gone, `holders` says shard by shard who holds what.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from topocomm import OperatorError

Positions = NDArray[np.int64]

VIRTUAL_SHARDS = 64
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class ShardMap:
    """The owner of every position, and the holders of copies.

    Attributes:
        virtual_shards: V; at least `ranks`.
        capacity: None deals the blocks out round robin. A number of tokens gives every virtual shard a
            contiguous range of that many tokens' blocks instead; positions from `capacity` on have no owner.
        replicas: How many ranks hold each token, its owner among them; at most `ranks`.
        holders: For every virtual shard its owner and then the holders of copies; None: by the rule above.
        weights: What each rank owns is in proportion to its weight, as near as whole virtual shards allow: one integer
            per rank, 0 for a rank that owns nothing (it may hold copies). None: equal parts, or as `holders` says.

    Raises:
        OperatorError: A figure is less than 1, there are more ranks than virtual shards, more replicas than ranks, or
            weights that are not one integer per rank.
    """

    ranks: int
    virtual_shards: int = VIRTUAL_SHARDS
    block_size: int = BLOCK_TOKENS
    capacity: int | None = None
    replicas: int = 1
    holders: tuple[tuple[int, ...], ...] | None = None
    weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("ranks", "virtual_shards", "block_size", "capacity", "replicas"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OperatorError(f"ShardMap: {name} must be at least 1, got {value}")
        if self.holders is None and self.ranks > self.virtual_shards:
            raise OperatorError(
                f"ShardMap: {self.ranks} ranks cannot share {self.virtual_shards} virtual shards, "
                f"a rank owns whole ones; give virtual_shards={self.ranks} or more"
            )
        if self.replicas > self.ranks:
            raise OperatorError(
                f"ShardMap: replicas={self.replicas} needs {self.replicas} ranks, there are {self.ranks}; "
                "a second copy on the same rank would be lost with the first"
            )
        if self.holders is not None:
            self._check_holders(self.holders)
        elif self.weights is not None:
            weights = self.weights
            whole = isinstance(weights, tuple) and all(type(weight) is int and weight >= 0 for weight in weights)
            if not whole or len(weights) != self.ranks or not sum(weights):
                raise OperatorError(
                    f"ShardMap: weights must be a tuple of {self.ranks} integers, one per rank, 0 or more and not all "
                    f"0, got {weights!r}"
                )

    def virtual_range(self, rank: int) -> tuple[int, int]:
        """Return the virtual shards of `rank`: first, and first of the next rank.

        Raises:
            OperatorError: No such rank, or shards were dealt out anew, so that a rank's are no range.
        """
        self._check_rank(rank)
        if self.holders is not None:
            raise OperatorError(
                "ShardMap.virtual_range: the shards of lost ranks were dealt out; a rank's are no range"
            )
        return self._bounds[rank], self._bounds[rank + 1]

    def virtual_shard_of(self, positions: Positions) -> Positions:
        """Return the virtual shard of each position, int64, in the shape of `positions`."""
        blocks = np.asarray(positions, np.int64) // self.block_size
        if self.capacity is None:
            return np.asarray(blocks % self.virtual_shards)
        total = -(-self.capacity // self.block_size)
        # Shard v holds the blocks from v*total//V up to (v+1)*total//V; this is its inverse in integers.
        return np.asarray(((blocks + 1) * self.virtual_shards - 1) // total)

    @cached_property
    def table(self) -> Positions:
        """The holders of every virtual shard, int64 [virtual_shards, replicas], the owner in column 0."""
        rows = self.holders or [self._by_rule(shard) for shard in range(self.virtual_shards)]
        table = np.array(rows, np.int64).reshape(self.virtual_shards, self.replicas)
        table.flags.writeable = False
        return table

    def owner_of(self, positions: Positions) -> Positions:
        """Return the rank that owns each position, int64, in the shape of `positions`."""
        return np.asarray(self.table[self.virtual_shard_of(positions), 0])

    def owned(self, rank: int, start: int, stop: int) -> Positions:
        """Return the positions in [start, stop) that `rank` owns, ascending, int64; a shared array that is read-only.

        Raises:
            OperatorError: No such rank, or `stop` lies beyond the capacity.
        """
        return _held(self, rank, start, stop, 0, 1)

    def copied(self, rank: int, start: int, stop: int) -> Positions:
        """Return the positions in [start, stop) of which `rank` holds a copy beside their owner; else as `owned`."""
        return _held(self, rank, start, stop, 1, None)

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """Where the virtual shards of each rank begin, and the end: ranks + 1 numbers."""
        weights = self.weights or (1,) * self.ranks
        return tuple(upto * self.virtual_shards // sum(weights) for upto in accumulate(weights, initial=0))

    def _by_rule(self, shard: int) -> tuple[int, ...]:
        owner = bisect_right(self._bounds, shard) - 1
        turn = shard - self._bounds[owner]
        others = [(owner + 1 + (turn + i) % (self.ranks - 1)) % self.ranks for i in range(self.replicas - 1)]
        return (owner, *others)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise OperatorError(f"ShardMap: rank must be 0 to {self.ranks - 1}, got {rank}")

    def _check_holders(self, holders: tuple[tuple[int, ...], ...]) -> None:
        if len(holders) != self.virtual_shards:
            raise OperatorError(f"ShardMap: holders must name {self.virtual_shards} virtual shards, got {len(holders)}")
        for shard, ranks in enumerate(holders):
            if len({*ranks} & {*range(self.ranks)}) != self.replicas or len(ranks) != self.replicas:
                raise OperatorError(
                    f"ShardMap: virtual shard {shard} must have {self.replicas} different holders "
                    f"from 0 to {self.ranks - 1}, got {list(ranks)}"
                )


# All layers of a model ask for the same range one after the other.
@lru_cache(maxsize=64)
def _held(shards: ShardMap, rank: int, start: int, stop: int, *columns: int | None) -> Positions:
    shards._check_rank(rank)
    if shards.capacity is not None and stop > shards.capacity:
        raise OperatorError(
            f"ShardMap: position {stop - 1} lies beyond the capacity of {shards.capacity} tokens; "
            "build the map with a larger capacity, or without one"
        )
    positions = np.arange(start, stop, dtype=np.int64)
    holders = shards.table[shards.virtual_shard_of(positions), slice(*columns)]
    held: Positions = positions[(holders == rank).any(-1)]
    held.flags.writeable = False
    return held
