"""Positions that a cache loses with lost ranks, and their new owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attention.cache.shards import Positions, ShardMap
from topocomm import OperatorError

ABSENT, COPY, OWN = 0, 1, 2
"""State of a virtual shard on a rank: missing or incomplete, a copy, or the owner's rows."""

RANGES_SHOWN = 8

Range = tuple[int, int]


@dataclass(frozen=True)
class Loss:
    """Positions of lost ranks, as ranges (first, last), ascending.

    Attributes:
        owned: For every rank that is gone, in the cache's numbering, the positions that it owned.
        lost: The positions of which no rank that is left holds a copy.
    """

    owned: dict[int, tuple[Range, ...]]
    lost: tuple[Range, ...]

    @classmethod
    def of(cls, shards: ShardMap, survivors: Iterable[int], length: int) -> Loss:
        """Return what of the first `length` tokens is lost if only `survivors` are left."""
        left = set(survivors)
        if not left or not left <= set(range(shards.ranks)):
            raise OperatorError(f"survivors must be ranks from 0 to {shards.ranks - 1}, got {sorted(left)}")
        gone = [rank for rank in range(shards.ranks) if rank not in left]
        positions = np.arange(length, dtype=np.int64)
        held = np.asarray(np.isin(shards.table, sorted(left)).any(1))[shards.virtual_shard_of(positions)]
        return cls({rank: ranges_of(shards.owned(rank, 0, length)) for rank in gone}, ranges_of(positions[~held]))

    def since(self, first: int) -> Loss:
        """Return the same without the positions before `first`."""
        owned = {rank: _since(ranges, first) for rank, ranges in self.owned.items()}
        return Loss(owned, _since(self.lost, first))

    @property
    def positions(self) -> Positions:
        """All lost positions, int64, ascending."""
        return np.concatenate([np.arange(0), *(np.arange(a, b + 1) for a, b in self.lost)]).astype(np.int64)

    def __str__(self) -> str:
        held = [f"rank {rank} held {describe(ranges)}" for rank, ranges in self.owned.items()]
        if not any(self.owned.values()) and not self.lost:
            held.append("nothing is lost")
        elif not self.lost:
            held.append("copies of all are left")
        else:
            held.append(f"no copy is left of {describe(self.lost)}")
        return "; ".join(held)


def _since(ranges: tuple[Range, ...], first: int) -> tuple[Range, ...]:
    return tuple((max(start, first), last) for start, last in ranges if last >= first)


def ranges_of(positions: Positions) -> tuple[Range, ...]:
    """Ascending positions as ranges (first, last)."""
    if not len(positions):
        return ()
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return tuple((int(run[0]), int(run[-1])) for run in np.split(positions, breaks))


def describe(ranges: tuple[Range, ...]) -> str:
    """Such as "positions 128..255 and 640..767"; of many ranges the first ones."""
    if not ranges:
        return "no positions"
    shown = [str(first) if first == last else f"{first}..{last}" for first, last in ranges[:RANGES_SHOWN]]
    if len(ranges) > RANGES_SHOWN:
        shown.append(f"{len(ranges) - RANGES_SHOWN} more ranges")
    return "positions " + " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def deal(shards: ShardMap, inventories: NDArray[np.uint8]) -> ShardMap:
    """Return the map of the surviving ranks: each keeps its shards, the others are dealt out evenly.

    A shard keeps its owner where that is left; else a holder of a copy becomes the owner, the one that owns least;
    where nothing is left, the rank that owns least. Missing copies go to the ranks that hold least.
    `inventories` are ABSENT, COPY or OWN, [ranks that are left, virtual shards].
    """
    ranks = len(inventories)
    replicas = min(shards.replicas, ranks)
    owned, taken, held = [0] * ranks, [0] * ranks, [0] * ranks
    owners: dict[int, int] = {}
    most = inventories.max(0).astype(np.int64)[shards.dealt]
    settled_first = shards.dealt[np.argsort(-most, kind="stable")]  # with an owner, copies, nothing
    for shard in settled_first.tolist():
        column = inventories[:, shard]
        able = np.flatnonzero(column == column.max()).tolist()
        owner = able[0] if column.max() == OWN else min(able, key=lambda rank: (owned[rank], taken[rank]))
        owners[shard] = owner
        owned[owner] += 1
        taken[owner] += column.max() != OWN
    holders = []
    for shard, owner in sorted(owners.items()):
        kept = [rank for rank in np.flatnonzero(inventories[:, shard]).tolist() if rank != owner][: replicas - 1]
        holders.append([owner, *kept])
        for rank in holders[shard]:
            held[rank] += 1
    for ranks_of_shard in holders:
        while len(ranks_of_shard) < replicas:
            others = [rank for rank in range(ranks) if rank not in ranks_of_shard]
            ranks_of_shard.append(min(others, key=lambda rank: held[rank]))
            held[ranks_of_shard[-1]] += 1
    return replace(shards, ranks=ranks, replicas=replicas, holders=tuple(map(tuple, holders)), weights=None)
