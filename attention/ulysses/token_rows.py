"""Several tensors of the same tokens as rows of one table, a row a token: what an all-to-all sends of them.

Rows that come from several ranks then lie one after the other as those of one sequence, and kernels read heads where
they arrived, by strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

UNIT = torch.int64
"""Dtype of a table: items of all dtypes fit in its words."""
ALIGNMENT_BYTES = 16
"""Of the parts of a row, which kernels load in such pieces; rows are a multiple of it."""
WORDS_PER_PIECE = ALIGNMENT_BYTES // UNIT.itemsize


@dataclass(frozen=True)
class Part:
    """One tensor in a row: [batch, heads, tokens, dim] of a dtype."""

    name: str
    heads: int
    dim: int
    dtype: torch.dtype


@dataclass(frozen=True)
class TokenRows:
    """How rows are laid out: parts one after the other, each [batch, heads, dim] of its token."""

    batch: int
    parts: tuple[Part, ...]

    @property
    def words(self) -> int:
        """Words of a row."""
        return sum(map(self._words_of, self.parts))

    @property
    def pieces(self) -> int:
        """Pieces of `ALIGNMENT_BYTES` in a row."""
        return self.words // WORDS_PER_PIECE

    def views(self, table: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parts of a table [tokens, words] as tensors [batch, heads, tokens, dim] on its memory."""
        found, start = {}, 0
        for part in self.parts:
            words, shape = self._words_of(part), (self.batch, part.heads, part.dim)
            if prod(shape) and len(table):
                items = table[:, start : start + words].view(part.dtype)[:, : prod(shape)]
                found[part.name] = items.view(len(table), *shape).permute(1, 2, 0, 3)
            else:
                empty = (self.batch, part.heads, len(table), part.dim)
                found[part.name] = table.new_empty(empty, dtype=part.dtype)
            start += words
        return found

    def write(self, table: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fill a table [tokens, words] with tensors [batch, heads, tokens, dim], in the dtypes of the parts."""
        for name, view in self.views(table).items():
            view.copy_(tensors[name])

    def _words_of(self, part: Part) -> int:
        size_bytes = self.batch * part.heads * part.dim * part.dtype.itemsize
        return -(-size_bytes // ALIGNMENT_BYTES) * WORDS_PER_PIECE
