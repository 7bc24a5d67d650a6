"""One rank's part of a key-value cache that is sharded over ranks by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.cache.growable_storage import TokenRows, on_device, rows_of
from attention.cache.loss import ABSENT, COPY, OWN, Loss, describe, ranges_of
from attention.cache.recovery import Recovery
from attention.cache.shards import Positions, ShardMap
from topocomm import Communicator, OperatorError
from topocomm.extend import skipped_by_dynamo

Recompute = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Positions [n], int64, ascending, to their keys [batch, kv_heads, n, d] and values [batch, kv_heads, n, d_v]."""


@skipped_by_dynamo
class ShardedKVCache:
    """The keys and values of the positions that one rank owns, for one attention layer.

    Positions count from 0 over the whole sequence; `shards` says who owns which. New tokens are kept by their
    owner and, with replicas, by the holders of copies: every rank is given all new tokens, so keeping copies takes
    memory but no message. Tokens move between ranks only in `recover`. Storage grows by doubling, so n appended tokens
    cost O(n) copies in all. It is where the tokens are; to keep or drop some on a GPU nothing waits for it.

    With a window, tokens that no later query can see are dropped, so that after `evict`, which every `append` begins
    with, all ranks together hold less than window + 2 block_size tokens. Their memory is used again: for every row
    that is dropped at most one other moves. When an append begins, block_size more tokens than the window needs are
    left, so that `truncate` can undo this append and block_size tokens before.

    Attributes:
        window: Keys that a query sees, itself among them, as in `Spec`; None: all before it.
        first: All positions before it were dropped, on every rank.
        missing: Positions that were lost with a rank and are not restored yet, ascending, the same on every rank.
    """

    def __init__(self, shards: ShardMap, rank: int, *, replicas: int | None = None, window: int | None = None) -> None:
        """An empty part; `replicas` overrides that of the map.

        Raises:
            OperatorError: The map has no such rank, or the window is less than 1.
        """
        if window is not None and window < 1:
            raise OperatorError(f"ShardedKVCache: window must be at least 1, got {window}; None: no window")
        self.shards = shards if replicas is None else replace(shards, replicas=replicas)
        self.shards.owned(rank, 0, 0)  # refuses a rank that does not exist
        self.rank = rank
        self.window = window
        self._length = np.zeros(1, np.int64)
        self.first = 0
        self.missing: Positions = np.arange(0)
        self._own = TokenRows()
        self._copies = TokenRows()

    @property
    def length(self) -> int:
        """Tokens of the whole sequence so far, on all ranks together."""
        return self._length.item()

    @length.setter
    def length(self, length: int) -> None:
        self._length[0] = length

    @property
    def k(self) -> torch.Tensor:
        """The owned keys [batch, kv_heads, n_local, d]: a view, valid until the next call that changes the cache."""
        return self._own.k.view()

    @property
    def v(self) -> torch.Tensor:
        """The owned values [batch, kv_heads, n_local, d_v]: a view like `k`."""
        return self._own.v.view()

    @property
    def positions(self) -> torch.Tensor:
        """The position of every owned token [n_local], int64, ascending: a view like `k`."""
        return self._own.positions

    @property
    def known_positions(self) -> Positions:
        """The same in host memory, int64 [n_local], a view: decisions by it wait for no GPU."""
        return self._own.known_positions

    @property
    def n_local(self) -> int:
        """Number of owned tokens."""
        return self._own.k.rows

    @property
    def used_bytes(self) -> int:
        """Bytes of the keys and values held, copies for other ranks among them."""
        return self._own.used_bytes + self._copies.used_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the storage for keys and values, at most about twice `used_bytes`, or four times with a window."""
        return self._own.allocated_bytes + self._copies.allocated_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self._own.k.row_bytes + self._own.v.row_bytes

    def append(self, k: torch.Tensor, v: torch.Tensor, *, evict: bool = True) -> None:
        """Add the next n tokens of the sequence, given in full; this rank keeps those that it owns or copies.

        Args:
            k: Keys [batch, kv_heads, n, d]; the same on every rank.
            v: Values [batch, kv_heads, n, d_v].
            evict: Whether to begin with `evict`; without it all appends since then can be undone.

        Raises:
            OperatorError: Shapes, dtype or device do not fit each other or the tokens before, the tokens lie beyond
                the capacity, gradients are wanted, or positions before are lost.
        """
        self._keep(k, v, None, self._tokens_in(k, v), evict=evict)

    def next_run(self) -> tuple[int, bool]:
        """Return how many next tokens a step may add and count, 0: `append` is due; and whether this rank owns them."""
        position, shards = self.length, self.shards
        if shards.replicas > 1 or len(self.missing):
            return 0, False
        stop = position + shards.block_size - position % shards.block_size
        if self.window is not None:
            stop = min(stop, self.first + self.window - 1 + 2 * shards.block_size)  # where `evict` drops some
        if stop <= position or (shards.capacity is not None and stop > shards.capacity):
            return 0, False
        owned = shards.owned(self.rank, position, stop)
        if len(owned) == 0:
            return stop - position, False
        return self._own.prepare(owned) if len(owned) == stop - position else 0, True

    @property
    def counters(self) -> tuple[Any, Any, Any]:
        """Where `length` is counted, and rows of the owned keys and values: DLPack capsules of int64 [1]."""
        return self._length.__dlpack__(), self._own.k.count.__dlpack__(), self._own.v.count.__dlpack__()

    @property
    def prepared_positions(self) -> Positions:
        """`known_positions`, and behind them those of a run."""
        return self._own.prepared_positions

    def first_seen_row(self) -> int:
        """Return which of the owned rows is the first that the last token sees."""
        if self.window is None:
            return 0
        return int(self._own.known_positions.searchsorted(self.length - self.window))

    def seen_in_storage(self) -> tuple[int, int]:
        """Return which rows of `storage`, [first, end), the last token sees."""
        rows = self._own.k
        return rows.begin + self.first_seen_row(), rows.begin + rows.rows

    @property
    def storage(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The memory of the owned keys and values, [batch, kv_heads, capacity, d] and the same with d_v."""
        k, v = self._own.k.storage, self._own.v.storage
        assert k is not None
        assert v is not None
        return k, v

    def extend(self, k: torch.Tensor, v: torch.Tensor, tokens: int) -> None:
        """Add the next `tokens` tokens of the sequence, of which `k` and `v` hold this rank's only.

        Args:
            k: Keys [batch, kv_heads, n_held, d] of the positions in [length, length + tokens) that this rank owns or
                holds copies of, ascending.
            v: Values [batch, kv_heads, n_held, d_v].
            tokens: Tokens by which the whole sequence grows; the same on every rank.

        Raises:
            OperatorError: As for `append`, or `k` does not hold exactly those tokens.
        """
        start, stop = self.length, self.length + tokens
        held = self.shards.owned(self.rank, start, stop)
        if self.shards.replicas > 1:
            held = np.union1d(held, self.shards.copied(self.rank, start, stop))
        tokens_held = self._tokens_in(k, v)
        if tokens_held != len(held):
            verb = "owns" if self.shards.replicas == 1 else "holds"
            raise OperatorError(
                f"ShardedKVCache: rank {self.rank} {verb} {len(held)} of the tokens {start} to {stop - 1}, "
                f"but k and v hold {tokens_held}"
            )
        self._keep(k, v, held, tokens, evict=True)

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on.

        Raises:
            OperatorError: `length` is negative or more than the tokens there are, or the next token would see tokens
                that were dropped.
        """
        if not 0 <= length <= self.length:
            raise OperatorError(f"ShardedKVCache.truncate: length must be 0 to {self.length}, got {length}")
        if length and self.first > self.first_seen(length):
            raise OperatorError(
                f"ShardedKVCache.truncate: token {length} sees the window of {self.window} before it, but those before "
                f"{self.first} were dropped; block_size = {self.shards.block_size} tokens can be undone, and the last "
                "append: give a map with a larger block_size, or reset() and begin again"
            )
        self._cut(length)

    def first_seen(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)

    def evict(self) -> None:
        """Drop the tokens that no later query sees, in steps of block_size; needs no communication.

        Call it after attention where memory matters (`append` does it for the tokens before); not before a
        `truncate` by more than block_size tokens.
        """
        first = self._first_due(self.length)
        if first > self.first:
            for rows in (self._own, self._copies):
                rows.keep(first, self.length)
            self.first = first

    def _first_due(self, length: int) -> int:
        """The first position to keep when the sequence has this length; `first` where too few can go."""
        first = self.first_seen(length) - self.shards.block_size
        return first if first - self.first >= self.shards.block_size else self.first

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its rows `index` [new_batch], int64 (beam search); needs no communication."""
        self._own.select_batch(index)
        self._copies.select_batch(index)

    def join(self, other: ShardedKVCache) -> None:
        """Add the batch rows of another cache of the same map; needs no communication.

        Positions stay what they are, so a row of the shorter cache has none of the last ones: mask them.

        Raises:
            OperatorError: The maps differ, one of them is empty, tokens are lost, or there is a window, which counts
                positions.
        """
        if self.window is not None or self.shards != other.shards or not (self.length and other.length):
            raise OperatorError(
                "ShardedKVCache.join: both caches must have tokens, one map (without prompts that are dealt "
                "otherwise) and no window"
            )
        if len(self.missing) or len(other.missing):
            raise OperatorError("ShardedKVCache.join: tokens are lost; call recover() first")
        self._own.join(other._own)
        self._copies.join(other._copies)
        self.length = max(self.length, other.length)

    def reset(self) -> None:
        """Forget everything, storage, shape and dtype included."""
        self.length = self.first = 0
        self.missing = self.missing[:0]
        self._own.clear()
        self._copies.clear()

    def lost(self, survivors: Iterable[int]) -> Loss:
        """Return what the cache loses if only these ranks are left, as `comm.shrink().parent_ranks` names them."""
        return Loss.of(self.shards, survivors, self.length).since(self.first)

    def recover(self, comm: Communicator, *, recompute: Recompute | None = None) -> Loss:
        """Go on over `comm`, which `shrink` made after a loss; returns what was lost. Collective.

        All ranks cut back to the tokens that all of them have. Who is left keeps what it holds, copies become owned
        where their owner is gone, missing copies are made again, and positions of which nothing is left are
        recomputed. If another rank is lost meanwhile, call this again with the next communicator.

        Args:
            comm: The communicator of the ranks that are left.
            recompute: Keys and values of positions, in full, called on every rank alike; needed where no copy is left.

        Raises:
            OperatorError: Positions are lost and `recompute` is None; nothing has changed then.
            RankFailedError, DeadlineError: Another rank was lost.
        """
        recovery = Recovery([self], comm)
        if len(recovery.missing) and recompute is None:
            raise OperatorError(
                f"ShardedKVCache.recover: {recovery.loss}; give recompute= to compute them again (or keep replicas=2)"
            )
        recovery.move()
        if len(self.missing) and recompute is not None:
            positions = torch.tensor(self.missing)
            self.restore(*recompute(positions), self.missing)
        return recovery.loss

    def restore(self, k: torch.Tensor, v: torch.Tensor, positions: Positions) -> None:
        """Put back tokens at positions that are missing; this rank keeps those that it owns or copies.

        `positions` are those of the n tokens in k and v, int64 [n], ascending.

        Raises:
            OperatorError: Shapes, dtype or device do not fit.
        """
        if self._tokens_in(k, v) != len(positions):
            raise OperatorError(
                f"ShardedKVCache.restore: {len(positions)} positions, but k and v hold {k.shape[2]} tokens"
            )
        self._own.check(k, v)
        for part, held in self._parts(self.first, self.length):
            index = np.flatnonzero(np.isin(positions, held))
            part.insert(rows_of(k, index), rows_of(v, index), positions[index])
        self.missing = np.setdiff1d(self.missing, positions)

    def __repr__(self) -> str:
        return (
            f"ShardedKVCache(rank {self.rank} of {self.shards.ranks}: {self.n_local} of {self.length} tokens, "
            f"{self.used_bytes:,} bytes)"
        )

    # For recovery, which does this with the cache of every layer.

    def inventory(self) -> NDArray[np.uint8]:
        """Return what this rank has of every virtual shard, [virtual_shards]: ABSENT, COPY or OWN."""
        inventory = np.full(self.shards.virtual_shards, ABSENT, np.uint8)
        columns = self.shards.table == self.rank
        states = ((OWN, columns[:, 0]), (COPY, columns[:, 1:].any(1)))
        for (state, of_rank), (part, held) in zip(states, self._parts(self.first, self.length), strict=False):
            lacking = self.shards.virtual_shard_of(np.setdiff1d(held, part.known_positions))
            inventory[of_rank] = state
            inventory[lacking] = ABSENT
        return inventory

    def adopt(self, shards: ShardMap, rank: int, first: int, length: int, missing: Positions) -> None:
        """Follow another map as `rank` of it: keep what that gives to this rank, of the positions [first, length)."""
        self._cut(length)
        if length == 0:
            self.reset()
        self.shards, self.rank, self.missing = shards, rank, missing
        if length:
            self.first = first
            parts = self._parts(first, length)
            kept = [self.rows_at(held) for _, held in parts]
            self._copies.clear()
            for (part, _), rows in zip(parts, kept, strict=True):
                part.replace(*rows)

    def rows_at(self, positions: Positions) -> tuple[torch.Tensor, torch.Tensor, Positions]:
        """Return (k, v, positions) of the tokens at these positions that this rank has, owned or copied, ascending."""
        picked = [part.pick(positions) for part in (self._own, self._copies) if not part.empty]
        k, v = torch.cat([rows[0] for rows in picked], 2), torch.cat([rows[1] for rows in picked], 2)
        at = np.concatenate([rows[2] for rows in picked])
        order = on_device(at.argsort(), k.device)
        return k.index_select(2, order), v.index_select(2, order), np.sort(at)

    def _cut(self, length: int) -> None:
        for rows in (self._own, self._copies):
            rows.keep(0, length)
        self.missing = self.missing[self.missing < length]
        self.length = length
        self.first = min(self.first, length)

    def _parts(self, start: int, stop: int) -> list[tuple[TokenRows, Positions]]:
        """The rows owned and the copies, each with the positions in [start, stop) that belong there."""
        parts = [(self._own, self.shards.owned(self.rank, start, stop))]
        if self.shards.replicas > 1:
            parts.append((self._copies, self.shards.copied(self.rank, start, stop)))
        return parts

    def _keep(self, k: torch.Tensor, v: torch.Tensor, positions: Positions | None, tokens: int, *, evict: bool) -> None:
        """Take from k and v, which hold these positions (None: all new ones), what belongs to this rank."""
        if len(self.missing):
            raise OperatorError(
                f"ShardedKVCache: {describe(ranges_of(self.missing))} were lost and are not restored yet; call "
                "recover() or restore() before tokens are added"
            )
        parts = self._parts(self.length, self.length + tokens)
        self._own.check(k, v)
        if evict:
            self.evict()
        for part, owned in parts:
            if len(owned) == 0 and not part.empty:
                continue
            if len(owned) < k.shape[2]:
                rows = owned - self.length if positions is None else np.searchsorted(positions, owned)
                part.append(rows_of(k, rows), rows_of(v, rows), owned)
            else:
                part.append(k, v, owned)
        self.length += tokens

    def _tokens_in(self, k: torch.Tensor, v: torch.Tensor) -> int:
        if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
            raise OperatorError(
                "ShardedKVCache: k and v must be [batch, kv_heads, tokens, d] with the same first three sizes, "
                f"got {list(k.shape)} and {list(v.shape)}"
            )
        if k.requires_grad or v.requires_grad:
            raise OperatorError(
                "ShardedKVCache: k and v require gradients, which a cache cannot keep; use torch.no_grad()"
            )
        return k.shape[2]
