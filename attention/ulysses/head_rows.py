"""What the rows of an all-to-all hold for each place of a group: its heads of q, k and v, or of out and lse."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attention.arrays import Inputs
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.token_rows import Part, TokenRows


@dataclass(frozen=True)
class HeadRows:
    """Shapes of one call, the same on every rank but for the device.

    Attributes:
        grid: Who has which heads.
        batch: Sequences.
        d, d_v: Width of a query's and a key's head, and of a value's.
        of_q, of_kv: Dtypes.
        has_lse: Whether lse is returned.
        device: Of all tensors.
    """

    grid: HeadGrid
    batch: int
    d: int
    d_v: int
    of_q: torch.dtype
    of_kv: torch.dtype
    has_lse: bool
    device: torch.device

    @classmethod
    def of(cls, grid: HeadGrid, inputs: Inputs, *, has_lse: bool) -> HeadRows:
        """Return those of a rank's inputs."""
        q, v = inputs.q, inputs.v
        return cls(grid, len(q), q.shape[3], v.shape[3], q.dtype, v.dtype, has_lse, q.device)

    @property
    def of_kv_sums(self) -> torch.dtype:
        """Dtype in which gradients of k and v are sent: sums over ranks are rounded once."""
        return torch.float32 if self.grid.has_shared_heads else self.of_kv

    def inputs(self, of_kv: torch.dtype | None = None) -> list[TokenRows]:
        """Return the rows of q, k and v for every place, or of their gradients: those of k and v of a dtype given."""
        of_kv = of_kv or self.of_kv
        return self._rows({"q": self.of_q, "k": of_kv, "v": of_kv})

    def results(self) -> list[TokenRows]:
        """Return the rows of out and, if it is returned, lse, of every place, or of their gradients."""
        return self._rows({"out": self.of_q} | ({"lse": torch.float32} if self.has_lse else {}))

    def _rows(self, dtypes: dict[str, torch.dtype]) -> list[TokenRows]:
        found = []
        for place in range(self.grid.width):
            heads = {name: self.heads(name, place) for name in dtypes}
            parts = (Part(name, x.stop - x.start, self._dim(name), dtypes[name]) for name, x in heads.items())
            found.append(TokenRows(self.batch, tuple(parts)))
        return found

    def heads(self, name: str, place: int) -> slice:
        """Return the heads of a place in the tensor of a part's name."""
        return slice(*(self.grid.kv_heads_of(place) if name in ("k", "v") else self.grid.heads_of(place)))

    def empty(self, name: str, tokens: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor [batch, all heads, tokens, dim] of a part's name."""
        heads = self.grid.kv_heads if name in ("k", "v") else self.grid.heads
        return torch.empty((self.batch, heads, tokens, self._dim(name)), dtype=dtype, device=self.device)

    def _dim(self, name: str) -> int:
        return {"q": self.d, "k": self.d, "v": self.d_v, "out": self.d_v, "lse": 1}[name]
