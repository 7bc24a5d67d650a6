"""Recovery of caches on the communicator of the surviving ranks: inventory, new shard map, and what moves.

The ranks gather what they hold of every layer, and everything follows from that table, on all ranks alike. So a
recovery in which another rank is lost starts again from what is held then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from attention.cache.loss import ABSENT, Loss, deal, ranges_of
from attention.cache.shards import Positions, ShardMap
from topocomm import Communicator

PIECE_BYTES = 64 << 20
"""Rows of one layer travel in pieces of about this size in all, which every rank receives."""


class _Store(Protocol):
    """The cache of one layer: a `ShardedKVCache`, which says what these are."""

    rank: int
    shards: ShardMap
    first: int
    length: int

    @property
    def token_bytes(self) -> int: ...
    def first_seen(self, position: int) -> int: ...
    def inventory(self) -> NDArray[np.uint8]: ...
    def adopt(self, shards: ShardMap, rank: int, first: int, length: int, missing: Positions) -> None: ...
    def rows_at(self, positions: Positions) -> tuple[torch.Tensor, torch.Tensor, Positions]: ...
    def restore(self, k: torch.Tensor, v: torch.Tensor, positions: Positions) -> None: ...


class Recovery:
    """One attempt to recover; the same on every surviving rank.

    Attributes:
        loss: What was lost, with the ranks by their numbers before.
        length: Tokens that all ranks have, in all layers.
        firsts: For every store, the first position that all ranks still have.
        missing: The positions of which nothing is left, int64, ascending.
    """

    def __init__(self, stores: Sequence[_Store], comm: Communicator) -> None:
        """Gather what the ranks have in the caches of all layers, with one map; changes nothing. Collective."""
        self._stores, self._comm, shards = stores, comm, stores[0].shards
        own_length, firsts = min(store.length for store in stores), [store.first for store in stores]
        head = np.array([stores[0].rank, shards.ranks, own_length, *firsts], np.int64)
        inventory = np.minimum.reduce([store.inventory() for store in stores])
        records = comm.allgather_bytes(np.concatenate([head.view(np.uint8), inventory]))
        heads = [record[: head.nbytes].view(np.int64).tolist() for record in records]
        self._inventories = np.stack([record[head.nbytes :] for record in records])
        self.length: int = min(head[2] for head in heads)
        self.firsts: list[int] = np.max([head[3:] for head in heads], 0).tolist()
        self.missing: Positions = np.unique(np.concatenate([self._missing(i) for i in range(len(stores))]))
        self.loss = Loss({}, ranges_of(self.missing))
        if all(head[1] == shards.ranks for head in heads):  # else an earlier attempt went half way
            was = Loss.of(shards, (head[0] for head in heads), self.length).since(min(self.firsts))
            self.loss = Loss(was.owned, self.loss.lost)

    def _begin(self, index: int) -> int:
        """The first position that a store has to have: its window before the last token, which may pass once more."""
        return min(self.firsts[index], self._stores[index].first_seen(max(0, self.length - 1)))

    def _missing(self, index: int) -> Positions:
        """The positions that no rank has in a store and that it has to have."""
        positions = np.arange(self._begin(index), self.length, dtype=np.int64)
        nobody = self._inventories.max(0) == ABSENT
        gone = nobody[self._stores[index].shards.virtual_shard_of(positions)] | (positions < self.firsts[index])
        missing: Positions = positions[gone]
        return missing

    def move(self) -> None:
        """Give every rank the rows that it has to hold and does not have; collective."""
        new_map = self._deal(self.length)
        sources = np.full(new_map.virtual_shards, -1, np.int64)  # the rank that sends each virtual shard, or -1
        for shard, holders in enumerate(new_map.table.tolist()):
            having = [rank for rank in holders if self._inventories[rank, shard] != ABSENT]
            if having and len(having) < len(holders):
                sources[shard] = having[0]
        for index, store in enumerate(self._stores):
            store.adopt(new_map, self._comm.rank, self._begin(index), self.length, self._missing(index))
            for rows in self._pieces(index, sources):
                _exchange(store, self._comm, rows)

    def start_over(self) -> None:
        """Follow the new map with nothing in the stores; needs no communication."""
        new_map = self._deal(0)
        for store in self._stores:
            store.adopt(new_map, self._comm.rank, 0, 0, self.missing[:0])

    def _deal(self, length: int) -> ShardMap:
        """The map of who is left, without prompts from `length` on: some ranks had begun one that others had not."""
        new_map = deal(self._stores[0].shards, self._inventories)
        return replace(new_map, prompts=tuple(prompt for prompt in new_map.prompts if prompt.start < length))

    def _pieces(self, index: int, sources: Positions) -> Iterator[list[Positions]]:
        """The positions of a store that each rank sends, piece by piece."""
        store = self._stores[index]
        positions = np.arange(self.firsts[index], self.length, dtype=np.int64)
        source = sources[store.shards.virtual_shard_of(positions)]
        positions, source = positions[source >= 0], source[source >= 0]
        if not len(positions):
            return
        step = max(1, PIECE_BYTES // max(1, store.token_bytes))
        for start in range(0, len(positions), step):
            part = slice(start, start + step)
            yield [positions[part][source[part] == rank] for rank in range(self._comm.size)]


def _exchange(store: _Store, comm: Communicator, rows: list[Positions]) -> None:
    """Give all ranks these rows of one layer, as bytes; each keeps those that it holds by the map."""
    k, v, _ = store.rows_at(rows[comm.rank])
    sent = [x.permute(2, 0, 1, 3).flatten(1).contiguous().view(torch.uint8).cpu().numpy() for x in (k, v)]
    gathered = comm.allgather(np.concatenate(sent, axis=1))
    at = np.concatenate(rows)
    order = at.argsort()
    received = []
    for part, x in zip(np.split(gathered, [sent[0].shape[1]], axis=1), (k, v), strict=True):
        flat = torch.from_numpy(np.ascontiguousarray(part[order])).view(-1).view(x.dtype)
        received.append(flat.view(len(at), *x.shape[:2], x.shape[3]).permute(1, 2, 0, 3).to(x.device))
    store.restore(received[0], received[1], at[order])
