"""Queries of all ranks' heads to every rank, and the ranks' partials back to the rank of each head."""

from __future__ import annotations

import torch

from attention.arrays import empty_partial
from attention.decode.communicators import prepared_call
from attention.merge.logsumexp import LOGSUMEXP, LSE, OUT
from attention.partial import Partial
from topocomm import Communicator

MOST_TOKENS = 512
"""Tokens of one message. Below it messages have a power of two of tokens, so that few kinds are planned and kept."""


class HeadExchange:
    """The two collectives of a layer whose heads and keys are both spread over the ranks of a communicator.

    Every rank has as many query heads as every other, in the order of the ranks.
    """

    def __init__(self, comm: Communicator) -> None:
        """Exchange over this communicator; nothing is planned yet."""
        self.comm = comm

    def gather(self, q: torch.Tensor) -> torch.Tensor:
        """Return the queries [ranks * heads, tokens, d] of all ranks; collective.

        Args:
            q: This rank's queries [heads, tokens, d], any strides.
        """
        if self.comm.size == 1:
            return q
        heads, tokens, d = q.shape
        result = q.new_empty(self.comm.size * heads, tokens, d)
        for part, padded in message_parts(tokens):
            sent = q.new_zeros(heads, padded, d)
            sent[:, : part.stop - part.start] = q[:, part]
            call = prepared_call(self.comm, "allgather", {"q": sent})
            result[:, part] = call({"q": sent})["q"][:, : part.stop - part.start]
        return result

    def merge(self, partial: Partial) -> Partial:
        """Return the merged partial of this rank's heads, out [heads, tokens, d_v] and lse [heads, tokens]; collective.

        Args:
            partial: Of all ranks' heads over this rank's keys, float32 [ranks * heads, tokens, d_v] and
                [ranks * heads, tokens].
        """
        if self.comm.size == 1:
            return partial
        all_heads, tokens, d_v = partial.out.shape
        heads = all_heads // self.comm.size
        result = empty_partial((heads, tokens, d_v), partial.out.device)
        for part, padded in message_parts(tokens):
            sent = partial
            if padded != tokens:
                sent = Partial(partial.out.new_zeros(all_heads, padded, d_v), partial.lse.new_zeros(all_heads, padded))
                for target, x in zip(sent, partial, strict=True):
                    target[:, : part.stop - part.start] = x[:, part]
            value = sent._asdict()
            rows = (heads,) * self.comm.size
            merged = prepared_call(self.comm, "reduce_scatter", value, LOGSUMEXP, rows=rows)(value)
            for target, name in zip(result, (OUT, LSE), strict=True):
                target[:, part] = merged[name][:, : part.stop - part.start]
        return result


def message_parts(tokens: int) -> list[tuple[slice, int]]:
    """Return the ranges of tokens that one message each takes, and how many tokens the message has."""
    parts = []
    for start in range(0, tokens, MOST_TOKENS):
        stop = min(start + MOST_TOKENS, tokens)
        parts.append((slice(start, stop), 1 << (stop - start - 1).bit_length()))
    return parts
