"""Whether the ring or one all-gather brings a prompt's keys and values to all ranks: by what each is to cost.

Both move the same bytes. The all-gather is waited for; the ring moves while a rank attends to what it has, so it hides
the smaller of the two, and pays for each hop with a kernel more and a merge of partials. The time of the all-gather is
the planner's for this machine. How fast a rank computes and its memory is, is assumed as below on every machine; it
matters near the point where both ways cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from topocomm import Communicator

GATHERED_BYTES = 128 << 20
"""Keys and values of one layer on one rank, at most, beside its own; above the ring passes them."""
HOP_US = {"cpu": 50.0, "gpu": 20.0}
"""Another call of the kernel, and what begins and ends a message."""
FLOP_PER_US = {"cpu": 5e4, "gpu": 1e8}
"""Of attention: a core or two, and a tenth of an H100's peak (989 Tflop/s in bfloat16, its datasheet). Not measured."""
MERGED_BYTES_PER_US = {"cpu": 1e4, "gpu": 1e6}
"""Of partials, each of which a merge reads twice and writes once."""


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
        return comm.explain("allgather", like=rows).predicted_us * own / planned
