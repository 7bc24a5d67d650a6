"""A language model of the shape of SmolLM2-135M with random weights, plain torch, for generation on one card.

30 layers, 576 wide, 9 query heads and 3 key heads x 64, 1,536 between (SwiGLU), 49,152 tokens, rotary positions with
base 100,000, head tied to the embedding: the config.json of HuggingFaceTB/SmolLM2-135M.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from card import Card, Run
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from attention import Spec
from attention.gpu import local_partial
from attention.gpu.decode.decode import decode_partial
from attention.visibility import Masking

HIDDEN, BETWEEN, HEADS, KV_HEADS, DIM = 576, 1536, 9, 3, 64
BASE, EPSILON = 100_000.0, 1e-5
SHARPNESS = 2.0
"""Of the random weights of queries and keys: scores have a standard deviation of its square."""
CAUSAL = Spec(causal=True)
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], Any]
"""attend(q, k, v, lengths): of the last queries over the keys; lengths None: all keys are there."""


def by_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None) -> Any:
    """Attend by torch's SDPA."""
    if lengths is not None:
        mask = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
        return scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None], enable_gqa=True)
    return scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def by_ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor | None) -> Any:
    """The kernels of `attention.gpu`, chosen as `local_attention` does it."""
    if lengths is not None:
        return decode_partial(q, k, v, kv_lengths=lengths).out.to(q.dtype)
    return local_partial("local_attention", (q, k, v), CAUSAL, Masking()).out.to(q.dtype)


class Model:
    """The weights, and a cache for so many tokens of a batch.

    Args:
        card: Where.
        dtype: Of weights and cache.
        batch: Sequences.
        most: Tokens of a sequence.
    """

    def __init__(self, card: Card, dtype: torch.dtype, batch: int, most: int) -> None:
        self._random = torch.Generator("cpu").manual_seed(0)
        self._card, self._dtype = card, dtype
        # small, as models begin: else the tied head finds the last token again, whatever attention does
        self._embedding = self._weight(card.sizes.vocabulary, HIDDEN, scale=0.02)
        sizes = {
            "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
            "o": (HIDDEN, HEADS * DIM),
            "gate_up": (2 * BETWEEN, HIDDEN),
            "down": (HIDDEN, BETWEEN),
        }
        self._layers = [{name: self._weight(*size) for name, size in sizes.items()} for _ in range(card.sizes.layers)]
        for layer in self._layers:  # sharp attention: of even weights all sequences become alike, and repeat one token
            layer["qkv"][: (HEADS + KV_HEADS) * DIM] *= SHARPNESS
        shape = (card.sizes.layers, 2, batch, KV_HEADS, most, DIM)
        self._cache = torch.zeros(shape, dtype=dtype, device=card.place)
        angles = torch.arange(most)[:, None] * BASE ** (-torch.arange(0, DIM, 2) / DIM)
        self._turns = torch.stack([angles.cos(), angles.sin()]).to(card.place)

    def _weight(self, rows: int, columns: int, scale: float | None = None) -> torch.Tensor:
        made = torch.randn(rows, columns, generator=self._random) * (columns**-0.5 if scale is None else scale)
        return made.to(self._card.place, self._dtype)

    def logits(self, tokens: torch.Tensor, at: torch.Tensor, attend: Attend, *, whole: bool) -> torch.Tensor:
        """Of the last token of each sequence, [batch, vocabulary].

        Args:
            tokens: [batch, count].
            at: Their positions, int64 [count], on the card.
            attend: Which attention.
            whole: Whether the cache is read as far as its memory goes, with lengths, as a graph does it; else as far as
                the tokens go, which begin the sequence or are at `self.filled`.
        """
        x = embedding(tokens, self._embedding)
        turns = self._turns[:, at]
        lengths = (at[-1:] + 1).expand(len(tokens)).contiguous() if whole else None
        for layer, (keys, values) in zip(self._layers, self._cache, strict=True):
            qkv = linear(_normal(x), layer["qkv"]).view(*tokens.shape, -1, DIM).transpose(1, 2)
            q, k, v = torch.split(qkv, [HEADS, KV_HEADS, KV_HEADS], 1)
            q, k = _rotated(q, turns), _rotated(k, turns)
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            seen = slice(None) if whole else slice(0, self.filled + tokens.shape[1])
            out = attend(q, keys[:, :, seen], values[:, :, seen], lengths)
            x = x + linear(out.transpose(1, 2).flatten(2), layer["o"])
            gate, up = linear(_normal(x), layer["gate_up"]).chunk(2, -1)
            x = x + linear(silu(gate) * up, layer["down"])
        return linear(_normal(x[:, -1]), self._embedding)

    filled = 0
    """Number of tokens in the cache."""

    def prefill(self, prompt: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Start a new generation; return the first token of each sequence, [batch, 1]."""
        self.filled = 0
        at = torch.arange(prompt.shape[1], device=prompt.device)
        found = self.logits(prompt, at, attend, whole=False).argmax(-1, keepdim=True)
        self.filled = prompt.shape[1]
        return found

    def generate(self, prompt: torch.Tensor, count: int, attend: Attend) -> torch.Tensor:
        """Generate greedily, [batch, count]."""
        made = [self.prefill(prompt, attend)]
        for _ in range(count - 1):
            at = torch.tensor([self.filled]).to(prompt.device, non_blocking=True)
            made.append(self.logits(made[-1], at, attend, whole=False).argmax(-1, keepdim=True))
            self.filled += 1
        return torch.cat(made, 1)

    def in_graph(self, prompt: torch.Tensor, count: int, attend: Attend) -> Callable[[], torch.Tensor]:
        """The same with a CUDA graph of one step; what generates anew each time."""
        token = self.prefill(prompt, attend).clone()
        at = torch.tensor([prompt.shape[1]], device=prompt.device)

        def step() -> None:
            token.copy_(self.logits(token, at, attend, whole=True).argmax(-1, keepdim=True))
            at.add_(1)  # a tensor of ones would be gone, and its memory another's, when the graph is replayed

        replay: Run = self._card.graph(step)

        def generate() -> torch.Tensor:
            made = [self.prefill(prompt, attend)]
            token.copy_(made[0])
            at.fill_(prompt.shape[1])
            for _ in range(count - 1):
                replay()
                made.append(token.clone())
            return torch.cat(made, 1)

        return generate


def _normal(x: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, (HIDDEN,), eps=EPSILON)


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    cosine, sine = turns
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)
