"""The answers that all ranks take through the model together: caches, masks and positions, the same on every rank.

A prompt passes alone, each rank taking its part of it. Its rows then join a batch: caches share their map of
positions, so no key moves. Rows keep the positions in the cache that they have; behind a prompt that is shorter than
the batch lies a gap, which is masked, while the model is told each token's place in its own text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attention.huggingface.call_arguments import CACHE
from attention.huggingface.sharded_cache import ShardedCache

BLOCK_TOKENS = 8
"""Block size of the cache's map, by which prompts are shared out too: the map is then one for prompts of any length."""


@dataclass
class RowBatch:
    """Rows that pass together.

    Attributes:
        cache: Their keys and values.
        mask: 1 where a row has a token, 0 where there is a gap, int64 [rows, slots].
        places: The place of each row's next token in its text, int64 [rows].
    """

    cache: ShardedCache
    mask: torch.Tensor
    places: torch.Tensor

    @property
    def slots(self) -> int:
        """Positions of the cache that are in use."""
        return self.mask.shape[1]

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows."""
        index = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask, self.places = self.mask[index], self.places[index]

    def join(self, other: RowBatch) -> None:
        """Add the rows of another batch."""
        slots = max(self.slots, other.slots)
        masks = [torch.nn.functional.pad(batch.mask, (0, slots - batch.slots)) for batch in (self, other)]
        self.cache.join(other.cache)
        self.mask, self.places = torch.cat(masks), torch.cat([self.places, other.places])


class RowBatches:
    """All batches of a rank; every rank makes the same calls.

    Args:
        model: The model, enabled (`attention.huggingface.enable`).
        empty: The cache that the others are made like.

    Attributes:
        may_join: Whether a prompt's rows can join a batch; a window would count the positions of gaps.
    """

    def __init__(self, model: Any, empty: ShardedCache) -> None:
        self._model, self._empty = model, empty
        self.may_join = all(layer.store.window is None for layer in empty.sharded_layers)
        self.batches: list[RowBatch] = []

    def prefill(self, place: int, ids: list[int], copies: int) -> torch.Tensor:
        """Take a prompt through the model, for some rows that begin with it.

        Args:
            place: The batch that they join; as many as there are for a new one.
            ids: The prompt.
            copies: How many rows.

        Returns:
            Logits of the next token [vocabulary], float32, in host memory.
        """
        tokens = torch.tensor([ids], device=self._model.device)
        cache = self._empty.fresh()
        logits = self._pass(tokens, cache)[0]
        if copies > 1:
            cache.batch_repeat_interleave(copies)
        begun = RowBatch(cache, tokens.new_ones((copies, len(ids))), tokens.new_full((copies,), len(ids)))
        if place == len(self.batches):
            self.batches.append(begun)
        else:
            self.batches[place].join(begun)
        return logits

    def step(self, place: int, kept: list[int], ids: list[int]) -> torch.Tensor:
        """Take the next token of each row that is kept through the model; a batch without rows ends.

        Args:
            place: Which batch.
            kept: The rows that go on, ascending.
            ids: Their tokens.

        Returns:
            Logits of the tokens that follow [rows, vocabulary], float32, in host memory.
        """
        batch = self.batches[place]
        if not kept:
            del self.batches[place]
            return torch.empty(0)
        if len(kept) < len(batch.mask):
            batch.keep(kept)
        tokens = torch.tensor(ids, device=batch.mask.device)[:, None]
        batch.mask = torch.cat([batch.mask, torch.ones_like(tokens)], 1)
        logits = self._pass(tokens, batch.cache, attention_mask=batch.mask, position_ids=batch.places[:, None])
        batch.places = batch.places + 1
        return logits

    def _pass(self, tokens: torch.Tensor, cache: ShardedCache, **more: Any) -> torch.Tensor:
        with torch.no_grad():
            made = self._model(input_ids=tokens, use_cache=True, logits_to_keep=1, **{CACHE: cache}, **more)
        return torch.as_tensor(made.logits[:, -1].float().cpu())
