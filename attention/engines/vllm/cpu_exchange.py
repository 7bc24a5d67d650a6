"""Queries of all ranks' heads to every rank, and the ranks' partials back to the rank of each head."""

from __future__ import annotations

import torch

from attention.decode.communicators import prepared_call
from attention.engines.combine import head_combine
from attention.partial import Partial
from topocomm import Communicator

Q = "q"
"""Name of queries in a message."""

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
        parts = message_parts(q.shape[1])
        if len(parts) == 1:
            return self._gathered(q, *parts[0])
        return torch.cat([self._gathered(q, *part) for part in parts], 1)

    def _gathered(self, q: torch.Tensor, part: slice, padded: int) -> torch.Tensor:
        count = part.stop - part.start
        sent = q[:, part].contiguous() if count == padded else q.new_zeros(q.shape[0], padded, q.shape[2])
        if count < padded:
            sent[:, :count] = q[:, part]
        everyone: torch.Tensor = prepared_call(self.comm, "allgather", {Q: sent})({Q: sent})[Q]
        return everyone[:, :count]

    def merge(self, partial: Partial) -> Partial:
        """Return the merged partial of this rank's heads, out [heads, tokens, d_v] and lse [heads, tokens]; collective.

        Args:
            partial: Of all ranks' heads over this rank's keys, float32 [ranks * heads, tokens, d_v] and
                [ranks * heads, tokens].
        """
        if self.comm.size == 1:
            return partial
        out, lse = partial
        merged = out.new_empty(out.shape[0] // self.comm.size, *out.shape[1:])
        by_rows, target = Partial(out.transpose(0, 1), lse.transpose(0, 1)), merged.transpose(0, 1)
        merged_lse = head_combine(self.comm).run(by_rows, "e", None, target, return_lse=True).lse
        return Partial(merged, merged_lse.transpose(0, 1))


def message_parts(tokens: int) -> list[tuple[slice, int]]:
    """Return the ranges of tokens that one message each takes, and how many tokens the message has."""
    parts = []
    for start in range(0, tokens, MOST_TOKENS):
        stop = min(start + MOST_TOKENS, tokens)
        parts.append((slice(start, stop), 1 << (stop - start - 1).bit_length()))
    return parts
