"""Ownership of the positions of a sequence by ranks: pure arithmetic, the same on every rank.

A sequence is cut into blocks of `block_size` tokens. Every block belongs to one of V virtual shards: V blocks in a row
to one each (for sequences that grow), or, where the final length is known, contiguous ranges of blocks to each. Rank r
of P owns the whole virtual shards from r*V//P up to (r+1)*V//P, or shares in proportion to given weights.

Blocks are dealt so that ranks which own ranges of shards still get them in turn: with V = 96, the default for 1, 2, 3,
4, 6, 8, 12, 16 and more ranks, every P blocks in a row go to P different ranks, whichever divisor of 96 P is. So shares
differ by one block at most, at any length. Other numbers of ranks get another V for which this holds. The dealing
depends on V alone: with one V for several numbers of ranks the canonical order of a reduction, virtual shard by
virtual shard, is the same for all of them, and shares are as near as whole shards allow.

A prompt whose tokens are shared out for the whole model, not for their keys only, is dealt in one piece: `with_prompt`.

With `replicas` other ranks hold copies: those of one rank's shards are spread over all others in turn, so that
after a loss every survivor takes over a part. Once ranks are gone, `holders` says shard by shard who holds what.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm import OperatorError

Positions = NDArray[np.int64]

VIRTUAL_SHARDS = 96
"""By default, and for canonical order."""
LEAST_SHARDS = 64
"""Of maps that need another number than 96 for equal shares."""
MOST_SHARDS = 4096
"""Weights whose exact shares would take more virtual shards get inexact shares of 96."""
BLOCK_TOKENS = 16


class Prompt(NamedTuple):
    """Positions [start, stop) that are dealt in two runs a rank, for ranks that own these ranges of virtual shards.

    The first runs go to the ranks in order, the second ones in reverse (zigzag), which balances causal attention.
    `bounds` has the first virtual shard of each rank, and the end: of the ranks when the prompt came.
    """

    start: int
    stop: int
    bounds: tuple[int, ...]

    def shards_of(self, positions: Positions) -> Positions:
        """Return the virtual shard of each of these positions inside the prompt."""
        halves = [(first, (first + stop + 1) // 2, stop) for first, stop in pairwise(self.bounds)]
        runs = [np.arange(first, middle) for first, middle, _ in halves]
        runs += [np.arange(middle, stop) for _, middle, stop in reversed(halves)]
        # The k-th of V shards along the prompt holds its places from k*n//V up to (k+1)*n//V; this is the inverse.
        along = ((positions - self.start + 1) * self.bounds[-1] - 1) // (self.stop - self.start)
        return np.asarray(np.concatenate(runs)[along])


@dataclass(frozen=True)
class ShardMap:
    """The owner of every position, and the holders of copies.

    Attributes:
        virtual_shards: V; at least `ranks`. 0: 96, or the least s 2^k from 64 on where s does not divide 96, s being
            the ranks, or the sum of the weights without their common factor; a map has the number.
        capacity: None deals the blocks out in turn. A number of tokens gives every virtual shard a
            contiguous range of that many tokens' blocks instead; positions from `capacity` on have no owner.
        replicas: How many ranks hold each token, its owner among them; at most `ranks`.
        holders: For every virtual shard its owner and then the holders of copies; None: by the rule above.
        weights: What each rank owns is in proportion to its weight, as near as whole virtual shards allow: one integer
            per rank, 0 for a rank that owns nothing (it may hold copies). None: equal parts, or as `holders` says.
        prompts: Positions that are dealt otherwise; where they overlap the last one says.

    Raises:
        OperatorError: A figure is less than 1, there are more ranks than virtual shards, more replicas than ranks, or
            weights that are not one integer per rank.
    """

    ranks: int
    virtual_shards: int = 0
    block_size: int = BLOCK_TOKENS
    capacity: int | None = None
    replicas: int = 1
    holders: tuple[tuple[int, ...], ...] | None = None
    weights: tuple[int, ...] | None = None
    prompts: tuple[Prompt, ...] = ()

    def __post_init__(self) -> None:
        if self.weights is not None:
            self._check_weights(self.weights)
        if self.virtual_shards == 0:
            enough = self._enough_shards() if self.holders is None else len(self.holders)
            object.__setattr__(self, "virtual_shards", enough)
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
        positions = np.asarray(positions, np.int64)
        blocks = positions // self.block_size
        if self.capacity is None:
            shards = np.asarray(self.dealt[blocks % self.virtual_shards])
            for prompt in self.prompts:
                inside = (positions >= prompt.start) & (positions < prompt.stop)
                shards = np.where(inside, prompt.shards_of(np.where(inside, positions, prompt.start)), shards)
            return shards
        total = -(-self.capacity // self.block_size)
        # Shard v holds the blocks from v*total//V up to (v+1)*total//V; this is its inverse in integers.
        return np.asarray(((blocks + 1) * self.virtual_shards - 1) // total)

    def with_prompt(self, start: int, stop: int) -> ShardMap:
        """Return the map by which a prompt of the positions [start, stop), at least one, is dealt in two runs a rank.

        Raises:
            OperatorError: Shards were dealt out anew after a loss, or by a capacity.
        """
        if self.capacity is not None:
            raise OperatorError("ShardMap.with_prompt: the map deals ranges of its capacity; build it without one")
        self.virtual_range(0)  # refuses a map of survivors
        before = tuple(prompt for prompt in self.prompts if prompt.start < start)
        return replace(self, prompts=(*before, Prompt(start, stop, self._bounds)))

    @cached_property
    def dealt(self) -> Positions:
        """The virtual shards in the order in which blocks come to them, int64 [virtual_shards]; read-only."""
        dealt = np.arange(self.virtual_shards)
        if self.capacity is None:
            twos = self.virtual_shards & -self.virtual_shards
            run = twos if self.virtual_shards % 3 else 3 * twos
            turn, part = np.divmod(dealt, self.virtual_shards // run)
            dealt = part * run + _dealt_evenly(run)[turn]
        dealt.flags.writeable = False
        return dealt

    @cached_property
    def table(self) -> Positions:
        """The holders of every virtual shard, int64 [virtual_shards, replicas], the owner in column 0."""
        table = np.array(self.holders or self._by_rule(), np.int64).reshape(self.virtual_shards, self.replicas)
        table.flags.writeable = False
        return table

    def owner_of(self, positions: Positions) -> Positions:
        """Return the rank that owns each position, int64, in the shape of `positions`."""
        return np.asarray(self.table[self.virtual_shard_of(positions), 0])

    def owned(self, rank: int, start: int, stop: int) -> Positions:
        """Return the positions in [start, stop) that `rank` owns, ascending, int64; a fresh array.

        Raises:
            OperatorError: No such rank, or `stop` lies beyond the capacity.
        """
        return _held(self, rank, start, stop, 0, 1).copy()

    def copied(self, rank: int, start: int, stop: int) -> Positions:
        """Return the positions in [start, stop) of which `rank` holds a copy beside their owner; else as `owned`."""
        return _held(self, rank, start, stop, 1, None).copy()

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        """Where the virtual shards of each rank begin, and the end: ranks + 1 numbers."""
        weights = self.weights or (1,) * self.ranks
        return tuple(upto * self.virtual_shards // sum(weights) for upto in accumulate(weights, initial=0))

    def _enough_shards(self) -> int:
        weights = self.weights or (1,) * self.ranks
        whole = max(1, sum(weights) // max(1, gcd(*weights)))  # ranks below 1 are refused later
        if VIRTUAL_SHARDS % whole == 0 or whole > MOST_SHARDS:
            return max(VIRTUAL_SHARDS, self.ranks)
        return whole << max(0, (-(-LEAST_SHARDS // whole) - 1).bit_length())

    def _by_rule(self) -> list[tuple[int, ...]]:
        """The holders of every shard; copies of one rank's go to the others in turn, as blocks come to them."""
        rows: list[tuple[int, ...]] = [()] * self.virtual_shards
        turns = [0] * self.ranks
        for shard in self.dealt.tolist():
            owner = bisect_right(self._bounds, shard) - 1
            others = range(turns[owner], turns[owner] + self.replicas - 1)
            rows[shard] = (owner, *((owner + 1 + turn % (self.ranks - 1)) % self.ranks for turn in others))
            turns[owner] += 1
        return rows

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise OperatorError(f"ShardMap: rank must be 0 to {self.ranks - 1}, got {rank}")

    def _check_weights(self, weights: tuple[int, ...]) -> None:
        whole = isinstance(weights, tuple) and all(type(weight) is int and weight >= 0 for weight in weights)
        if not whole or len(weights) != self.ranks or not sum(weights):
            raise OperatorError(
                f"ShardMap: weights must be a tuple of {self.ranks} integers, one per rank, 0 or more and not all 0, "
                f"got {weights!r}"
            )

    def _check_holders(self, holders: tuple[tuple[int, ...], ...]) -> None:
        if len(holders) != self.virtual_shards:
            raise OperatorError(f"ShardMap: holders must name {self.virtual_shards} virtual shards, got {len(holders)}")
        for shard, ranks in enumerate(holders):
            if len({*ranks} & {*range(self.ranks)}) != self.replicas or len(ranks) != self.replicas:
                raise OperatorError(
                    f"ShardMap: virtual shard {shard} must have {self.replicas} different holders "
                    f"from 0 to {self.ranks - 1}, got {list(ranks)}"
                )


def canonical_shards(ranks: int) -> ShardMap:
    """Return the map of canonical order, with the same virtual shards for any number of ranks up to 96."""
    return ShardMap(ranks, VIRTUAL_SHARDS)


def _dealt_evenly(size: int) -> Positions:
    """A permutation x of 2^k or 3 2^k numbers: aligned runs of P, which divides `size`, have one of each P-th of them.

    From x of half the size comes the next by y(2i + e) = x(i) + size / 2 (e xor s(i)). Even P follow from x and P / 2.
    Of P = 3, where x(3j), x(3j + 1), x(3j + 2) are in different thirds, s(3j + 1) puts y(6j + 2) into the third that
    y(6j) and y(6j + 1) leave.
    """
    x = np.arange(1 if size % 3 else 3)
    while len(x) < size:
        third = 3 * x // len(x)
        first = np.where(np.arange(len(x)) % 3 == 1, 2 * np.roll(third, 1) + third <= 2, False) & (size % 3 == 0)
        x = np.stack([x + first * len(x), x + ~first * len(x)], 1).ravel()
    return x


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
