"""The tokens behind a cache: what has to be known to compute keys and values again."""

from __future__ import annotations

import torch

from attention.growing import Growing
from topocomm import Communicator

IDS, PLACES = 0, 1


class TokenRecord:
    """Token ids, the position ids that the model was given with them, and which of them are padding.

    Attributes:
        length: Tokens recorded. Fewer than the cache holds where a model was given embeddings instead of tokens.
    """

    def __init__(self) -> None:
        self._rows = Growing("tokens")
        self._mask: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens recorded."""
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
        if self._mask is None:
            return torch.ones_like(self.ids)
        return self._mask[:, : self.length].long()

    def add(self, start: int, ids: torch.Tensor | None, places: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Record the tokens that a forward pass begins with, at the positions from `start` on.

        Args:
            start: Tokens that the cache holds; later ones, of a pass that was undone, are forgotten.
            ids: Token ids [batch, n]; None leaves a gap, from which on nothing is known.
            places: Position ids [batch or 1, n]; None: the positions.
            mask: [batch, start + n], or None where nothing is padding.
        """
        self.truncate(start)
        if ids is None or self.length < start or (places is not None and places.ndim != 2):
            return
        if places is None:
            places = torch.arange(start, start + ids.shape[1])[None]
        rows = torch.stack([ids.long(), places.long().expand_as(ids)], -1)[:, None]
        self._rows.append(rows)
        self._mask = mask if mask is not None and mask.ndim == 2 else None

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        self._rows.rows = min(self.length, length)
        if length == 0:
            self.clear()

    def select_batch(self, index: torch.Tensor) -> None:
        """Replace the batch by its entries `index`."""
        self._rows.select_batch(index)
        if self._mask is not None:
            self._mask = self._mask.index_select(0, index)

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._mask = None

    def spread(self, comm: Communicator, root: int, batch: int, length: int) -> None:
        """Take over the record of rank `root`, which has this batch and length; collective."""
        told = torch.zeros((3, batch, length), dtype=torch.int64)
        if comm.rank == root:
            told = torch.stack([self.ids, self.places, self.mask])
        ids, places, mask = comm.broadcast(told, root=root)
        self.clear()
        self.add(0, ids, places, mask)
