"""Whether the ring, all-to-alls of heads or one all-gather serve a prompt's attention: by what each is to cost.

The ring and the all-gather bring keys and values to all ranks; all-to-alls, with rings or without, give each rank all
tokens of some heads, at the cost of `ulysses.sequence_cost`, which assumes the same of the machine. Of the first two
both move the same bytes. The all-gather is waited for; the ring moves while a rank attends to what it has, so it hides
the smaller of the two, and pays for each hop with a kernel more and a merge of partials. The time of the all-gather is
the planner's for this machine. How fast a rank computes and its memory is, is assumed on every machine; it matters near
the point where both ways cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from attention.ulysses.sequence_cost import FLOP_PER_US, HOP_US, MERGED_BYTES_PER_US, SequenceShape, best_cost
from topocomm import Communicator

GATHERED_BYTES = 128 << 20
"""Keys and values of one layer on one rank, at most, beside its own; above the ring passes them."""
GATHER = 0
"""In place of the size of a ring: one all-gather."""


@dataclass(frozen=True)
class Exchange:
    """The keys and values of a layer that every rank is to see, of one sequence from its first token on.

    Attributes:
        tokens: On all ranks together.
        batch: Sequences.
        width: Of a query's and of a value's head together.
        token_bytes: Keys and values of a token, over batch and key heads.
        place: "cpu" or "gpu".
    """

    tokens: int
    batch: int
    heads: int
    width: int
    token_bytes: int
    place: str

    def by_ring(self, comm: Communicator) -> bool:
        """Whether the ring is to bring them; the same on every rank."""
        if self.tokens * self.token_bytes > GATHERED_BYTES:
            return True
        hops, others_us = comm.size - 1, self.attention_us(comm.size) * (comm.size - 1) / comm.size
        pays_us = hops * self.hop_us(comm.size)
        return others_us > pays_us and min(others_us, self._gather_us(comm)) > pays_us

    def ring_size(self, comm: Communicator, shape: SequenceShape) -> int:
        """Return the ring of `ulysses_attention`, all ranks for `ring_attention`, or `GATHER`; the same on every rank.

        `shape` is that of the same pass.
        """
        best = best_cost(comm, shape)
        if self.by_ring(comm):
            return best.ring
        gathered_us = self._gather_us(comm) + self.attention_us(comm.size)
        return best.ring if best.ring < comm.size and best.total_us < gathered_us else GATHER

    def attention_us(self, ranks: int) -> float:
        """A rank's share of causal attention: half of all pairs, two products of `width` for each."""
        pairs = self.tokens * self.tokens / 2 * self.batch * self.heads / ranks
        return 2 * pairs * self.width / FLOP_PER_US[self.place]

    def hop_us(self, ranks: int) -> float:
        """What a hop costs a rank beside the messages."""
        merged_bytes = self.tokens / ranks * self.batch * self.heads * (self.width // 2 + 1) * 4
        return HOP_US[self.place] + 3 * merged_bytes / MERGED_BYTES_PER_US[self.place]

    def _gather_us(self, comm: Communicator) -> float:
        """Of as many rows as the next power of two, in proportion: prompts of any length then share some plans."""
        own = ceil(self.tokens / comm.size)
        planned = 1 << ceil(log2(own))
        rows = np.broadcast_to(np.zeros(1, np.uint8), (planned, self.token_bytes))
        return comm.explain("allgather", like=rows).call_us * own / planned
