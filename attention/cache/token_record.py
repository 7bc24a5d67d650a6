"""The tokens behind a cache, from which lost keys and values are computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attention.cache.growable_storage import GrowableTensor
from topocomm import Communicator

IDS, PLACES, PRESENT = 0, 1, 2
MOST_NEW = 1024
"""Decode steps whose tokens are noted before they are put into one tensor; that takes a microsecond for each."""


class TokenRecord:
    """Token ids, the position ids that the model was given with them, and which of them are padding."""

    def __init__(self) -> None:
        self._stored = GrowableTensor("tokens")
        self._new: list[tuple[list[Any], list[Any] | None, list[Any] | None]] = []
        """Tokens of decode steps after the stored ones, [batch][1], their positions, and by entry which are padding."""

    @property
    def _rows(self) -> GrowableTensor:
        """All tokens: int64 [batch, 1, length, 3]."""
        if self._new:
            new, first = self._new, self._stored.rows
            self._new = []
            batch = len(new[0][0])
            rows = np.empty((batch, 1, len(new), 3), np.int64)
            for at, (ids, places, present) in enumerate(new):
                row = rows[:, 0, at]
                row[:, IDS : IDS + 1] = ids
                row[:, PLACES : PLACES + 1] = first + at if places is None else places
                row[:, PRESENT] = 1 if present is None else present
            self._stored.append(torch.from_numpy(rows))
        return self._stored

    @property
    def length(self) -> int:
        """Tokens recorded: fewer than the cache holds where a model was given embeddings instead of tokens."""
        return self._stored.rows + len(self._new)

    @property
    def batch(self) -> int:
        """Entries of the batch; 0 before the first token."""
        return 0 if self._stored.empty else self._rows.view().shape[0]

    @property
    def ids(self) -> torch.Tensor:
        """Token ids [batch, length], int64."""
        return self._rows.view()[:, 0, :, IDS]

    @property
    def places(self) -> torch.Tensor:
        """Position ids [batch, length], int64."""
        return self._rows.view()[:, 0, :, PLACES]

    @property
    def mask(self) -> torch.Tensor:
        """1 where a token is, 0 where padding is, [batch, length], int64."""
        return self._rows.view()[:, 0, :, PRESENT]

    def add(self, start: int, ids: torch.Tensor | None, places: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Record the tokens that a forward pass begins with, at the positions from `start` on.

        Args:
            start: Tokens that the cache holds; later ones, of a pass that was undone, are forgotten.
            ids: Token ids [batch, n]; None leaves a gap, from which on nothing is known.
            places: Position ids [batch or 1, n]; None: the positions.
            mask: [batch, start + n], 0 where padding is; None: nowhere.
        """
        self.truncate(start)
        if ids is None or self.length < start:
            return
        count = ids.shape[1]
        if count == 1 and self._add_one(ids, places, mask):
            return
        if places is None:
            places = torch.arange(start, start + count, device=ids.device)[None]
        if places.shape not in ((1, count), ids.shape):
            return
        fits = mask is not None and mask.shape == (len(ids), start + count)  # the mask function refuses others
        present = mask[:, start:] if mask is not None and fits else torch.ones_like(ids)
        rows = [x.to(ids.device).long().expand_as(ids) for x in (ids, places, present)]
        self._rows.append(torch.stack(rows, -1)[:, None])

    def _add_one(self, ids: torch.Tensor, places: torch.Tensor | None, mask: torch.Tensor | None) -> bool:
        """Note a token of each entry as numbers, as decode steps do; False: not of that kind.

        No tensor is kept, which its owner may write to, and none is made, which takes longer than all else here. There
        may be no mask: transformers gives none where no token is padding.
        """
        batch = len(self._new[0][0]) if self._new else self._stored_on_cpu()
        if ids.shape[0] != batch or not ids.is_cpu or (places is not None and places.shape not in ((1, 1), (batch, 1))):
            return False
        if mask is not None and mask.shape != (batch, self.length + 1):
            return False
        new = ids.tolist(), None if places is None else places.tolist(), None if mask is None else mask[:, -1].tolist()
        self._new.append(new)
        if len(self._new) == MOST_NEW:
            _ = self._rows
        return True

    def _stored_on_cpu(self) -> int:
        """Entries of the batch that are stored; 0: none, or on a GPU."""
        storage = self._stored.storage
        return storage.shape[0] if storage is not None and storage.is_cpu else 0

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        undone = self.length - length
        if 0 < undone <= len(self._new):
            del self._new[-undone:]
        elif undone > 0:
            self._rows.rows = length
        if length == 0:
            self.clear()

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its entries `index`."""
        self._rows.select_batch(index)

    def join(self, other: TokenRecord) -> None:
        """Add the batch entries of another record; behind the end of the shorter one is padding."""
        self._rows.join(other._rows)

    def clear(self) -> None:
        """Forget everything."""
        self._stored.clear()
        self._new = []

    def spread(self, comm: Communicator, root: int, batch: int, length: int, device: torch.device) -> None:
        """Take over the record of rank `root`, of this batch and length, on a device; collective."""
        record = np.zeros((batch, 1, length, 3), np.int64)
        if comm.rank == root:
            record = self._rows.view().cpu().contiguous().numpy()
        self._rows.replace(torch.from_numpy(comm.broadcast(record, root=root)).to(device))
