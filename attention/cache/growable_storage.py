"""Rows of tensors that grow: the storage of keys, values and their positions."""

from __future__ import annotations

import numpy as np
import torch

from attention.cache.shards import Positions
from topocomm import OperatorError

SPARE = 4
"""Shrink the storage when its capacity exceeds this multiple of the live rows."""


def on_device(rows: Positions, device: torch.device) -> torch.Tensor:
    """Whole numbers as an int64 tensor on a device; nothing is copied where they are consecutive, or waited for."""
    count = len(rows)
    if count and rows[-1] - rows[0] == count - 1 and (count == 1 or (np.diff(rows) == 1).all()):
        return torch.arange(int(rows[0]), int(rows[0]) + count, device=device)
    return torch.from_numpy(np.array(rows, np.int64)).to(device, non_blocking=True)


def rows_of(x: torch.Tensor, rows: Positions) -> torch.Tensor:
    """These rows of x [batch, heads, rows, d], ascending: a view where they are consecutive."""
    count = len(rows)
    if count == 0 or rows[-1] - rows[0] == count - 1:
        return x.narrow(2, int(rows[0]) if count else 0, count)
    return x.index_select(2, on_device(rows, x.device))


class GrowableTensor:
    """A tensor [batch, heads, rows, d] that grows along its rows; the storage doubles when it is full.

    Rows that are dropped from the front leave room there, which is used again when it is as long as the others
    together: these then move there. So each row moves once for each that is dropped, at most.

    Attributes:
        begin: Where in the storage the first of them lies.
        storage: [batch, heads, capacity, d]; None: nothing was ever appended.
        count: `rows`, int64 [1], where compiled steps count them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = np.zeros(1, np.int64)
        self.begin = 0
        self.storage: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows in use."""
        return self.count.item()

    @rows.setter
    def rows(self, rows: int) -> None:
        self.count[0] = rows

    def view(self) -> torch.Tensor:
        """Return the rows so far, valid until the next change."""
        if self.storage is None:
            raise OperatorError(
                f"ShardedKVCache.{self.name}: the cache is empty, so its shape is not known; append first"
            )
        return self.storage.narrow(2, self.begin, self.rows)

    @property
    def empty(self) -> bool:
        """Whether nothing was ever appended, not even no rows."""
        return self.storage is None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, over the whole batch."""
        if self.storage is None:
            return 0
        batch, heads, _, width = self.storage.shape
        return batch * heads * width * self.storage.element_size()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the storage."""
        return 0 if self.storage is None else self.storage.numel() * self.storage.element_size()

    def check(self, part: torch.Tensor) -> None:
        """Raise an OperatorError if a part does not continue the stored rows."""
        if self.storage is None:
            return
        want, got = ((t.shape[0], t.shape[1], t.shape[3], t.dtype, t.device) for t in (self.storage, part))
        if want != got:
            raise OperatorError(
                f"ShardedKVCache: {self.name} must continue [batch, kv_heads, d], dtype and device of the tokens "
                f"before, {list(want)}; got {list(got)}"
            )

    def append(self, part: torch.Tensor) -> None:
        """Add rows at the end."""
        batch, heads, new, width = part.shape
        rows = self.rows + new
        if self.storage is None:
            self.storage = part.new_empty((batch, heads, new, width))
        elif self.begin + rows > self.storage.shape[2]:
            moved = self.storage
            if self.begin < self.rows or rows > self.storage.shape[2]:
                moved = part.new_empty((batch, heads, max(rows, 2 * self.rows), width))
            moved.narrow(2, 0, self.rows).copy_(self.view())
            self.storage, self.begin = moved, 0
        self.storage.narrow(2, self.begin + self.rows, new).copy_(part)
        self.rows = rows

    def keep(self, first: int, stop: int) -> None:
        """Forget all rows but those from `first` to `stop`; no row moves, but shrinks large storage."""
        self.begin, self.rows = self.begin + first, stop - first
        if self.storage is not None and self.storage.shape[2] > SPARE * max(self.rows, 1):
            self.storage, self.begin = self.view().clone(), 0

    def replace(self, rows: torch.Tensor) -> None:
        """Hold these rows, in their own memory, instead."""
        self.storage, self.begin = rows, 0
        self.rows = rows.shape[2]

    def join(self, other: GrowableTensor) -> None:
        """Add the batch entries of `other`; the one with fewer rows gets zeros behind them."""
        if self.storage is not None:
            mine, theirs = self.view(), other.view()
            batch, rows = len(mine), max(self.rows, other.rows)
            joined = mine.new_zeros((batch + len(theirs), mine.shape[1], rows, mine.shape[3]))
            joined[:batch, :, : self.rows] = mine
            joined[batch:, :, : other.rows] = theirs
            self.replace(joined)

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its entries `index`."""
        if self.storage is not None:
            self.storage = self.storage.index_select(0, index.to(self.storage.device))

    def clear(self) -> None:
        """Forget rows, shape and dtype."""
        self.rows = self.begin = 0
        self.storage = None


class TokenRows:
    """Keys and values of some positions, ascending.

    Positions are in host memory too, so that nothing that is decided by them waits for a GPU.
    """

    def __init__(self) -> None:
        self.k = GrowableTensor("k")
        self.v = GrowableTensor("v")
        self._positions = GrowableTensor("positions")
        """On a GPU, of the first rows."""
        self._known = np.empty(0, np.int64)
        """Of which the first `k.rows` are used."""

    @property
    def empty(self) -> bool:
        """Whether nothing was ever appended, not even no rows."""
        return self.k.empty

    @property
    def positions(self) -> torch.Tensor:
        """int64 [rows], a view; what is new is brought to a GPU when it is asked for."""
        device = self.k.view().device
        if device.type == "cpu":
            return torch.from_numpy(self.known_positions)
        if self._positions.empty or self._positions.rows < self.k.rows:
            new = self.known_positions[self._positions.rows :]
            self._positions.append(on_device(new, device)[None, None, :, None])
        return self._positions.view()[0, 0, :, 0]

    @property
    def known_positions(self) -> Positions:
        """The same in host memory, also while nothing was ever appended: a view."""
        return self._known[: self.k.rows]

    @property
    def prepared_positions(self) -> Positions:
        """The same, and behind them those of `prepare` and any other numbers."""
        return self._known

    @property
    def used_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.k.rows * (self.k.row_bytes + self.v.row_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of their storage."""
        return self.k.allocated_bytes + self.v.allocated_bytes

    def check(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Raise an OperatorError if rows do not continue the stored ones."""
        self.k.check(k)
        self.v.check(v)

    def append(self, k: torch.Tensor, v: torch.Tensor, positions: Positions) -> None:
        """Add rows at the end."""
        before, rows = self.k.rows, self.k.rows + len(positions)
        if rows > len(self._known):
            self._known = np.concatenate([self._known[:before], np.empty(rows, np.int64)])  # doubled
        self._known[before:rows] = positions
        self.k.append(k)
        self.v.append(v)

    def prepare(self, positions: Positions) -> int:
        """Note the next positions; returns for how many of them there are rows, which the caller fills and counts."""
        rows, storage = self.k.rows, self.k.storage
        room = 0 if storage is None else min(storage.shape[2] - self.k.begin, len(self._known)) - rows
        positions = positions[: max(room, 0)]
        self._known[rows : rows + len(positions)] = positions
        return len(positions)

    def insert(self, k: torch.Tensor, v: torch.Tensor, positions: Positions) -> None:
        """Add rows in order of position; a position that is stored keeps its row."""
        new = np.flatnonzero(~np.isin(positions, self.known_positions))
        if self.empty or not len(new):
            return self.append(k, v, positions) if self.empty else None
        at = np.concatenate([self.known_positions, positions[new]])
        order = on_device(at.argsort(), k.device)
        k, v = (torch.cat([old.view(), rows_of(x, new)], 2) for old, x in ((self.k, k), (self.v, v)))
        return self.replace(k.index_select(2, order), v.index_select(2, order), np.sort(at))

    def pick(self, wanted: Positions) -> tuple[torch.Tensor, torch.Tensor, Positions]:
        """Copies of (k, v) and the positions of the rows whose positions are among `wanted`."""
        matches = np.isin(self.known_positions, wanted)
        index = on_device(np.flatnonzero(matches), self.k.view().device)
        k, v = (part.view().index_select(2, index) for part in (self.k, self.v))
        return k, v, self.known_positions[matches]

    def replace(self, k: torch.Tensor, v: torch.Tensor, positions: Positions) -> None:
        """Hold these rows, ascending, instead, in their own memory."""
        self.k.replace(k)
        self.v.replace(v)
        self._known = np.array(positions, np.int64)
        self._positions.clear()

    def keep(self, first: int, stop: int) -> None:
        """Forget the tokens at positions before `first`, and from `stop` on."""
        begin, end = self.known_positions.searchsorted((first, stop)).tolist()
        if (begin, end) != (0, self.k.rows):
            self._known = self._known[begin:]
            for part in (self.k, self.v):
                part.keep(begin, end)
            there = self._positions.rows
            self._positions.keep(min(begin, there), min(end, there))

    def join(self, other: TokenRows) -> None:
        """Add the batch entries of `other`, whose positions begin with these or are the first of them."""
        if other.k.rows > self.k.rows:
            self._known = other.known_positions.copy()
            self._positions.clear()
        self.k.join(other.k)
        self.v.join(other.v)

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its entries `index`."""
        self.k.select_batch(index)
        self.v.select_batch(index)

    def clear(self) -> None:
        """Forget everything."""
        for part in (self.k, self.v, self._positions):
            part.clear()
