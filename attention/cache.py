"""One rank's part of a key-value cache that is sharded over ranks by position."""

from __future__ import annotations

import torch

from attention.shards import ShardMap


class ShardedKVCache:
    """The keys and values of the positions that one rank owns, for one attention layer.

    Positions count from 0 over the whole sequence; `shards` says who owns which. New tokens are kept by their
    owner and never move. Storage grows by doubling, so n appended tokens cost O(n) copies in all.

    Attributes:
        shards: The owners of all positions.
        rank: The rank whose part this is.
        length: Tokens of the whole sequence so far, on all ranks together.
    """

    def __init__(self, shards: ShardMap, rank: int) -> None:
        shards.virtual_range(rank)  # refuses a rank that does not exist
        self.shards = shards
        self.rank = rank
        self.length = 0
        self._k = _Growing("k")
        self._v = _Growing("v")
        self._positions = _Growing("positions")

    @property
    def k(self) -> torch.Tensor:
        """The owned keys [batch, kv_heads, n_local, d]: a view, valid until the next call that changes the cache."""
        return self._k.view()

    @property
    def v(self) -> torch.Tensor:
        """The owned values [batch, kv_heads, n_local, d_v]: a view like `k`."""
        return self._v.view()

    @property
    def positions(self) -> torch.Tensor:
        """The position of every owned token [n_local], int64, ascending: a view like `k`."""
        return self._positions.view()[0, 0, :, 0]

    @property
    def n_local(self) -> int:
        """Number of owned tokens."""
        return self._k.rows

    @property
    def used_bytes(self) -> int:
        """Bytes of the owned keys and values."""
        return self._k.used_bytes + self._v.used_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the storage for keys and values, at most about twice `used_bytes`."""
        return self._k.allocated_bytes + self._v.allocated_bytes

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add the next n tokens of the sequence, given in full; this rank keeps those that it owns.

        Args:
            k: Keys [batch, kv_heads, n, d]; the same on every rank.
            v: Values [batch, kv_heads, n, d_v].

        Raises:
            ValueError: Shapes, dtype or device do not fit each other or the tokens before, the tokens lie beyond
                the capacity, or gradients are wanted.
        """
        tokens = self._tokens_in(k, v)
        mine = self.shards.owned(self.rank, self.length, self.length + tokens)
        if len(mine) < tokens:
            index = torch.tensor(mine - self.length, device=k.device)
            k, v = k.index_select(2, index), v.index_select(2, index)
        self.extend(k, v, tokens)

    def extend(self, k: torch.Tensor, v: torch.Tensor, tokens: int) -> None:
        """Add the next `tokens` tokens of the sequence, of which `k` and `v` hold the owned ones only.

        Args:
            k: Keys [batch, kv_heads, n_owned, d] of the owned positions in [length, length + tokens), ascending.
            v: Values [batch, kv_heads, n_owned, d_v].
            tokens: Tokens by which the whole sequence grows; the same on every rank.

        Raises:
            ValueError: As for `append`, or `k` does not hold exactly the owned tokens.
        """
        mine = self.shards.owned(self.rank, self.length, self.length + tokens)
        given = self._tokens_in(k, v)
        if given != len(mine):
            raise ValueError(
                f"ShardedKVCache: rank {self.rank} owns {len(mine)} of the tokens {self.length} to "
                f"{self.length + tokens - 1}, but k and v hold {given}"
            )
        self._k.check(k)
        self._v.check(v)
        self._k.append(k)
        self._v.append(v)
        self._positions.append(torch.tensor(mine, device=k.device)[None, None, :, None])
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on.

        Raises:
            ValueError: `length` is negative or more than the tokens there are.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"ShardedKVCache.truncate: length must be 0 to {self.length}, got {length}")
        if self.length:
            kept = int(torch.searchsorted(self.positions, length))
            for part in (self._k, self._v, self._positions):
                part.rows = kept
        self.length = length

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its rows `index` [new_batch], int64 (beam search); needs no communication."""
        self._k.select_batch(index)
        self._v.select_batch(index)

    def reset(self) -> None:
        """Forget everything, storage, shape and dtype included."""
        self.length = 0
        for part in (self._k, self._v, self._positions):
            part.clear()

    def __repr__(self) -> str:
        return (
            f"ShardedKVCache(rank {self.rank} of {self.shards.ranks}: {self.n_local} of {self.length} tokens, "
            f"{self.used_bytes:,} bytes)"
        )

    def _tokens_in(self, k: torch.Tensor, v: torch.Tensor) -> int:
        if k.ndim != 4 or v.ndim != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                "ShardedKVCache: k and v must be [batch, kv_heads, tokens, d] with the same first three sizes, "
                f"got {list(k.shape)} and {list(v.shape)}"
            )
        if k.requires_grad or v.requires_grad:
            raise ValueError(
                "ShardedKVCache: k and v require gradients, which a cache cannot keep; use torch.no_grad()"
            )
        return k.shape[2]


class _Growing:
    """A tensor [batch, heads, rows, d] that grows along its rows; the storage doubles when it is full."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self._storage: torch.Tensor | None = None

    def view(self) -> torch.Tensor:
        if self._storage is None:
            raise ValueError(f"ShardedKVCache.{self.name}: the cache is empty, so its shape is not known; append first")
        return self._storage.narrow(2, 0, self.rows)

    @property
    def used_bytes(self) -> int:
        return 0 if self._storage is None else self.view().numel() * self._storage.element_size()

    @property
    def allocated_bytes(self) -> int:
        return 0 if self._storage is None else self._storage.numel() * self._storage.element_size()

    def check(self, part: torch.Tensor) -> None:
        """Refuse a part that does not continue what is stored."""
        if self._storage is None:
            return
        want, got = ((t.shape[0], t.shape[1], t.shape[3], t.dtype, t.device) for t in (self._storage, part))
        if want != got:
            raise ValueError(
                f"ShardedKVCache: {self.name} must continue [batch, kv_heads, d], dtype and device of the tokens "
                f"before, {list(want)}; got {list(got)}"
            )

    def append(self, part: torch.Tensor) -> None:
        batch, heads, new, width = part.shape
        if self._storage is None:
            self._storage = part.new_empty((batch, heads, new, width))
        elif self.rows + new > self._storage.shape[2]:
            room = max(self.rows + new, 2 * self._storage.shape[2])
            grown = part.new_empty((batch, heads, room, width))
            grown.narrow(2, 0, self.rows).copy_(self.view())
            self._storage = grown
        self._storage.narrow(2, self.rows, new).copy_(part)
        self.rows += new

    def select_batch(self, index: torch.Tensor) -> None:
        if self._storage is not None:
            self._storage = self._storage.index_select(0, index.to(self._storage.device))

    def clear(self) -> None:
        self.rows = 0
        self._storage = None
