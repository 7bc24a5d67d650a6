"""The tokens behind a cache, from which lost keys and values are computed again."""

from __future__ import annotations

import numpy as np
import torch

from attention.cache.growable_storage import GrowableTensor
from topocomm import Communicator

IDS, PLACES, PRESENT = 0, 1, 2


class TokenRecord:
    """Token ids, the position ids that the model was given with them, and which of them are padding."""

    def __init__(self) -> None:
        self._rows = GrowableTensor("tokens")

    @property
    def length(self) -> int:
        """Tokens recorded: fewer than the cache holds where a model was given embeddings instead of tokens."""
        return self._rows.rows

    @property
    def batch(self) -> int:
        """Entries of the batch; 0 before the first token."""
        return 0 if self._rows.empty else self._rows.view().shape[0]

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
        """Add a token of each entry without an operation of torch, as decode steps do; False: not of that kind."""
        storage, rows = self._rows.storage, self._rows.rows
        if storage is None or self._rows.begin + rows == storage.shape[2] or places is None or mask is None:
            return False
        if mask.shape != (len(ids), rows + 1) or places.shape not in ((1, 1), ids.shape) or len(storage) != len(ids):
            return False
        if storage.device.type != "cpu" or not all(
            x.device.type == "cpu" and not x.dtype.is_floating_point for x in (ids, places, mask)
        ):
            return False
        row = storage.numpy()[:, 0, self._rows.begin + rows]
        row[:, IDS], row[:, PLACES], row[:, PRESENT] = ids.numpy()[:, 0], places.numpy()[:, 0], mask.numpy()[:, rows]
        self._rows.rows += 1
        return True

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        self._rows.rows = min(self.length, length)
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
        self._rows.clear()

    def spread(self, comm: Communicator, root: int, batch: int, length: int, device: torch.device) -> None:
        """Take over the record of rank `root`, of this batch and length, on a device; collective."""
        record = np.zeros((batch, 1, length, 3), np.int64)
        if comm.rank == root:
            record = self._rows.view().cpu().contiguous().numpy()
        self._rows.replace(torch.from_numpy(comm.broadcast(record, root=root)).to(device))
