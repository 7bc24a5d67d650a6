"""Gated linear attention over one rank's tokens: in chunks, by products of matrices, without a loop over tokens.

For log gates g, token s has the weight (q_t e^(g_(s+1) + ... + g_t)) . k_s for a token t >= s. As the product of
q_t e^(sum up to t) and k_s e^(-sum up to s) it would overflow where gates are strong. Here it is built by doubling:
neighbouring blocks of 1, 2, 4, ... tokens meet, the queries of the right one decayed since its start, the keys of the
left one decayed until its end. So every factor is e^(a sum of log gates), at most 1; no sums are subtracted and nothing
is divided: decays that underflow are 0, and gates of 0 (-inf) are exact. Tokens meet earlier ones only, so what a
token holds, NaN too, never reaches an earlier one.

The chunked form is that of Yang et al., "Gated Linear Attention Transformers" (2023), section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

CHUNK = 64
"""Tokens between two states that are kept; a power of two."""
BLOCK_NUMBERS = 1 << 17
"""Numbers of q, k or v that are worked on at once: 512 KiB of float32, so that steps find them in the cache."""
FEW_COLUMNS = 2
"""Up to here a sum over columns is faster than torch's product of many small matrices (measured: 10 times)."""


@dataclass(frozen=True)
class Tokens:
    """A run of tokens, in any of the dtypes taken.

    Attributes:
        q: [batch, heads, n, d].
        k: [batch, heads, n, d].
        v: [batch, heads, n, d_v].
        log_gates: [batch, heads, n, d or 1], natural logarithms, at most 0.
        scale: Factor on q.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_gates: torch.Tensor
    scale: float

    @cached_property
    def chunk(self) -> int:
        """Tokens per chunk: CHUNK, or for shorter runs the power of two that holds them."""
        return min(CHUNK, 1 << max(0, self.q.shape[2] - 1).bit_length())

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """What is worked on at once: its tokens and its chunks."""
        batch, heads, n, d = self.q.shape
        chunk_numbers = max(1, batch * heads * self.chunk * max(d, self.v.shape[3]))
        size = max(1, BLOCK_NUMBERS // chunk_numbers) * self.chunk
        for first in range(0, n, size):
            last = min(first + size, n)
            yield slice(first, last), slice(first // self.chunk, -(-last // self.chunk))

    def chunks(self, x: torch.Tensor, block: slice) -> torch.Tensor:
        """A block of q, k, v or log gates in float32, [batch, heads, chunks, chunk, width]; maybe on x's memory.

        A last chunk is filled up with zeros, which change neither the state nor the tokens before them.
        """
        part = x[:, :, block].float()
        missing = -part.shape[2] % self.chunk
        if missing:
            part = torch.nn.functional.pad(part, (0, 0, 0, missing))
        return torch.unflatten(part, 2, (part.shape[2] // self.chunk, self.chunk))


@dataclass(frozen=True)
class Summary:
    """What a run of tokens does to the state.

    Attributes:
        starts: The state before each chunk if the run starts from 0, float32 [batch, heads, chunks, d, d_v].
        log_decays: Sums of the log gates of each chunk, float32 [batch, heads, chunks, d or 1].
        end: The state after the run if it starts from 0, float32 [batch, heads, d, d_v].
    """

    starts: torch.Tensor
    log_decays: torch.Tensor
    end: torch.Tensor

    @cached_property
    def decay(self) -> torch.Tensor:
        """The product of all gates, float32 [batch, heads, d]."""
        return self.log_decays.sum(2).exp().expand(self.end.shape[:3]).contiguous()

    def end_from(self, before: torch.Tensor) -> torch.Tensor:
        """The state after the run if it starts from `before`."""
        return torch.addcmul(self.end, self.decay[..., None], before)

    @cached_property
    def decays_before(self) -> torch.Tensor:
        """For each chunk the product of all gates before it, float32 [batch, heads, chunks, d or 1]."""
        log_decays = self.log_decays.cumsum(2).roll(1, 2)
        log_decays[:, :, :1] = 0  # nothing comes before the first chunk
        return log_decays.exp()

    def starts_from(self, before: torch.Tensor, places: slice) -> torch.Tensor:
        """The states before some chunks if the run starts from `before`."""
        return torch.addcmul(self.starts[:, :, places], self.decays_before[:, :, places, :, None], before[:, :, None])


def summarise(tokens: Tokens) -> Summary:
    """The first pass, over keys, values and gates."""
    batch, heads, n, d = tokens.k.shape
    count = -(-n // tokens.chunk)
    starts = torch.empty((batch, heads, count, d, tokens.v.shape[3]))
    log_decays = torch.empty((batch, heads, count, tokens.log_gates.shape[3]))
    state = torch.zeros((batch, heads, d, tokens.v.shape[3]))
    for block, places in tokens.blocks():
        k, v, logs = (tokens.chunks(x, block) for x in (tokens.k, tokens.v, tokens.log_gates))
        k = _copy(k)
        for size, _, right in _doubling(logs):
            _halves(k, size)[0].mul_(right.exp())
        log_decays[:, :, places] = logs.sum(3)
        decays, gains = log_decays[:, :, places].exp(), k.mT @ v
        for chunk in range(places.stop - places.start):
            starts[:, :, places.start + chunk] = state
            state = torch.addcmul(gains[:, :, chunk], decays[:, :, chunk, :, None], state)
    return Summary(starts, log_decays, state)


def attend_chunks(tokens: Tokens, summary: Summary, before: torch.Tensor, out: torch.Tensor) -> None:
    """The second pass: write the outputs.

    Args:
        tokens: The run.
        summary: Of the same run.
        before: The state before the run, float32 [batch, heads, d, d_v].
        out: [batch, heads, n, d_v], of any floating dtype.
    """
    for block, places in tokens.blocks():
        q, k, v, logs = (tokens.chunks(x, block) for x in (tokens.q, tokens.k, tokens.v, tokens.log_gates))
        q, k, v = _copy(q).mul_(tokens.scale), _copy(k), v.contiguous()
        result = (q * k).sum(-1, keepdim=True) * v
        q *= logs.exp()
        for size, left, right in _doubling(logs):
            earlier, later = _halves(k, size)[0], _halves(q, size)[1]
            _add_product(_halves(result, size)[1], later @ earlier.mT, _halves(v, size)[0])
            later *= left.exp()
            earlier *= right.exp()
        result += q @ summary.starts_from(before, places)
        out[:, :, block] = result.flatten(2, 3)[:, :, : block.stop - block.start]


def _doubling(logs: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Pairs of neighbouring blocks of 1, 2, 4, ... tokens: their size, and the sums of the log gates of both.

    Args:
        logs: [..., chunk, width].

    Yields:
        size, then the sums over left and over right blocks, [..., pairs, 1, width].
    """
    size = 1
    while logs.shape[-2] > 1:
        left, right = _halves(logs, 1)
        yield size, left, right
        logs = (left + right).squeeze(-2)
        size *= 2


def _halves(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The left and the right block, `size` tokens each, of every pair: views [..., pairs, size, width]."""
    pairs = torch.unflatten(x, -2, (x.shape[-2] // (2 * size), 2, size))
    return pairs.select(-3, 0), pairs.select(-3, 1)


def _add_product(result: torch.Tensor, weights: torch.Tensor, v: torch.Tensor) -> None:
    """Add weights @ v."""
    if weights.shape[-1] > FEW_COLUMNS:
        result += weights @ v
        return
    for column in range(weights.shape[-1]):
        result.addcmul_(weights[..., column : column + 1], v[..., column : column + 1, :])


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A copy without gaps: products of matrices would make one each, and decays are multiplied in place."""
    return x.clone(memory_format=torch.contiguous_format)
